-- What differs between two versions, jobs or times? Before and after, by place.
--
-- Make the view that says what is compared, first; minutes are counted since the Unix epoch, and both ends belong to the side:
--   create or replace temporary view rollout_sides as
--   select 'before' as side, 'train-a' as job, 29921760 as from_minute, 29922359 as to_minute
--   union all select 'after', 'train-b', 29922360, 29922959;
-- A side may have several rows, which must not overlap. Take times at the same age of the jobs: a start holds less.
--
-- verdict                          grew, shrank, same; not judged, with its reason
-- reason                           why it is not judged
-- layer, pool                      where; layers nest, so never add them up
-- place                            file and function, without the line, so that changed code compares; null: the whole pool
-- bytes_before, bytes_after        mean live bytes for each process and device; a minute without the place counts as 0
-- difference_bytes                 after less before
-- process_minutes_before, process_minutes_after    minutes of processes and devices that the means are of
-- level                            highest level of the agent: from 1 on stacks are less exact
--
-- Grew, shrank: by 16 MiB and 5 % of the larger side. Of places only these are listed, of whole pools all.
-- Not judged: fewer than 60 minutes on a side.
with settings as (
    select 60 as least_minutes, 16777216 as least_bytes, cast(0.05 as double) as least_share
),
sides as (
    select side, job, from_minute, to_minute from rollout_sides
),
device_rows as (
    select s.side, d.layer, d.pool, d.epoch_minute, d.live_bytes, d.level
    from device_minute d
    join sides s on s.job = d.job and d.epoch_minute >= s.from_minute and d.epoch_minute <= s.to_minute
),
place_rows as (
    select s.side, m.layer, m.pool, m.place_key, m.live_bytes
    from place_minute m
    join sides s on s.job = m.job and m.epoch_minute >= s.from_minute and m.epoch_minute <= s.to_minute
),
-- A row for each process, device and minute of a pool, whether it holds something or not.
totals as (
    select
        layer, pool,
        sum(case when side = 'before' then live_bytes else 0 end) as sum_before,
        sum(case when side = 'after' then live_bytes else 0 end) as sum_after,
        sum(case when side = 'before' then 1 else 0 end) as process_minutes_before,
        sum(case when side = 'after' then 1 else 0 end) as process_minutes_after,
        count(distinct case when side = 'before' then epoch_minute end) as minutes_before,
        count(distinct case when side = 'after' then epoch_minute end) as minutes_after,
        max(level) as level
    from device_rows
    group by layer, pool
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
        layer, pool, place_key,
        sum(case when side = 'before' then live_bytes else 0 end) as sum_before,
        sum(case when side = 'after' then live_bytes else 0 end) as sum_after
    from place_rows
    group by layer, pool, place_key
),
by_place as (
    select
        b.layer, b.pool,
        coalesce(n.place, concat('place ', cast(b.place_key as string))) as place,
        sum(b.sum_before) as sum_before,
        sum(b.sum_after) as sum_after
    from by_key b
    left join named n on n.place_key = b.place_key
    group by b.layer, b.pool, coalesce(n.place, concat('place ', cast(b.place_key as string)))
),
sums as (
    select layer, pool, cast(null as string) as place, sum_before, sum_after from totals
    union all
    select layer, pool, place, sum_before, sum_after from by_place
),
means as (
    select
        t.layer, t.pool, s.place,
        case when t.process_minutes_before > 0
            then cast(s.sum_before as double) / t.process_minutes_before end as bytes_before,
        case when t.process_minutes_after > 0
            then cast(s.sum_after as double) / t.process_minutes_after end as bytes_after,
        t.process_minutes_before, t.process_minutes_after, t.minutes_before, t.minutes_after, t.level
    from sums s
    join totals t on t.layer = s.layer and t.pool = s.pool
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
            when minutes_before = 0 then 'no minutes before'
            when minutes_after = 0 then 'no minutes after'
            when minutes_before < least_minutes then 'fewer than 60 minutes before'
            when minutes_after < least_minutes then 'fewer than 60 minutes after'
        end as reason
    from means m
    cross join settings
),
answers as (
    select
        verdict, reason, layer, pool, place,
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
    difference_bytes desc nulls last, layer, pool, place;
