-- Which pod holds which NPU memory of a node now?
--
-- A row for each process, device and pool in the newest minute of its host. The agent writes files at the end of an interval: the newest
-- minute may be an hour old, see minutes_behind.
--
-- host, device_id      where; device -1: memory of the host, -2: unknown
-- layer, pool          layers nest: never add them up; hal is the driver, and has all of the device's memory that is traced
-- namespace, pod, container, pid, job, rank    who; rank -1: unknown
-- live_bytes           allocated and not freed, since the agent attached
-- share                of all traced processes in this layer of the device
-- used_bytes           what the pool itself says it has handed out, with blocks from before the agent (null: it does not say)
-- untracked_bytes      of those, bytes that are in no place
-- top_place, top_place_bytes    the place that holds most
-- epoch_minute         that minute
-- minutes_behind       minutes since then, by the newest minute of all hosts: above 60 the agent may be down
-- level                level of the agent: from 1 on stacks are less exact
with hosts as (
    select host, max(epoch_minute) as last_minute from device_minute group by host
),
fleet as (
    select max(last_minute) as last_minute from hosts
),
now as (
    select d.*
    from device_minute d
    join hosts h on h.host = d.host and h.last_minute = d.epoch_minute
),
shared as (
    select n.*, sum(live_bytes) over (partition by host, device_id, layer) as layer_bytes from now n
),
ordered as (
    select
        m.host, m.pid, m.device_id, m.layer, m.pool, m.place_key, m.live_bytes,
        row_number() over (
            partition by m.host, m.pid, m.device_id, m.layer, m.pool order by m.live_bytes desc, m.place_key
        ) as number
    from place_minute m
    join hosts h on h.host = m.host and h.last_minute = m.epoch_minute
    where m.live_bytes > 0
),
named as (
    select place_key, min(place) as place from places group by place_key
)
select
    s.host, s.device_id, s.layer, s.pool, s.namespace, s.pod, s.container, s.pid, s.job, s.rank,
    s.live_bytes,
    case when s.layer_bytes > 0 then round(cast(s.live_bytes as double) / s.layer_bytes, 3) end as share,
    s.used_bytes,
    s.untracked_bytes,
    n.place as top_place,
    o.live_bytes as top_place_bytes,
    s.epoch_minute,
    f.last_minute - s.epoch_minute as minutes_behind,
    s.level
from shared s
cross join fleet f
left join ordered o
    on o.host = s.host and o.pid = s.pid and o.device_id = s.device_id and o.layer = s.layer and o.pool = s.pool and o.number = 1
left join named n on n.place_key = o.place_key
order by
    s.host, s.device_id, case s.layer when 'hal' then 0 when 'host_pinned' then 1 else 2 end, s.layer, s.live_bytes desc, s.pid, s.pool;
