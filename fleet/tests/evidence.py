"""Small data sets of evidence: rows with defaults, written as the agent lays its files out.

`START` is 2026-11-20 00:00 UTC. Times below are minutes from there.
"""
import datetime
import json
import os

START = 1_795_132_800 // 60
MIB = 1 << 20
GIB = 1 << 30

PROCESS = {
    "epoch_minute": "integer", "job": "varchar", "rank": "integer", "host": "varchar", "namespace": "varchar", "pod": "varchar",
    "container": "varchar", "pid": "integer", "device_id": "integer", "layer": "varchar", "pool": "varchar",
}
TABLES = {
    "place_minute": PROCESS | {
        "place_key": "bigint", "live_bytes": "bigint", "live_blocks": "bigint", "allocated_bytes": "bigint",
        "allocations": "bigint", "freed_bytes": "bigint", "frees": "bigint", "level": "integer",
    },
    "device_minute": PROCESS | {
        "live_bytes": "bigint", "live_blocks": "bigint", "used_bytes": "bigint", "reserved_bytes": "bigint",
        "active_bytes": "bigint", "untracked_bytes": "bigint", "allocations": "bigint", "frees": "bigint", "failures": "bigint",
        "lost": "bigint", "level": "integer",
    },
    "places": {"place_key": "bigint", "kind": "varchar", "place": "varchar", "frames": "varchar", "host": "varchar"},
    "failures": PROCESS | {
        "time_ns": "bigint", "place_key": "bigint", "requested_bytes": "bigint", "recovered": "boolean", "bundle": "varchar",
    },
}
OPTIONAL = {"used_bytes", "reserved_bytes", "active_bytes"}
DEFAULTS = {
    "job": "train", "rank": -1, "host": "node-1", "namespace": "team", "pod": "train-0", "container": "main", "pid": 100,
    "device_id": 0, "layer": "pool", "pool": "pta", "kind": "python", "recovered": False,
}


class Evidence:
    """Rows of a scenario."""

    def __init__(self):
        self.rows = {table: [] for table in TABLES}

    def add(self, table, minute, **values):
        """A row; numbers that are not given are 0, texts empty, what a pool may leave out is null."""
        row = {}
        for name, kind in TABLES[table].items():
            zero = "" if kind == "varchar" else None if name in OPTIONAL else 0
            row[name] = values.pop(name, DEFAULTS.get(name, zero))
        assert not values, f"no such columns of {table}: {values}"
        if "epoch_minute" in row:
            row["epoch_minute"] = START + minute
        self.rows[table].append((START + minute, row))

    def hold(self, minutes, live_bytes, place_key=1, **values):
        """A place of a process over minutes; bytes are a number, or a function of the minute. A block has 1 MiB."""
        for minute in minutes:
            live = live_bytes(minute) if callable(live_bytes) else live_bytes
            self.add("place_minute", minute, place_key=place_key, live_bytes=live, live_blocks=-(-live // MIB), **values)

    def device(self, minutes, **values):
        """A pool of a process over minutes; a value may be a function of the minute."""
        for minute in minutes:
            now = {name: value(minute) if callable(value) else value for name, value in values.items()}
            self.add("device_minute", minute, **now)

    def name(self, place_key, place, **values):
        """What a key is."""
        self.add("places", 0, place_key=place_key, place=place, **values)

    def write(self, folder, database):
        """Writes a file for each table and hour, by a DuckDB connection."""
        for table, rows in self.rows.items():
            parts = {}
            for minute, row in rows:
                time = datetime.datetime.fromtimestamp(minute * 60, datetime.timezone.utc)
                parts.setdefault((time.strftime("%Y-%m-%d"), time.strftime("%H")), []).append(row)
            # Spark wants a folder, and the agent makes none where there is no row.
            os.makedirs(os.path.join(folder, "v1", table), exist_ok=True)
            for (date, hour), part in parts.items():
                place = os.path.join(folder, "v1", table, f"date={date}", f"hour={hour}")
                os.makedirs(place, exist_ok=True)
                rows_file = os.path.join(folder, "rows.json")
                with open(rows_file, "w", encoding="utf-8") as out:
                    out.writelines(json.dumps(row) + "\n" for row in part)
                target = os.path.join(place, "node-0123456789ab-0000000000000001.parquet")
                rows_quoted, target = rows_file.replace("'", "''"), target.replace("'", "''")
                database.execute(
                    f"copy (select * from read_json('{rows_quoted}', format = 'newline_delimited', columns = {TABLES[table]}))"
                    f" to '{target}' (format parquet, compression lz4_raw)"
                )
                os.remove(rows_file)
