-- Makes few large files of the many small ones of the days that the views have. Read it after duckdb.sql, with one more setting:
--   set variable compact = '/data/evidence-days';     another folder, which gets a `v1` of the same layout
-- Do it once a day for yesterday, two hours after midnight UTC or later: until that time agents write the last hour. The same day again replaces
-- its files. Then remove the day from the first folder, or keep it as long as you like; never query both at once.
-- Of places a row for each key and day stays; all other rows stay as they are.
copy (select * from place_minute order by rank, device_id, place_key, epoch_minute)
    to (getvariable('compact') || '/v1/place_minute')
    (format parquet, compression zstd, partition_by (date, hour), filename_pattern 'day-{i}', overwrite_or_ignore);
copy (select * from device_minute order by rank, device_id, epoch_minute)
    to (getvariable('compact') || '/v1/device_minute')
    (format parquet, compression zstd, partition_by (date, hour), filename_pattern 'day-{i}', overwrite_or_ignore);
copy (select place_key, min(kind) as kind, min(place) as place, min(frames) as frames, min(host) as host, date, 0 as hour
        from places group by place_key, date)
    to (getvariable('compact') || '/v1/places')
    (format parquet, compression zstd, partition_by (date, hour), filename_pattern 'day-{i}', overwrite_or_ignore);
copy (select * from failures order by time_ns)
    to (getvariable('compact') || '/v1/failures')
    (format parquet, compression zstd, partition_by (date, hour), filename_pattern 'day-{i}', overwrite_or_ignore);
