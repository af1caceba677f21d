-- Which place of which rank grows steadily, while other ranks of the job do not?
--
-- verdict                    found; undecided or not judged, with its reason; not found: one row for a job in which nothing grows
-- reason                     what the verdict rests on
-- job, rank, host, pod, pid  the process; rank -1: unknown, rank null: most ranks, or the whole job
-- device_id, layer, pool     where; layers nest, so never add them up
-- place_key, place           where the blocks were allocated
-- bytes_per_minute           slope of live bytes over the minutes of this process
-- peers_bytes_per_minute     median slope of the ranks with this place; 0 where most ranks with this pool do not have it
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
        case when rank >= 0 then cast(rank as string) else concat(host, ' ', cast(pid as string)) end as member,
        count(*) as minutes,
        min(epoch_minute) as first_minute,
        max(epoch_minute) as last_minute,
        -- A single minute has none: DuckDB says NaN there.
        case
            when min(epoch_minute) < max(epoch_minute)
                then coalesce(regr_slope(cast(live_bytes as double), cast(epoch_minute as double)), 0)
            else 0
        end as slope,
        max(live_blocks) - min(live_blocks) as added_blocks,
        max(level) as level
    from place_minute
    where live_bytes > 0
    group by job, rank, host, pod, pid, device_id, layer, pool, place_key
),
jobs as (
    select
        job,
        case when max(minutes) < max(least_minutes) then 'not judged' else 'not found' end as verdict,
        case when max(minutes) < max(least_minutes) then 'fewer than 30 minutes' else 'nothing grows steadily' end as reason,
        count(distinct member) as ranks,
        max(minutes) as minutes
    from series
    cross join settings
    group by job
),
-- Of a process with several devices, the one that grows fastest at a place.
numbered as (
    select
        series.*,
        max(minutes) over (partition by job, layer, pool, member) as member_minutes,
        row_number() over (
            partition by job, rank, host, pod, pid, layer, pool, place_key order by slope desc, device_id
        ) as number
    from series
),
-- Of a rank with several processes, the one that grows fastest is compared with other ranks.
members as (
    select
        n.*,
        dense_rank() over (
            partition by job, layer, pool, case when member_minutes >= least_minutes then 1 else 0 end order by member
        ) as member_number,
        row_number() over (
            partition by job, layer, pool, place_key, member
            order by case when minutes >= least_minutes then 0 else 1 end, slope desc, host, pid
        ) as number_of_member
    from numbered n
    cross join settings
    where number = 1
),
slopes as (
    select
        m.*,
        max(case when member_minutes >= least_minutes then member_number else 0 end) over (partition by job, layer, pool) as ranks,
        case when number_of_member = 1 and minutes >= least_minutes then slope end as member_slope
    from members m
    cross join settings
),
medians as (
    select
        s.*,
        2 * count(member_slope) over (partition by job, layer, pool, place_key) < ranks as is_rare,
        median(member_slope) over (partition by job, layer, pool, place_key) as median_of_holders
    from slopes s
),
deviations as (
    select
        m.*,
        case when is_rare then cast(0 as double) else median_of_holders end as median_slope,
        abs(member_slope - median_of_holders) as deviation
    from medians m
),
spreads as (
    select
        d.*,
        case when is_rare then cast(0 as double)
            else 1.4826 * median(deviation) over (partition by job, layer, pool, place_key) end as spread
    from deviations d
),
growing as (
    select s.*, (slope - median_slope) / greatest(spread, cast(least_spread as double)) as z
    from spreads s
    cross join settings
    where slope >= least_bytes_per_minute
),
quartered as (
    select
        g.*,
        m.epoch_minute, m.live_bytes,
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
        max(member) as member, max(minutes) as minutes, max(first_minute) as first_minute, max(last_minute) as last_minute,
        max(slope) as slope, max(added_blocks) as added_blocks, max(level) as level, max(ranks) as ranks,
        max(median_slope) as median_slope, max(z) as z,
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
-- Lost records are of a host: each of its rows of a minute has the same number.
losses as (
    select host, epoch_minute, max(lost) as lost
    from device_minute
    where lost > 0
    group by host, epoch_minute
),
candidates as (
    select
        q.job, q.rank, q.host, q.pod, q.pid, q.device_id, q.layer, q.pool, q.place_key,
        max(q.member) as member, max(q.minutes) as minutes, max(q.slope) as slope, max(q.level) as level, max(q.ranks) as ranks,
        max(q.median_slope) as median_slope, max(q.z) as z, max(q.late_slope) as late_slope,
        max(q.first_bytes) as first_bytes, max(q.second_bytes) as second_bytes, max(q.third_bytes) as third_bytes,
        max(q.last_bytes) as last_bytes,
        coalesce(sum(l.lost), 0) > 0 and 2 * coalesce(sum(l.lost), 0) >= max(q.added_blocks) as may_be_loss
    from quarters q
    left join losses l on l.host = q.host and l.epoch_minute >= q.first_minute and l.epoch_minute <= q.last_minute
    group by q.job, q.rank, q.host, q.pod, q.pid, q.device_id, q.layer, q.pool, q.place_key
),
steady as (
    select
        c.*,
        first_bytes is null or second_bytes is null or third_bytes is null or last_bytes is null as has_gap,
        minutes >= least_minutes and last_bytes > first_bytes
            and least(second_bytes - first_bytes, third_bytes - second_bytes, last_bytes - third_bytes)
                >= least_rise * (last_bytes - first_bytes)
            and late_slope >= least_late_slope * slope as is_steady
    from candidates c
    cross join settings
),
-- The first row of a rank stands for it.
first_rows as (
    select
        s.*,
        row_number() over (
            partition by job, layer, pool, place_key, member
            order by case when is_steady then 0 else 1 end, case when may_be_loss then 1 else 0 end, host, pid
        ) as number_of_member,
        row_number() over (
            partition by job, layer, pool, place_key order by minutes desc, rank, host, pid
        ) as number
    from steady s
),
counted as (
    select
        f.*,
        median_slope >= least_bytes_per_minute and 2 * sum(
            case when number_of_member = 1 and is_steady then 1 else 0 end
        ) over (partition by job, layer, pool, place_key) > ranks as most_grow,
        2 * sum(
            case when number_of_member = 1 and is_steady and not may_be_loss then 1 else 0 end
        ) over (partition by job, layer, pool, place_key) > ranks as most_surely_grow,
        max(level) over (partition by job, layer, pool, place_key) as level_of_all
    from first_rows f
    cross join settings
),
judged as (
    select
        c.*,
        most_grow and ranks >= least_ranks and number = 1 as is_of_most,
        case
            when minutes < least_minutes or has_gap or (is_steady and ranks < least_ranks) then 'not judged'
            when not is_steady then 'not found'
            when most_grow and z < least_z then 'as most'
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
    from counted c
    cross join settings
),
kinds as (
    select 'rank' as kind union all select 'most' as kind
),
listed as (
    select
        case when kind = 'rank' then verdict when most_surely_grow then 'found' else 'undecided' end as verdict,
        case when kind = 'rank' then reason when most_surely_grow then 'most ranks' else 'records lost' end as reason,
        job,
        case when kind = 'rank' then rank end as rank,
        case when kind = 'rank' then host end as host,
        case when kind = 'rank' then pod end as pod,
        case when kind = 'rank' then pid end as pid,
        case when kind = 'rank' then device_id end as device_id,
        layer, pool, place_key,
        case when kind = 'rank' then slope else median_slope end as slope,
        median_slope,
        case when kind = 'rank' then z end as z,
        ranks, minutes,
        case when kind = 'rank' then level else level_of_all end as level
    from judged
    cross join kinds
    where (kind = 'rank' and verdict in ('found', 'undecided', 'not judged')) or (kind = 'most' and is_of_most)
),
named as (
    select place_key, min(place) as place from places group by place_key
),
answers as (
    select
        coalesce(l.verdict, j.verdict) as verdict,
        coalesce(l.reason, j.reason) as reason,
        j.job, l.rank, l.host, l.pod, l.pid, l.device_id, l.layer, l.pool, l.place_key, n.place,
        cast(round(l.slope) as bigint) as bytes_per_minute,
        cast(round(l.median_slope) as bigint) as peers_bytes_per_minute,
        round(l.z, 1) as robust_z,
        coalesce(l.ranks, j.ranks) as ranks,
        coalesce(l.minutes, j.minutes) as minutes,
        l.level
    from jobs j
    left join listed l on l.job = j.job
    left join named n on n.place_key = l.place_key
)
select *
from answers
order by
    case verdict when 'found' then 0 when 'undecided' then 1 when 'not judged' then 2 else 3 end,
    bytes_per_minute desc nulls last, job, rank nulls first, host, pid, layer, pool, place_key;
