-- Views over a folder of evidence, for DuckDB 1.5 or later. Set these before it is read:
--   set variable evidence = '/data/evidence';     the folder that has `v1`
--   set variable from_date = '2026-11-20';        first day, UTC; without it: all days
--   set variable to_date = '2026-11-20';          last day
-- A table without files is an empty view, since a fleet may have no failed request.

create or replace macro evidence_scan(name, columns) as (
    select case count(*)
        when 0 then 'select ' || list_aggregate(list_transform(
            columns, lambda col: 'cast(null as ' || split_part(col, ' ', 2) || ') as ' || split_part(col, ' ', 1)
        ), 'string_agg', ', ') || ' where false'
        else 'select * from read_parquet(''' || replace(getvariable('evidence'), '''', '''''') || '/v1/' || name
            || '/**/*.parquet'', hive_partitioning = true, hive_types = {''date'': varchar, ''hour'': integer}) where date between '''
            || coalesce(getvariable('from_date'), '0000-00-00') || ''' and ''' || coalesce(getvariable('to_date'), '9999-99-99') || ''''
        end
    from glob(getvariable('evidence') || '/v1/' || name || '/**/*.parquet')
);

set variable evidence_process = ['epoch_minute integer', 'job varchar', 'rank integer', 'host varchar', 'namespace varchar',
    'pod varchar', 'container varchar', 'pid integer', 'device_id integer', 'layer varchar', 'pool varchar'];
set variable evidence_partition = ['date varchar', 'hour integer'];

set variable place_minute = evidence_scan('place_minute', getvariable('evidence_process') || ['place_key bigint',
    'live_bytes bigint', 'live_blocks bigint', 'allocated_bytes bigint', 'allocations bigint', 'freed_bytes bigint',
    'frees bigint', 'level integer'] || getvariable('evidence_partition'));
set variable device_minute = evidence_scan('device_minute', getvariable('evidence_process') || ['live_bytes bigint',
    'live_blocks bigint', 'used_bytes bigint', 'reserved_bytes bigint', 'active_bytes bigint', 'untracked_bytes bigint',
    'allocations bigint', 'frees bigint', 'failures bigint', 'lost bigint', 'level integer']
    || getvariable('evidence_partition'));
set variable places = evidence_scan('places', ['place_key bigint', 'kind varchar', 'place varchar', 'frames varchar',
    'host varchar'] || getvariable('evidence_partition'));
set variable failures = evidence_scan('failures', getvariable('evidence_process') || ['time_ns bigint', 'place_key bigint',
    'requested_bytes bigint', 'recovered boolean', 'bundle varchar'] || getvariable('evidence_partition'));

create or replace temp view place_minute as from query(getvariable('place_minute'));
create or replace temp view device_minute as from query(getvariable('device_minute'));
create or replace temp view places as from query(getvariable('places'));
create or replace temp view failures as from query(getvariable('failures'));
