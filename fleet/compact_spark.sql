-- Makes few large files of the many small ones of the days that the views have. Read it after spark.sql, with one more setting:
--   compact       another folder or address, which gets a `v1` of the same layout
-- When, and what then: see compact_duckdb.sql. The tables that it makes are names for these folders: dropping one leaves its files.
set spark.sql.sources.partitionOverwriteMode = dynamic;
set spark.sql.parquet.compression.codec = zstd;

create table if not exists compact_place_minute (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, place_key bigint, live_bytes bigint, live_blocks bigint, allocated_bytes bigint,
    allocations bigint, freed_bytes bigint, frees bigint, level int, date string, hour int
) using parquet partitioned by (date, hour) location '${compact}/v1/place_minute';
insert overwrite compact_place_minute
    select /*+ repartition(date, hour) */ * from place_minute sort by date, hour, rank, device_id, place_key, epoch_minute;

create table if not exists compact_device_minute (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, live_bytes bigint, live_blocks bigint, used_bytes bigint, reserved_bytes bigint,
    active_bytes bigint, untracked_bytes bigint, allocations bigint, frees bigint, failures bigint, lost bigint, level int,
    date string, hour int
) using parquet partitioned by (date, hour) location '${compact}/v1/device_minute';
insert overwrite compact_device_minute
    select /*+ repartition(date, hour) */ * from device_minute sort by date, hour, rank, device_id, epoch_minute;

create table if not exists compact_places (
    place_key bigint, kind string, place string, frames string, host string, date string, hour int
) using parquet partitioned by (date, hour) location '${compact}/v1/places';
insert overwrite compact_places
    select place_key, min(kind), min(place), min(frames), min(host), date, 0 from places group by place_key, date;

create table if not exists compact_failures (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, time_ns bigint, place_key bigint, requested_bytes bigint, recovered boolean,
    bundle string, date string, hour int
) using parquet partitioned by (date, hour) location '${compact}/v1/failures';
insert overwrite compact_failures
    select /*+ repartition(date, hour) */ * from failures;
