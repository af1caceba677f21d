-- Which rank holds more at a place than the other ranks of its job that have this place?
--
-- verdict              found; not judged, with its reason; not found: one row for a job without an outlier
-- reason               what the verdict rests on
-- job, rank, host, pod, pid   the process; rank -1: unknown
-- layer, pool          where; layers nest, so never add them up
-- place_key, place     where the blocks were allocated
-- bytes                mean live bytes of the process there, over its minutes of the last hour of the job, all devices
-- peers_bytes          median of all processes with this place
-- robust_z             distance from that median, in spreads (1.4826 x median absolute deviation; at least 2 % of the median, and 1 MiB)
-- ranks                ranks with this place
-- ranks_of_job         ranks with this pool
-- level                highest level of the agent: from 1 on stacks are less exact
--
-- Found: 64 MiB and 6 spreads above the median. It need not grow: see leak_by_rank for that.
-- Not judged: the process has fewer than 10 minutes in that hour, or fewer than 3 ranks have the place (listed from 64 MiB on), or the
-- job has fewer. Stages of a pipeline have other places than other stages: ranks without the place are no peers.
with settings as (
    select
        60 as window_minutes,
        10 as least_minutes,
        3 as least_ranks,
        67108864 as least_bytes,
        1048576 as least_spread,
        cast(0.02 as double) as least_share,
        6 as least_z
),
newest as (
    select job, max(epoch_minute) as last_minute from place_minute group by job
),
recent as (
    select
        m.job, m.rank, m.host, m.pod, m.pid, m.layer, m.pool, m.place_key, m.epoch_minute, m.live_bytes, m.level,
        case when m.rank >= 0 then cast(m.rank as string) else concat(m.host, ' ', cast(m.pid as string)) end as member
    from place_minute m
    join newest n on n.job = m.job
    cross join settings s
    where m.epoch_minute > n.last_minute - s.window_minutes
),
processes as (
    select job, rank, host, pod, pid, layer, pool, member, count(distinct epoch_minute) as minutes
    from recent
    group by job, rank, host, pod, pid, layer, pool, member
),
pools as (
    select job, layer, pool, count(distinct member) as ranks_of_job from processes group by job, layer, pool
),
held as (
    select
        r.job, r.rank, r.host, r.pod, r.pid, r.layer, r.pool, r.member, r.place_key,
        cast(sum(r.live_bytes) as double) / max(p.minutes) as bytes,
        max(p.minutes) as minutes,
        max(r.level) as level
    from recent r
    join processes p
        on p.job = r.job and p.rank = r.rank and p.host = r.host and p.pod = r.pod and p.pid = r.pid
        and p.layer = r.layer and p.pool = r.pool
    group by r.job, r.rank, r.host, r.pod, r.pid, r.layer, r.pool, r.member, r.place_key
),
medians as (
    select h.job, h.layer, h.pool, h.place_key, median(h.bytes) as bytes, count(distinct h.member) as ranks
    from held h
    cross join settings s
    where h.minutes >= s.least_minutes
    group by h.job, h.layer, h.pool, h.place_key
),
spreads as (
    select h.job, h.layer, h.pool, h.place_key, 1.4826 * median(abs(h.bytes - m.bytes)) as spread
    from held h
    join medians m on m.job = h.job and m.layer = h.layer and m.pool = h.pool and m.place_key = h.place_key
    cross join settings s
    where h.minutes >= s.least_minutes
    group by h.job, h.layer, h.pool, h.place_key
),
compared as (
    select
        h.job, h.rank, h.host, h.pod, h.pid, h.layer, h.pool, h.place_key, h.bytes, h.minutes, h.level,
        m.bytes as peers_bytes,
        coalesce(m.ranks, 0) as ranks,
        p.ranks_of_job,
        (h.bytes - m.bytes) / greatest(sp.spread, s.least_share * m.bytes, cast(s.least_spread as double)) as z
    from held h
    cross join settings s
    join pools p on p.job = h.job and p.layer = h.layer and p.pool = h.pool
    left join medians m on m.job = h.job and m.layer = h.layer and m.pool = h.pool and m.place_key = h.place_key
    left join spreads sp on sp.job = h.job and sp.layer = h.layer and sp.pool = h.pool and sp.place_key = h.place_key
    where h.bytes >= s.least_bytes and p.ranks_of_job >= s.least_ranks
),
judged as (
    select
        c.*,
        case
            when minutes < least_minutes or ranks < least_ranks then 'not judged'
            when bytes - peers_bytes >= least_bytes and z >= least_z then 'found'
            else 'not found'
        end as verdict,
        case
            when minutes < least_minutes then 'fewer than 10 minutes'
            when ranks < least_ranks then 'fewer than 3 ranks have this place'
            else 'holds more than its peers'
        end as reason
    from compared c
    cross join settings
),
jobs as (
    select
        p.job,
        case when max(p.minutes) < max(s.least_minutes) or count(distinct p.member) < max(s.least_ranks) then 'not judged'
            else 'not found' end as verdict,
        case when max(p.minutes) < max(s.least_minutes) then 'fewer than 10 minutes'
            when count(distinct p.member) < max(s.least_ranks) then 'fewer than 3 ranks'
            else 'ranks hold alike' end as reason,
        count(distinct p.member) as ranks_of_job
    from processes p
    cross join settings s
    group by p.job
),
named as (
    select place_key, min(place) as place from places group by place_key
),
answers as (
    select
        j.verdict, j.reason, j.job, j.rank, j.host, j.pod, j.pid, j.layer, j.pool, j.place_key, n.place,
        cast(round(j.bytes) as bigint) as bytes,
        cast(round(j.peers_bytes) as bigint) as peers_bytes,
        round(j.z, 1) as robust_z,
        j.ranks, j.ranks_of_job, j.level
    from judged j
    left join named n on n.place_key = j.place_key
    where j.verdict <> 'not found'
    union all
    select
        verdict, reason, job, cast(null as int), cast(null as string), cast(null as string), cast(null as int),
        cast(null as string), cast(null as string), cast(null as bigint), cast(null as string), cast(null as bigint),
        cast(null as bigint), cast(null as double), cast(null as bigint), ranks_of_job, cast(null as int)
    from jobs
    where job not in (select job from judged where verdict <> 'not found')
)
select *
from answers
order by
    case verdict when 'found' then 0 when 'not judged' then 1 else 2 end,
    bytes desc nulls last, job, rank nulls first, host, pid, layer, pool, place_key;
