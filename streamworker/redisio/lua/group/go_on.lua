-- uses: groups
-- Lets a partition go on behind the end of its archive, which may be above its last id: a failover has lost the
-- tail of what was archived, or the server is a new one. No id is then given a second time. It may be repeated.
--
-- KEYS  lock (hash)  events (stream)  counts (hash)
-- ARGV  last: the id at the end of the archive  total (number): records that the stream had up to there
--       before (number): records that it had before the first one in the archive
-- reply [OK] | [BADTYPE, key]
redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
redis.call('HSET', lock, 'before', text(before))
if redis.call('EXISTS', events) == 0 then return {'OK'} end
local stands, added, length, _, _, is_sealed = stream_position(events)
if is_sealed or not id_less(stands, last) then return {'OK'} end
-- Redis counts entries: what it counts too little are records that are here no more.
local lacks = math.max(0, total - records_added(events, added))
redis.call('XSETID', events, last, 'ENTRIESADDED', text(added + lacks))
note_dropped(events, added + lacks, length)
return {'OK'}
