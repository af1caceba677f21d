-- Which place of which rank grows steadily, while other ranks of the job do not?
--
-- verdict                    found; undecided or not judged, with its reason; not found: one row for a job in which nothing grows
-- reason                     what the verdict rests on
-- job, rank, host, pod, pid  the process; rank -1: unknown, rank null: most ranks, or the whole job
-- device_id, layer, pool     where; layers nest, so never add them up
-- place_key, place           where the blocks were allocated
-- bytes_per_minute           slope of live bytes over the minutes of this process
-- peers_bytes_per_minute     median slope of the ranks of the job with this pool; one without the place counts as 0
-- robust_z                   distance from that median, in spreads (1.4826 x median absolute deviation, 8 KiB a minute at least)
-- ranks                      ranks that were compared
-- minutes                    minutes with a figure
-- level                      highest level of the agent: from 1 on stacks are less exact
--
-- Grows steadily: at least 64 KiB a minute; the medians of the four quarters of its time each rise by a tenth of the whole rise, and the
-- slope of the last quarter is a quarter of the whole slope. A cache that has filled up fails this.
-- Found: steady, 64 KiB a minute and 6 spreads above the median. Rank null: the median itself is that high, and most ranks are steady.
-- Undecided: lost records of the host are as many as half of the added blocks (a lost free looks like growth), or peers differ as much.
-- Not judged: fewer than 30 minutes, fewer than 3 ranks, or a quarter without minutes.
-- A restarted process has another pid, and is judged on its own.
with settings as (
    select
        30 as least_minutes,
        3 as least_ranks,
        65536 as least_bytes_per_minute,
        8192 as least_spread,
        6 as least_z,
        cast(0.1 as double) as least_rise,
        cast(0.25 as double) as least_late_slope
),
series as (
    select
        job, rank, host, pod, pid, device_id, layer, pool, place_key,
        count(*) as minutes,
        min(epoch_minute) as first_minute,
        max(epoch_minute) as last_minute,
        coalesce(regr_slope(cast(live_bytes as double), cast(epoch_minute as double)), 0) as slope,
        max(live_blocks) - min(live_blocks) as added_blocks,
        max(level) as level
    from place_minute
    where live_bytes > 0
    group by job, rank, host, pod, pid, device_id, layer, pool, place_key
),
processes as (
    select
        job, rank, host, pod, pid, layer, pool,
        max(minutes) as minutes,
        case when rank >= 0 then cast(rank as string) else concat(host, ' ', cast(pid as string)) end as member
    from series
    group by job, rank, host, pod, pid, layer, pool
),
-- Of a process with several devices, the one that grows fastest.
numbered as (
    select
        series.*,
        row_number() over (
            partition by job, rank, host, pod, pid, layer, pool, place_key order by slope desc, device_id
        ) as number
    from series
),
fastest as (
    select * from numbered where number = 1
),
growing as (
    select fastest.* from fastest cross join settings where slope >= least_bytes_per_minute
),
growing_places as (
    select distinct job, layer, pool, place_key from growing
),
-- A rank has one slope, the fastest of its processes.
slopes as (
    select
        g.job, g.layer, g.pool, g.place_key, p.member,
        max(case when f.minutes >= s.least_minutes then f.slope else cast(0 as double) end) as slope
    from growing_places g
    cross join settings s
    join processes p on p.job = g.job and p.layer = g.layer and p.pool = g.pool and p.minutes >= s.least_minutes
    left join fastest f
        on f.job = p.job and f.rank = p.rank and f.host = p.host and f.pod = p.pod and f.pid = p.pid
        and f.layer = p.layer and f.pool = p.pool and f.place_key = g.place_key
    group by g.job, g.layer, g.pool, g.place_key, p.member
),
medians as (
    select
        job, layer, pool, place_key,
        median(slope) as slope,
        count(*) as ranks
    from slopes
    group by job, layer, pool, place_key
),
spreads as (
    select
        slopes.job, slopes.layer, slopes.pool, slopes.place_key,
        1.4826 * median(abs(slopes.slope - medians.slope)) as spread
    from slopes
    join medians
        on medians.job = slopes.job and medians.layer = slopes.layer and medians.pool = slopes.pool
        and medians.place_key = slopes.place_key
    group by slopes.job, slopes.layer, slopes.pool, slopes.place_key
),
quartered as (
    select
        m.job, m.rank, m.host, m.pod, m.pid, m.device_id, m.layer, m.pool, m.place_key, m.epoch_minute, m.live_bytes,
        floor(4 * cast(m.epoch_minute - g.first_minute as double) / (g.last_minute - g.first_minute + 1)) as quarter
    from place_minute m
    join growing g
        on g.job = m.job and g.rank = m.rank and g.host = m.host and g.pod = m.pod and g.pid = m.pid
        and g.device_id = m.device_id and g.layer = m.layer and g.pool = m.pool and g.place_key = m.place_key
    where m.live_bytes > 0
),
quarters as (
    select
        job, rank, host, pod, pid, device_id, layer, pool, place_key,
        median(case when quarter = 0 then live_bytes end) as first_bytes,
        median(case when quarter = 1 then live_bytes end) as second_bytes,
        median(case when quarter = 2 then live_bytes end) as third_bytes,
        median(case when quarter = 3 then live_bytes end) as last_bytes,
        coalesce(regr_slope(
            case when quarter = 3 then cast(live_bytes as double) end,
            case when quarter = 3 then cast(epoch_minute as double) end
        ), 0) as late_slope
    from quartered
    group by job, rank, host, pod, pid, device_id, layer, pool, place_key
),
host_losses as (
    select host, epoch_minute, max(lost) as lost
    from device_minute
    where lost > 0
    group by host, epoch_minute
),
losses as (
    select g.host, g.first_minute, g.last_minute, sum(l.lost) as lost
    from (select distinct host, first_minute, last_minute from growing) g
    join host_losses l
        on l.host = g.host and l.epoch_minute >= g.first_minute and l.epoch_minute <= g.last_minute
    group by g.host, g.first_minute, g.last_minute
),
candidates as (
    select
        g.*,
        m.slope as median_slope,
        coalesce(m.ranks, 0) as ranks,
        (g.slope - m.slope) / greatest(sp.spread, cast(s.least_spread as double)) as z,
        q.first_bytes is null or q.second_bytes is null or q.third_bytes is null or q.last_bytes is null as has_gap,
        q.last_bytes > q.first_bytes
            and least(q.second_bytes - q.first_bytes, q.third_bytes - q.second_bytes, q.last_bytes - q.third_bytes)
                >= s.least_rise * (q.last_bytes - q.first_bytes)
            and q.late_slope >= s.least_late_slope * g.slope as is_steady,
        2 * coalesce(l.lost, 0) >= g.added_blocks and coalesce(l.lost, 0) > 0 as may_be_loss
    from growing g
    cross join settings s
    join quarters q
        on q.job = g.job and q.rank = g.rank and q.host = g.host and q.pod = g.pod and q.pid = g.pid
        and q.device_id = g.device_id and q.layer = g.layer and q.pool = g.pool and q.place_key = g.place_key
    left join medians m
        on m.job = g.job and m.layer = g.layer and m.pool = g.pool and m.place_key = g.place_key
    left join spreads sp
        on sp.job = g.job and sp.layer = g.layer and sp.pool = g.pool and sp.place_key = g.place_key
    left join losses l
        on l.host = g.host and l.first_minute = g.first_minute and l.last_minute = g.last_minute
),
steady as (
    select
        job, layer, pool, place_key,
        count(distinct case when is_steady then member end) as ranks,
        count(distinct case when is_steady and not may_be_loss then member end) as sure_ranks
    from (
        select
            c.*,
            case when rank >= 0 then cast(rank as string) else concat(host, ' ', cast(pid as string)) end as member
        from candidates c
        cross join settings
        where minutes >= least_minutes
    ) members
    group by job, layer, pool, place_key
),
compared as (
    select c.*, 2 * t.ranks > c.ranks as most_grow, 2 * t.sure_ranks > c.ranks as most_surely_grow
    from candidates c
    left join steady t on t.job = c.job and t.layer = c.layer and t.pool = c.pool and t.place_key = c.place_key
),
judged as (
    select
        c.*,
        case
            when minutes < least_minutes or has_gap or (is_steady and ranks < least_ranks) then 'not judged'
            when not is_steady then 'not found'
            when most_grow and median_slope >= least_bytes_per_minute and z < least_z then 'as peers'
            when may_be_loss then 'undecided'
            when slope - median_slope >= least_bytes_per_minute and z >= least_z then 'found'
            else 'undecided'
        end as verdict,
        case
            when minutes < least_minutes then 'fewer than 30 minutes'
            when has_gap then 'a quarter without minutes'
            when is_steady and ranks < least_ranks then 'fewer than 3 ranks'
            when may_be_loss then 'records lost'
            when slope - median_slope >= least_bytes_per_minute and z >= least_z then 'this rank'
            else 'peers differ as much'
        end as reason
    from compared c
    cross join settings
),
most as (
    select
        j.job, j.layer, j.pool, j.place_key,
        max(j.median_slope) as slope,
        max(j.ranks) as ranks,
        max(j.minutes) as minutes,
        max(j.level) as level,
        max(case when j.most_surely_grow then 1 else 0 end) = 1 as is_sure
    from judged j
    cross join settings s
    where j.most_grow and j.minutes >= s.least_minutes and j.ranks >= s.least_ranks and j.median_slope >= s.least_bytes_per_minute
    group by j.job, j.layer, j.pool, j.place_key
),
listed as (
    select
        verdict, reason, job, rank, host, pod, pid, device_id, layer, pool, place_key,
        slope, median_slope, z, ranks, minutes, level
    from judged
    where verdict in ('found', 'undecided', 'not judged')
    union all
    select
        case when is_sure then 'found' else 'undecided' end,
        case when is_sure then 'most ranks' else 'records lost' end,
        job, cast(null as int), cast(null as string), cast(null as string), cast(null as int), cast(null as int), layer, pool,
        place_key, slope, slope, cast(null as double), ranks, minutes, level
    from most
),
jobs as (
    select
        p.job,
        case when max(p.minutes) < max(s.least_minutes) then 'not judged' else 'not found' end as verdict,
        case when max(p.minutes) < max(s.least_minutes) then 'fewer than 30 minutes' else 'nothing grows steadily' end as reason,
        count(distinct p.member) as ranks,
        max(p.minutes) as minutes
    from processes p
    cross join settings s
    group by p.job
),
named as (
    select place_key, min(place) as place from places group by place_key
),
answers as (
    select
        l.verdict, l.reason, l.job, l.rank, l.host, l.pod, l.pid, l.device_id, l.layer, l.pool, l.place_key, n.place,
        cast(round(l.slope) as bigint) as bytes_per_minute,
        cast(round(l.median_slope) as bigint) as peers_bytes_per_minute,
        round(l.z, 1) as robust_z,
        l.ranks, l.minutes, l.level
    from listed l
    left join named n on n.place_key = l.place_key
    union all
    select
        j.verdict, j.reason, j.job, cast(null as int), cast(null as string), cast(null as string), cast(null as int),
        cast(null as int), cast(null as string), cast(null as string), cast(null as bigint), cast(null as string),
        cast(null as bigint), cast(null as bigint), cast(null as double), j.ranks, j.minutes, cast(null as int)
    from jobs j
    where j.job not in (select job from listed)
)
select *
from answers
order by
    case verdict when 'found' then 0 when 'undecided' then 1 when 'not judged' then 2 else 3 end,
    bytes_per_minute desc nulls last, job, rank nulls first, host, pid, layer, pool, place_key
