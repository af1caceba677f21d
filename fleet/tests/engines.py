"""Runs the queries in DuckDB and in Spark, on one folder of evidence."""
import os
import re
import tempfile

import duckdb

FLEET = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATES = ("2026-11-01", "2026-12-31")


def text(name):
    """A file of this folder."""
    with open(os.path.join(FLEET, name), encoding="utf-8") as file:
        return file.read()


def statements(name):
    """Statements of a file; no text in them has a semicolon."""
    lines = [line for line in text(name).splitlines() if not line.lstrip().startswith("--")]
    return [statement for statement in re.split(r";\s*(?:\n|$)", "\n".join(lines)) if statement.strip()]


class DuckDb:
    """A connection with the views over a folder."""

    name = "DuckDB"

    def __init__(self, folder, dates=DATES):
        self.database = duckdb.connect()
        self.database.execute("set threads = 2")
        quoted = folder.replace("'", "''")
        self.database.execute(f"set variable evidence = '{quoted}'")
        if dates:
            self.database.execute(f"set variable from_date = '{dates[0]}'; set variable to_date = '{dates[1]}'")
        self.database.execute(text("duckdb.sql"))

    def run(self, sql):
        """Names of columns, and rows."""
        result = self.database.execute(sql)
        return [column[0] for column in result.description], [tuple(row) for row in result.fetchall()]

    def query(self, name):
        """The same of a query."""
        return self.run(text(f"{name}.sql"))


    def compact(self, folder):
        """Makes large files."""
        os.makedirs(os.path.join(folder, "v1"), exist_ok=True)
        quoted = folder.replace("'", "''")
        self.database.execute(f"set variable compact = '{quoted}'")
        self.database.execute(text("compact_duckdb.sql"))


class Spark:
    """The session, which all tests share, with the views over a folder."""

    name = "Spark"
    session = None

    def __init__(self, folder, dates=DATES):
        if Spark.session is None:
            Spark.session = start_spark()
        settings = {"evidence": folder, "from_date": dates[0], "to_date": dates[1]}
        for name, value in settings.items():
            self.session.conf.set(name, value)
        for statement in statements("spark.sql"):
            self.session.sql(statement)

    def run(self, sql):
        """Names of columns, and rows."""
        result = self.session.sql(sql)
        return result.columns, [tuple(row) for row in result.collect()]

    def query(self, name):
        """The same of a query."""
        return self.run(text(f"{name}.sql"))

    def compact(self, folder):
        """Makes large files."""
        self.session.conf.set("compact", folder)
        for statement in statements("compact_spark.sql"):
            self.session.sql(statement)


def start_spark(**settings):
    """Spark in this process alone, without its page."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("memscope-fleet")
    own = {
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "memscope-fleet-warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # An answer of a few rows takes no compiled code, and compiling takes most of the time.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for name, value in (own | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# `./x fleet` has both; `./x test` has no Spark.
ENGINES = (DuckDb,) if os.environ.get("MEMSCOPE_FLEET_ENGINES") == "DuckDB" else (DuckDb, Spark)
