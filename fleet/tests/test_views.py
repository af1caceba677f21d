"""The views over a folder, and the recipes of docs/fleet.md."""
import os
import re
import shutil
import tempfile
import unittest

import duckdb
from engines import ENGINES, DuckDb, statements, text
from evidence import MIB, START, TABLES, Evidence

DAY = 24 * 60
COUNT = "select date, count(*), min(hour), max(hour), min(epoch_minute), sum(live_bytes) from place_minute group by date order by date"


class Views(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="it's a fleet ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        evidence = Evidence()
        evidence.hold([0, 61, DAY, 2 * DAY], 3 * MIB)
        evidence.device([0])
        evidence.name(1, "a.py:1 f")
        evidence.write(self.folder, duckdb.connect())

    def test_days_are_chosen(self):
        days = [(f"2026-11-{20 + day}", 2 if day == 0 else 1, 0, 1 if day == 0 else 0, START + day * DAY) for day in range(3)]
        days = [(*row, row[1] * 3 * MIB) for row in days]
        self.assertEqual(DuckDb(self.folder, None).run(COUNT)[1], days)
        self.assertEqual(DuckDb(self.folder, ("2026-11-20", "2026-11-21")).run(COUNT)[1], days[:2])
        self.assertEqual(DuckDb(self.folder, ("2026-11-21", "2026-11-21")).run(COUNT)[1], days[1:2])
        # Spark's own quoting is the user's; a blank is allowed.
        with tempfile.TemporaryDirectory(prefix="a fleet ") as folder:
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)
            for engine in ENGINES:
                self.assertEqual(engine(folder, ("2026-11-20", "2026-11-21")).run(COUNT)[1], days[:2])

    def test_a_table_without_files_is_empty(self):
        shutil.rmtree(os.path.join(self.folder, "v1", "failures"))
        for table in ("places", "device_minute"):
            shutil.rmtree(os.path.join(self.folder, "v1", table))
        engine = DuckDb(self.folder)
        for table, columns in TABLES.items():
            names, rows = engine.run(f"select * from {table}")
            self.assertEqual(sorted(names), sorted([*columns, "date", "hour"]), table)
            self.assertEqual(len(rows), 4 if table == "place_minute" else 0, table)
        self.assertEqual(engine.query("out_of_memory")[1], [])
        self.assertEqual(engine.query("node_top")[1], [])

    def test_compaction_keeps_rows(self):
        all_rows = {
            "place_minute": "select * from place_minute order by epoch_minute, pid",
            "device_minute": "select * from device_minute order by epoch_minute",
            "failures": "select * from failures",
            "places": "select place_key, kind, place, frames, date from places",
        }
        evidence = Evidence()
        for hour in range(0, 180, 30):
            evidence.hold([hour, DAY + hour], MIB, pid=hour)
        evidence.device([0, 70], used_bytes=5)
        evidence.add("failures", 3, time_ns=4, requested_bytes=5, recovered=True, bundle="b.json")
        for host in ("node-1", "node-2"):
            evidence.name(1, "a.py:1 'f'\n", host=host)
        for engine in ENGINES:
            with self.subTest(engine.name), tempfile.TemporaryDirectory(prefix="a fleet ") as folder:
                small, compact = os.path.join(folder, "small"), os.path.join(folder, "compact")
                evidence.write(small, duckdb.connect())
                day = ("2026-11-20", "2026-11-20")
                before = engine(small, day)
                wanted = {table: sorted(set(before.run(sql)[1]), key=str) for table, sql in all_rows.items()}
                self.assertEqual([len(rows) for rows in wanted.values()], [6, 2, 1, 1])
                # The same day again changes nothing; another day is added.
                for dates in (day, day, ("2026-11-21", "2026-11-21")):
                    engine(small, dates).compact(compact)
                after = DuckDb(compact, day)
                for table, sql in all_rows.items():
                    self.assertEqual(sorted(after.run(sql)[1], key=str), wanted[table], table)
                self.assertEqual(DuckDb(compact, None).run("select count(*) from place_minute")[1], [(12,)])

    def test_spark_has_the_same_columns(self):
        wanted = {table: {**columns, "date": "varchar", "hour": "integer"} for table, columns in TABLES.items()}
        names = {"integer": "int", "varchar": "string", "bigint": "bigint", "boolean": "boolean"}
        for statement in statements("spark.sql"):
            for table, columns in wanted.items():
                if f"view all_{table} (" in statement:
                    listed = statement.split("(", 1)[1].split(") using", 1)[0].replace("\n", " ").split(",")
                    listed = dict(column.split() for column in listed)
                    self.assertEqual(listed, {name: names[kind] for name, kind in columns.items()})
                    wanted = {**wanted, table: None}
                    break
        self.assertEqual(set(wanted.values()), {None})

    def test_queries_take_nothing_else(self):
        """No query names a partition, a file or a function of time: a view may be made of anything."""
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        for name in sorted(os.listdir(folder)):
            if name.endswith(".sql") and not name.endswith(("duckdb.sql", "spark.sql")):
                code = "\n".join(line for line in text(name).splitlines() if not line.startswith("--"))
                self.assertEqual(re.findall(r"\b(?:date|hour|timestamp|read_parquet)\b|;", code), [";"], name)


if __name__ == "__main__":
    unittest.main()
