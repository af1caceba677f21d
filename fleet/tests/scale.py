"""A day of a large fleet, made by DuckDB, and how long the queries take on it. Not a test: it measures.

    python scale.py make FOLDER [HOSTS]            1000 hosts x 8 devices x 24 h x 1 minute x 8 places: 92 million rows, under 2 GB
    python scale.py duckdb FOLDER [QUERY ...]
    python scale.py spark FOLDER [QUERY ...]

Jobs have 512 ranks. Rank 146 of job-08 leaks 2 MiB a minute at place 3; all else goes up and down. Figures are made up: real ones
compress less.
"""
import os
import resource
import sys
import time

import duckdb
from engines import DuckDb, Spark, start_spark
from evidence import START

HOURS = 24
DATE = ("2026-11-20", "2026-11-20")
QUERIES = "leak_by_rank rank_outlier fragmentation_by_job node_top evidence_gaps out_of_memory growth_week rollout".split()
SIDES = f"""create or replace temporary view rollout_sides as
select 'before' as side, 'job-00' as job, {START} as from_minute, {START + 1439} as to_minute
union all select 'after', 'job-01', {START}, {START + 1439}"""

PROCESS = f"""
    cast({START} + minute as integer) as epoch_minute, 'job-' || lpad(cast(least(process // 512, 15) as varchar), 2, '0') as job,
    cast(process % 512 as integer) as rank, 'node-' || lpad(cast(process // 8 as varchar), 4, '0') as host, 'train' as namespace,
    'train-' || (process // 512) || '-worker-' || (process % 512 // 8) as pod, 'main' as container,
    cast(10000 + process as integer) as pid, cast(process % 8 as integer) as device_id"""
# Looks drawn, and is the same at each run.
NOISE = "cast(hash(process, place, minute) % 4294967291 as bigint)"


def place_rows(hour, hosts):
    """Rows of an hour, by rank, device, place and minute as the agent sorts them."""
    return f"""
    select {PROCESS},
        case when place = 7 then 'hal' else 'pool' end as layer, case when place = 7 then 'hal' else 'pta' end as pool,
        cast(hash(place) % 9223372036854775807 as bigint) as place_key,
        base + wave * 2097152 + leak as live_bytes, (base + wave * 2097152 + leak) // 2097152 + 1 as live_blocks,
        churn * 2097152 as allocated_bytes, churn as allocations, churn * 2097152 as freed_bytes, churn as frees,
        cast(0 as integer) as level
    from (
        select process, place, minute,
            cast(67108864 * (1 + hash(least(process // 512, 15) * 8 + place) % 64) as bigint) as base,
            case when place % 3 = 0 then {NOISE} % 17 else 0 end as wave,
            30 + {NOISE} // 17 % 20 as churn,
            case when process = 4242 and place = 3 then 2097152 * cast(minute as bigint) else 0 end as leak
        from range({hosts * 8}) p(process), range(8) s(place), range({hour * 60}, {hour * 60 + 60}) m(minute)
    ) drawn order by process, place, minute"""


def device_rows(hour, hosts):
    """The pool and the driver of each device."""
    return f"""
    select {PROCESS}, layer, pool, used as live_bytes, used // 2097152 as live_blocks,
        case when layer = 'pool' then used end as used_bytes, case when layer = 'pool' then used + 1073741824 end as reserved_bytes,
        case when layer = 'pool' then used + 8388608 end as active_bytes, cast(0 as bigint) as untracked_bytes,
        cast(300 as bigint) as allocations, cast(300 as bigint) as frees, cast(0 as bigint) as failures, cast(0 as bigint) as lost,
        cast(0 as integer) as level
    from (
        select process, minute, layer, pool, 17179869184 + 2097152 * ({NOISE} % 64) as used
        from range({hosts * 8}) p(process), (values (0, 'pool', 'pta'), (1, 'hal', 'hal')) l(place, layer, pool),
            range({hour * 60}, {hour * 60 + 60}) m(minute)
    ) drawn order by process, minute, layer"""


def make(folder, hosts):
    """Writes a file for each hour of both tables, as after compaction."""
    database = duckdb.connect()
    database.execute("set threads = 2; set memory_limit = '6GB'")
    started = time.monotonic()
    rows = size_bytes = 0
    for hour in range(HOURS):
        for table, select in (("place_minute", place_rows), ("device_minute", device_rows)):
            target = f"{folder}/v1/{table}/date={DATE[0]}/hour={hour:02d}"
            os.makedirs(target, exist_ok=True)
            file = f"{target}/all.parquet"
            count = database.execute(f"copy ({select(hour, hosts)}) to '{file}' (format parquet, compression zstd)").fetchone()[0]
            if table == "place_minute":
                rows += count
                size_bytes += os.path.getsize(file)
    target = f"{folder}/v1/places/date={DATE[0]}/hour=00"
    os.makedirs(target, exist_ok=True)
    os.makedirs(f"{folder}/v1/failures", exist_ok=True)
    database.execute(f"""copy (
        select cast(hash(place) % 9223372036854775807 as bigint) as place_key, 'python' as kind,
            'model.py:' || place || ' step' as place, 'model.py(' || place || '): step' as frames,
            'node-' || lpad(cast(host as varchar), 4, '0') as host
        from range(8) s(place), range({hosts}) h(host)) to '{target}/all.parquet' (format parquet, compression zstd)""")
    print(f"place_minute: {rows} rows, {size_bytes} bytes; all in {time.monotonic() - started:.0f} s")


def measure(engine, queries):
    """Time of each query, after one that is not counted."""
    engine.run(SIDES)
    engine.run("select count(*) from places")
    for query in queries:
        started = time.monotonic()
        _, rows = engine.query(query)
        print(f"{engine.name} {query}: {time.monotonic() - started:.1f} s, {len(rows)} rows, first {rows[:1]}", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{engine.name}: peak memory of this process {peak_mib} MiB")


def main():
    verb, folder, *rest = sys.argv[1:]
    if verb == "make":
        make(folder, int(rest[0]) if rest else 1000)
    elif verb == "duckdb":
        measure(DuckDb(folder, DATE), rest or QUERIES)
    elif verb == "spark":
        own = {"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "true"}
        Spark.session = start_spark(**own, **{"spark.sql.codegen.wholeStage": "true"})
        measure(Spark(folder, DATE), rest or QUERIES)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
