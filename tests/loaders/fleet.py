"""What queries of `fleet/` answer in DuckDB, as JSON: the folder of the evidence, first and last day, then names of queries. `columns` has the
tables' columns in files, and `expected` those that the queries' own scenarios have."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fleet/tests"))

from engines import DuckDb  # noqa: E402
from evidence import TABLES  # noqa: E402

folder, first, last, *queries = sys.argv[1:]
engine = DuckDb(folder, (first, last))
answers = {}
for query in queries:
    names, rows = engine.query(query)
    answers[query] = [dict(zip(names, row)) for row in rows]
columns = {}
for table in TABLES:
    _, rows = engine.run(f"describe {table}")
    columns[table] = sorted([name, kind.lower()] for name, kind, *_ in rows if name not in ("date", "hour"))
answers["columns"] = columns
answers["expected"] = {table: sorted([name, kind] for name, kind in columns.items()) for table, columns in TABLES.items()}
json.dump(answers, sys.stdout)
