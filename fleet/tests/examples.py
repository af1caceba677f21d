"""The answers in docs/fleet.md and docs/zh/fleet.md, made from a scenario: `python examples.py --write` puts them there.

Two jobs: `llama-train` with four ranks on two nodes, of which rank 2 leaks and runs out of memory; `qwen-serve` on one node, which was
rolled out again and holds more than a week ago.
"""
import os
import sys
import tempfile

import duckdb
from engines import FLEET, DuckDb
from evidence import GIB, MIB, START, Evidence

PAGES = ("docs/fleet.md", "docs/zh/fleet.md")
WEEK = 7 * 24 * 60
HOUR = range(120)
FULL = 90
DAY = ("2026-11-20", "2026-11-20")
SIDES = f"""create or replace temporary view rollout_sides as
select 'before' as side, 'qwen-serve' as job, {START - WEEK} as from_minute, {START - WEEK + 119} as to_minute
union all select 'after', 'qwen-serve', {START}, {START + 119}"""
# Columns that an example shows; all of them are in the file's head.
COLUMNS = {
    "leak_by_rank": "verdict reason job rank host place bytes_per_minute peers_bytes_per_minute robust_z",
    "rank_outlier": "verdict reason job rank host place bytes peers_bytes robust_z",
    "growth_week": "verdict reason job layer place bytes_before bytes_after difference_bytes",
    "out_of_memory": "epoch_minute job rank pod requests recovered largest_request_bytes asked_place held_bytes top_place top_place_bytes",
    "fragmentation_by_job": "verdict reason job epoch_hour reserved_bytes used_bytes unused_share failures",
    "rollout": "verdict layer place bytes_before bytes_after difference_bytes",
    "node_top": "host device_id layer pod pid live_bytes share top_place minutes_behind",
    "evidence_gaps": "verdict host missing_minutes minutes_behind lost degraded_minutes level untracked_share",
}


def scenario():
    """Its rows."""
    evidence = Evidence()
    for rank in range(4):
        process = {"job": "llama-train", "rank": rank, "pid": 4100 + rank, "device_id": rank % 2}
        process |= {"host": f"node-{1 + rank // 2}", "pod": f"llama-train-{rank}", "namespace": "research"}
        minutes = HOUR if rank != 2 else range(FULL + 1)

        def leaked(minute, rank=rank):
            return 48 * MIB * minute if rank == 2 else 0

        weights = 6 * GIB if rank == 3 else 4 * GIB
        evidence.hold(minutes, weights, place_key=1, **process)
        evidence.hold(minutes, lambda minute: leaked(minute) + 64 * MIB, place_key=2, **process)

        def used(minute, weights=weights, leaked=leaked):
            return weights + 64 * MIB + leaked(minute)

        evidence.device(
            minutes, live_bytes=used, used_bytes=used, reserved_bytes=lambda minute, used=used: used(minute) + GIB,
            failures=lambda minute, rank=rank: 2 if (rank, minute) == (2, FULL) else 0, **process,
        )
        evidence.device(minutes, live_bytes=lambda minute, used=used: used(minute) + GIB,
                        **{**process, "layer": "hal", "pool": "hal"})
    failed = {"job": "llama-train", "rank": 2, "pid": 4102, "host": "node-2", "pod": "llama-train-2", "namespace": "research"}
    for second, recovered in ((11, True), (12, False)):
        evidence.add("failures", FULL, time_ns=((START + FULL) * 60 + second) * 10**9, place_key=3, requested_bytes=GIB,
                     recovered=recovered, bundle="bundle_1795138212_4102.json", **failed)
    for start, pid, cache, weights in ((-WEEK, 7000, 8 * GIB, 1), (0, 7001, 11 * GIB, 4)):
        process = {"job": "qwen-serve", "rank": -1, "pid": pid, "host": "node-3", "pod": "qwen-serve-0", "namespace": "serving"}
        # The agent was off for five minutes, and went down a level when records were lost.
        minutes = [start + minute for minute in HOUR if start or minute not in range(30, 35)]
        used = cache + 3 * GIB
        evidence.hold(minutes, cache, place_key=5, **process)
        evidence.hold(minutes, 3 * GIB, place_key=6 if start else 7, **process)
        evidence.device(minutes, live_bytes=used, used_bytes=used, reserved_bytes=used + GIB // 2,
                        lost=lambda minute: 120 if minute == 60 else 0, level=lambda minute: 1 if 60 <= minute < 65 else 0, **process)
        evidence.device(minutes, live_bytes=used + GIB // 2, **{**process, "layer": "hal", "pool": "hal"})
    for key, place in (
        (1, "model.py:88 build"), (2, "data.py:41 collate"), (3, "loss.py:17 forward"), (5, "kv_cache.py:203 reserve"),
        (6, "loader.py:55 load"), (7, "loader.py:61 load"),
    ):
        evidence.name(key, place)
    return evidence


def shown(value):
    """A cell."""
    return "" if value is None else str(value)


def table(columns, rows):
    """Rows below their names, numbers to the right."""
    cells = [columns] + [[shown(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    is_number = [all(isinstance(row[at], (int, float, type(None))) for row in rows) for at in range(len(columns))]

    def line(row):
        aligned = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, is_number))
        return "  ".join(aligned).rstrip()

    return "\n".join(line(row) for row in cells)


def answers():
    """The printed answer of each query."""
    with tempfile.TemporaryDirectory(prefix="memscope-fleet-") as folder:
        scenario().write(folder, duckdb.connect())
        printed = {}
        for query, columns in COLUMNS.items():
            engine = DuckDb(folder, None if query in ("growth_week", "rollout") else DAY)
            engine.run(SIDES)
            names, rows = engine.query(query)
            picked = [names.index(column) for column in columns.split()]
            printed[query] = table(columns.split(), [[row[at] for at in picked] for row in rows])
        return printed


def put(page, printed):
    """The page with these answers. An answer is the block of code after `<!-- example: QUERY -->`."""
    for query, answer in printed.items():
        mark = f"<!-- example: {query} -->\n```text\n"
        before, found, rest = page.partition(mark)
        assert found, f"no {mark!r}"
        _, end, after = rest.partition("\n```\n")
        assert end, f"{query}: no end of its block"
        page = before + mark + answer + end + after
    return page


def pages():
    """Their paths."""
    return [os.path.join(os.path.dirname(FLEET), page) for page in PAGES]


def main():
    printed = answers()
    if sys.argv[1:] != ["--write"]:
        for query, answer in printed.items():
            print(f"{query}\n{answer}\n")
        return
    for path in pages():
        with open(path, encoding="utf-8") as file:
            page = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(put(page, printed))


if __name__ == "__main__":
    main()
