"""Reads the Parquet tables of an export with pyarrow and Polars, and answers the queries of docs/parquet.md in DuckDB.

Prints the answers, for a test to compare.
"""

import json
import os
import re
import sys

import duckdb
import polars
import pyarrow.parquet as pq

folder, page = sys.argv[1:]
with open(page, encoding="utf-8") as text:
    queries = re.findall(r"```sql\n(.*?)```", text.read(), re.DOTALL)
os.chdir(folder)
tables = {name.removesuffix(".parquet"): pq.read_table(name) for name in sorted(os.listdir("."))}
events = polars.read_parquet("events.parquet")
kinds = dict(events.group_by("kind").len().iter_rows())
peak = events.filter(polars.col("layer") == "PTA").select(polars.col("used_bytes").max()).item()
metadata = pq.read_metadata("events.parquet")
json.dump(
    {
        "rows": {name: table.num_rows for name, table in tables.items()},
        "types": {column.name: str(column.type) for column in tables["blocks"].schema},
        "frames": str(tables["stacks_python"].schema.field("frames").type),
        "kinds": kinds,
        "peak": peak,
        "sorted": metadata.row_group(0).sorting_columns[0].column_index,
        "notes": {key.decode(): value.decode() for key, value in metadata.metadata.items() if key.startswith(b"memscope")},
        "answers": [[list(row) for row in duckdb.sql(query).fetchall()] for query in queries],
        "findings": [json.loads(text)["finding"] for text in tables["findings"]["json"].to_pylist()],
    },
    sys.stdout,
)
