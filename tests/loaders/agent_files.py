"""Evidence that an agent wrote, as DuckDB and the queries of `fleet/` read it. Prints JSON: columns of each table as the files have them and as the
queries expect them, rows of queries, and what each place of each process held at the end.

    agent_files.py DIRECTORY
"""
import glob
import json
import os
import sys

FLEET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fleet/tests")
sys.path.insert(0, FLEET)

from engines import DuckDb  # noqa: E402
from evidence import TABLES  # noqa: E402

QUERIES = "leak_by_rank node_top out_of_memory evidence_gaps".split()
HELD = """select p.pid, p.layer, n.place, p.live_bytes, p.live_blocks
from place_minute p join (select distinct place_key, place from places) n using (place_key)
where p.live_bytes > 0 and p.epoch_minute = (select max(epoch_minute) from place_minute l where l.host = p.host and l.pid = p.pid)
order by all"""


def main(directory):
    engine = DuckDb(directory, None)
    columns, answers = {}, {}
    for table in TABLES:
        files = glob.glob(f"{directory}/v1/{table}/*/*/*.parquet")
        if files:
            _, rows = engine.run(f"describe select * from read_parquet({files!r}, hive_partitioning = false)")
            columns[table] = [[row[0], row[1].lower()] for row in rows]
    for query in QUERIES:
        names, rows = engine.query(query)
        answers[query] = [dict(zip(names, row)) for row in rows]
    _, held = engine.run(HELD)
    expected = {table: [list(column) for column in TABLES[table].items()] for table in TABLES}
    print(json.dumps({"columns": columns, "expected": expected, "answers": answers, "held": held}))


main(sys.argv[1])
