-- Views over a folder of evidence, for Spark SQL 4. Give these to `spark-sql` with `--hivevar NAME=VALUE`, or set them in `spark.conf`:
--   evidence      the folder that has `v1`, or its address in an object store
--   from_date     first day, UTC, as 2026-11-20
--   to_date       last day
-- Spark refuses a folder that is missing: make `v1/failures` where no request has failed yet.

set spark.sql.sources.partitionColumnTypeInference.enabled = false;

create or replace temporary view all_place_minute (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, place_key bigint, live_bytes bigint, live_blocks bigint, allocated_bytes bigint,
    allocations bigint, freed_bytes bigint, frees bigint, level int, date string, hour int
) using parquet options (path '${evidence}/v1/place_minute');

create or replace temporary view all_device_minute (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, live_bytes bigint, live_blocks bigint, used_bytes bigint, reserved_bytes bigint,
    active_bytes bigint, untracked_bytes bigint, allocations bigint, frees bigint, failures bigint, lost bigint, level int,
    date string, hour int
) using parquet options (path '${evidence}/v1/device_minute');

create or replace temporary view all_places (
    place_key bigint, kind string, place string, frames string, host string, date string, hour int
) using parquet options (path '${evidence}/v1/places');

create or replace temporary view all_failures (
    epoch_minute int, job string, rank int, host string, namespace string, pod string, container string, pid int,
    device_id int, layer string, pool string, time_ns bigint, place_key bigint, requested_bytes bigint, recovered boolean,
    bundle string, date string, hour int
) using parquet options (path '${evidence}/v1/failures');

create or replace temporary view place_minute as
    select * from all_place_minute where date between '${from_date}' and '${to_date}';
create or replace temporary view device_minute as
    select * from all_device_minute where date between '${from_date}' and '${to_date}';
create or replace temporary view places as
    select * from all_places where date between '${from_date}' and '${to_date}';
create or replace temporary view failures as
    select * from all_failures where date between '${from_date}' and '${to_date}';
