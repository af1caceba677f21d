-- What holds more, or less, than a week ago? The last 24 hours against the same 24 hours of the week before.
--
-- The last hours end with the newest minute of all hosts. Views need both days: 8 days.
--
-- verdict                          grew, shrank, same; not judged, with its reason
-- reason                           why it is not judged
-- job, layer, pool                 where; layers nest, so never add them up
-- place                            file and function, without the line, so that changed code compares; null: the whole pool
-- bytes_before, bytes_after        mean live bytes for each process and device; a minute without the place counts as 0
-- difference_bytes                 after less before
-- process_minutes_before, process_minutes_after    minutes of processes and devices that the means are of
-- level                            highest level of the agent: from 1 on stacks are less exact
--
-- Grew, shrank: by 16 MiB and 5 % of the larger side. Of places only these are listed, of whole pools all.
-- Not judged: fewer than 60 minutes on a side; jobs that have ended are left out.
with settings as (
    select 60 as least_minutes, 16777216 as least_bytes, cast(0.05 as double) as least_share, 1440 as window_minutes, 10080 as week_minutes
),
newest as (
    select max(epoch_minute) as last_minute from device_minute
),
sides as (
    select 'after' as side, last_minute - window_minutes + 1 as from_minute, last_minute as to_minute
    from newest cross join settings
    union all
    select 'before', last_minute - week_minutes - window_minutes + 1, last_minute - week_minutes
    from newest cross join settings
),
device_rows as (
    select s.side, d.job, d.layer, d.pool, d.epoch_minute, d.live_bytes, d.level
    from device_minute d
    join sides s on d.epoch_minute >= s.from_minute and d.epoch_minute <= s.to_minute
),
place_rows as (
    select s.side, m.job, m.layer, m.pool, m.place_key, m.live_bytes
    from place_minute m
    join sides s on m.epoch_minute >= s.from_minute and m.epoch_minute <= s.to_minute
),
-- A row for each process, device and minute of a pool, whether it holds something or not.
totals as (
    select
        job, layer, pool,
        sum(case when side = 'before' then live_bytes else 0 end) as sum_before,
        sum(case when side = 'after' then live_bytes else 0 end) as sum_after,
        sum(case when side = 'before' then 1 else 0 end) as process_minutes_before,
        sum(case when side = 'after' then 1 else 0 end) as process_minutes_after,
        count(distinct case when side = 'before' then epoch_minute end) as minutes_before,
        count(distinct case when side = 'after' then epoch_minute end) as minutes_after,
        max(level) as level
    from device_rows
    group by job, layer, pool
),
-- Python: `file:line function`. (?s): a name may have any character.
named as (
    select
        place_key,
        coalesce(
            nullif(concat(
                regexp_extract(min(place), '(?s)^(.*?):[0-9]+ ', 1),
                regexp_extract(min(place), '(?s)^.*?:[0-9]+( .*)$', 1)
            ), ''),
            min(place)
        ) as place
    from places
    group by place_key
),
by_key as (
    select
        job, layer, pool, place_key,
        sum(case when side = 'before' then live_bytes else 0 end) as sum_before,
        sum(case when side = 'after' then live_bytes else 0 end) as sum_after
    from place_rows
    group by job, layer, pool, place_key
),
by_place as (
    select
        b.job, b.layer, b.pool,
        coalesce(n.place, concat('place ', cast(b.place_key as string))) as place,
        sum(b.sum_before) as sum_before,
        sum(b.sum_after) as sum_after
    from by_key b
    left join named n on n.place_key = b.place_key
    group by b.job, b.layer, b.pool, coalesce(n.place, concat('place ', cast(b.place_key as string)))
),
sums as (
    select job, layer, pool, cast(null as string) as place, sum_before, sum_after from totals
    union all
    select job, layer, pool, place, sum_before, sum_after from by_place
),
means as (
    select
        t.job, t.layer, t.pool, s.place,
        case when t.process_minutes_before > 0
            then cast(s.sum_before as double) / t.process_minutes_before end as bytes_before,
        case when t.process_minutes_after > 0
            then cast(s.sum_after as double) / t.process_minutes_after end as bytes_after,
        t.process_minutes_before, t.process_minutes_after, t.minutes_before, t.minutes_after, t.level
    from sums s
    join totals t on t.job = s.job and t.layer = s.layer and t.pool = s.pool
    where t.minutes_after > 0
),
judged as (
    select
        m.*,
        case
            when minutes_before < least_minutes or minutes_after < least_minutes then 'not judged'
            when abs(bytes_after - bytes_before) < greatest(least_bytes, least_share * greatest(bytes_before, bytes_after))
                then 'same'
            when bytes_after > bytes_before then 'grew'
            else 'shrank'
        end as verdict,
        case
            when minutes_before = 0 then 'no minutes a week ago'
            when minutes_after = 0 then 'no minutes after'
            when minutes_before < least_minutes then 'fewer than 60 minutes a week ago'
            when minutes_after < least_minutes then 'fewer than 60 minutes now'
        end as reason
    from means m
    cross join settings
),
answers as (
    select
        verdict, reason, job, layer, pool, place,
        cast(round(bytes_before) as bigint) as bytes_before,
        cast(round(bytes_after) as bigint) as bytes_after,
        cast(round(bytes_after - bytes_before) as bigint) as difference_bytes,
        process_minutes_before, process_minutes_after, level
    from judged
    where place is null or verdict in ('grew', 'shrank')
)
select *
from answers
order by
    case when place is null then 0 else 1 end, case verdict when 'not judged' then 1 else 0 end,
    difference_bytes desc nulls last, job, layer, pool, place;
