-- How much memory do the pools of a job hold from the driver without handing it out, hour by hour?
--
-- verdict              found, not found; not judged, with its reason
-- reason               why it is not judged, or what to do with an answer
-- job, layer, pool     the pool; all processes of the job
-- epoch_hour           hours since the Unix epoch
-- processes            processes with this pool
-- reserved_bytes       mean for each process and device: what the pool says it holds
-- used_bytes           mean: what it says it has handed out
-- waiting_bytes        mean: freed, but a stream may still use it (null: the pool does not say)
-- unused_share         (reserved - used) / reserved, over all processes
-- worst_share          the same of the process that has most of it; worst_host and worst_pid say which
-- failures             failed requests of the pool in that hour
-- minutes              minutes with figures
--
-- Unused memory is a cache as long as requests succeed. Found: a quarter or more is unused, and requests fail all the same: it lies in pieces.
-- Not judged: the pool does not report both figures, or holds nothing, or fewer than 10 minutes of the hour.
with settings as (
    select 10 as least_minutes, cast(0.25 as double) as least_share
),
hours as (
    select
        job, host, pod, pid, layer, pool,
        cast(floor(epoch_minute / 60) as bigint) as epoch_hour,
        epoch_minute, failures,
        case when used_bytes is not null and reserved_bytes > 0 then reserved_bytes end as reserved_bytes,
        case when reserved_bytes > 0 then used_bytes end as used_bytes,
        case when used_bytes is not null and reserved_bytes > 0 then active_bytes - used_bytes end as waiting_bytes
    from device_minute
    where layer in ('pool', 'workspace', 'custom')
),
processes as (
    select
        job, host, pod, pid, layer, pool, epoch_hour,
        case when sum(reserved_bytes) > 0
            then cast(sum(reserved_bytes - used_bytes) as double) / sum(reserved_bytes) end as share
    from hours
    group by job, host, pod, pid, layer, pool, epoch_hour
),
numbered as (
    select
        p.*,
        count(*) over (partition by job, layer, pool, epoch_hour) as processes,
        row_number() over (
            partition by job, layer, pool, epoch_hour order by share desc nulls last, host, pid
        ) as number
    from processes p
),
worst as (
    select * from numbered where number = 1
),
sums as (
    select
        job, layer, pool, epoch_hour,
        avg(cast(reserved_bytes as double)) as reserved_bytes,
        avg(cast(used_bytes as double)) as used_bytes,
        avg(cast(waiting_bytes as double)) as waiting_bytes,
        sum(failures) as failures,
        count(distinct case when reserved_bytes is not null then epoch_minute end) as minutes
    from hours
    group by job, layer, pool, epoch_hour
),
judged as (
    select
        s.*,
        w.processes, w.share, w.host, w.pid,
        (s.reserved_bytes - s.used_bytes) / s.reserved_bytes as unused_share,
        t.least_minutes, t.least_share
    from sums s
    cross join settings t
    join worst w on w.job = s.job and w.layer = s.layer and w.pool = s.pool and w.epoch_hour = s.epoch_hour
)
select
    case
        when minutes < least_minutes then 'not judged'
        when share >= least_share and failures > 0 then 'found'
        else 'not found'
    end as verdict,
    case
        when minutes = 0 then 'the pool reports no totals, or 0'
        when minutes < least_minutes then 'fewer than 10 minutes'
        when share >= least_share and failures > 0 then 'requests fail beside unused memory'
        when share >= least_share then 'unused, and no request failed: a cache'
        else 'little is unused'
    end as reason,
    job, layer, pool, epoch_hour, processes,
    cast(round(reserved_bytes) as bigint) as reserved_bytes,
    cast(round(used_bytes) as bigint) as used_bytes,
    cast(round(waiting_bytes) as bigint) as waiting_bytes,
    round(unused_share, 3) as unused_share,
    round(share, 3) as worst_share,
    case when share is not null then host end as worst_host,
    case when share is not null then pid end as worst_pid,
    cast(failures as bigint) as failures,
    minutes
from judged
order by job, layer, pool, epoch_hour;
