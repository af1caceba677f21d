-- How far can the other answers be trusted? Gaps, losses and levels of each host.
--
-- verdict              found: something is missing; not found: nothing is; not judged: fewer than 10 minutes
-- host                 the host
-- first_minute, last_minute    its minutes, since the Unix epoch
-- missing_minutes      minutes between these without a row: the agent was off, or no process used an NPU
-- minutes_behind       minutes from its last one to the newest of all hosts
-- lost                 records that the agent lost: live bytes may be too high or too low
-- minutes_with_loss    in how many minutes
-- degraded_minutes     minutes at level 1 or higher: stacks are less exact, from level 3 on processes are left out
-- level                highest level
-- untracked_share      bytes in no place, of what pools say they have handed out, in its last minute (null: no pool says so)
with minutes as (
    select
        host, epoch_minute,
        max(lost) as lost,
        max(level) as level,
        sum(case when used_bytes is not null then untracked_bytes else 0 end) as untracked_bytes,
        sum(used_bytes) as used_bytes
    from device_minute
    group by host, epoch_minute
),
hosts as (
    select
        host,
        min(epoch_minute) as first_minute,
        max(epoch_minute) as last_minute,
        count(*) as minutes,
        sum(lost) as lost,
        sum(case when lost > 0 then 1 else 0 end) as minutes_with_loss,
        sum(case when level > 0 then 1 else 0 end) as degraded_minutes,
        max(level) as level
    from minutes
    group by host
),
fleet as (
    select max(last_minute) as last_minute from hosts
),
figures as (
    select
        h.host, h.first_minute, h.last_minute,
        cast(h.last_minute - h.first_minute + 1 - h.minutes as bigint) as missing_minutes,
        f.last_minute - h.last_minute as minutes_behind,
        cast(h.lost as bigint) as lost,
        cast(h.minutes_with_loss as bigint) as minutes_with_loss,
        cast(h.degraded_minutes as bigint) as degraded_minutes,
        h.level,
        case when m.used_bytes > 0 then round(cast(m.untracked_bytes as double) / m.used_bytes, 3) end as untracked_share,
        h.minutes
    from hosts h
    cross join fleet f
    join minutes m on m.host = h.host and m.epoch_minute = h.last_minute
),
judged as (
    select
        case
            when minutes < 10 then 'not judged'
            when missing_minutes > 0 or minutes_behind > 60 or lost > 0 or degraded_minutes > 0 or untracked_share > 0.1
                then 'found'
            else 'not found'
        end as verdict,
        host, first_minute, last_minute, missing_minutes, minutes_behind, lost, minutes_with_loss, degraded_minutes, level,
        untracked_share
    from figures
)
select *
from judged
order by
    case verdict when 'found' then 0 when 'not judged' then 1 else 2 end, lost desc, missing_minutes desc, host;
