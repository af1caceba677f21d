-- Who was out of memory, what did it ask for, and who held most at that minute?
--
-- A row for each process, pool and minute with failed requests, the newest first. Layers nest: a request that fails in a pool often fails in
-- the driver (hal) too, and both are rows.
--
-- first_time_ns                first failed request, nanoseconds since the Unix epoch
-- epoch_minute                 its minute
-- job, rank, host, namespace, pod, container, pid, device_id, layer, pool    who asked; rank -1: unknown
-- requests, recovered          failed requests; of those, with success at a further attempt
-- largest_request_bytes        the largest of them
-- asked_place                  where that one was made
-- held_minute                  minute of the figures below: the newest up to 5 minutes before; null: not judged, there is none
-- held_bytes                   live bytes of this process in this pool and device
-- top_place, top_place_bytes   the place that held most of them
-- device_bytes                 driver memory (hal) of all traced processes on this device of the host
-- other_pod, other_pid, other_bytes    the other process that held most driver memory of this device
-- bundle                       file of the agent with details, on that host; empty: none
with settings as (
    select 5 as longest_minutes
),
ordered as (
    select
        f.*,
        row_number() over (
            partition by job, rank, host, namespace, pod, container, pid, device_id, layer, pool, epoch_minute
            order by requested_bytes desc, time_ns, place_key
        ) as number
    from failures f
),
asked as (
    select
        job, rank, host, namespace, pod, container, pid, device_id, layer, pool, epoch_minute,
        min(time_ns) as first_time_ns,
        count(*) as requests,
        sum(case when recovered then 1 else 0 end) as recovered,
        max(requested_bytes) as largest_request_bytes,
        max(case when number = 1 then place_key end) as place_key,
        max(bundle) as bundle
    from ordered
    group by job, rank, host, namespace, pod, container, pid, device_id, layer, pool, epoch_minute
),
moments as (
    select distinct host, pid, device_id, layer, pool, epoch_minute from asked
),
places_then as (
    select
        a.host, a.pid, a.device_id, a.layer, a.pool, a.epoch_minute, m.epoch_minute as held_minute, m.place_key, m.live_bytes,
        max(m.epoch_minute) over (
            partition by a.host, a.pid, a.device_id, a.layer, a.pool, a.epoch_minute
        ) as newest_minute
    from moments a
    cross join settings s
    join place_minute m
        on m.host = a.host and m.pid = a.pid and m.device_id = a.device_id and m.layer = a.layer and m.pool = a.pool
        and m.epoch_minute <= a.epoch_minute and m.epoch_minute >= a.epoch_minute - s.longest_minutes
    where m.live_bytes > 0
),
ranked as (
    select
        p.*,
        sum(live_bytes) over (partition by host, pid, device_id, layer, pool, epoch_minute) as held_bytes,
        row_number() over (
            partition by host, pid, device_id, layer, pool, epoch_minute order by live_bytes desc, place_key
        ) as number
    from places_then p
    where held_minute = newest_minute
),
held as (
    select host, pid, device_id, layer, pool, epoch_minute, held_minute, held_bytes, place_key, live_bytes
    from ranked
    where number = 1
),
driver_then as (
    select
        a.host, a.device_id, a.epoch_minute, d.pod, d.pid, d.live_bytes, d.epoch_minute as held_minute,
        max(d.epoch_minute) over (partition by a.host, a.device_id, a.epoch_minute) as newest_minute
    from (select distinct host, device_id, epoch_minute from asked) a
    cross join settings s
    join device_minute d
        on d.host = a.host and d.device_id = a.device_id and d.layer = 'hal'
        and d.epoch_minute <= a.epoch_minute and d.epoch_minute >= a.epoch_minute - s.longest_minutes
),
driver as (
    select host, device_id, epoch_minute, pod, pid, sum(live_bytes) as bytes
    from driver_then
    where held_minute = newest_minute
    group by host, device_id, epoch_minute, pod, pid
),
devices as (
    select host, device_id, epoch_minute, sum(bytes) as bytes from driver group by host, device_id, epoch_minute
),
others_ranked as (
    select
        a.host, a.pid as of_pid, a.device_id, a.epoch_minute, d.pod, d.pid, d.bytes,
        row_number() over (partition by a.host, a.pid, a.device_id, a.epoch_minute order by d.bytes desc, d.pid) as number
    from (select distinct host, pid, device_id, epoch_minute from asked) a
    join driver d
        on d.host = a.host and d.device_id = a.device_id and d.epoch_minute = a.epoch_minute and d.pid <> a.pid
),
others as (
    select host, of_pid, device_id, epoch_minute, pod, pid, bytes from others_ranked where number = 1
),
named as (
    select place_key, min(place) as place from places group by place_key
)
select
    a.first_time_ns, a.epoch_minute, a.job, a.rank, a.host, a.namespace, a.pod, a.container, a.pid, a.device_id, a.layer, a.pool,
    a.requests,
    cast(a.recovered as bigint) as recovered,
    a.largest_request_bytes,
    asked_at.place as asked_place,
    h.held_minute,
    cast(h.held_bytes as bigint) as held_bytes,
    held_at.place as top_place,
    h.live_bytes as top_place_bytes,
    cast(d.bytes as bigint) as device_bytes,
    o.pod as other_pod,
    o.pid as other_pid,
    cast(o.bytes as bigint) as other_bytes,
    a.bundle
from asked a
left join held h
    on h.host = a.host and h.pid = a.pid and h.device_id = a.device_id and h.layer = a.layer and h.pool = a.pool
    and h.epoch_minute = a.epoch_minute
left join devices d on d.host = a.host and d.device_id = a.device_id and d.epoch_minute = a.epoch_minute
left join others o
    on o.host = a.host and o.of_pid = a.pid and o.device_id = a.device_id and o.epoch_minute = a.epoch_minute
left join named asked_at on asked_at.place_key = a.place_key
left join named held_at on held_at.place_key = h.place_key
order by a.first_time_ns desc, a.host, a.pid, a.device_id, a.layer, a.pool;
