-- uses: groups
-- Lets a partition go on behind the end of its archive, which may be above its last id: a failover has lost the
-- tail of what was archived, or the server is a new one. No id is then given a second time. It may be repeated.
--
-- KEYS  lock (hash)  events (stream)  counts (hash)
-- ARGV  last: the id at the end of the archive  total (number): records that the stream had up to there
--       before (number): records that it had before the first one in the archive
-- reply [OK] | [BADTYPE, key]
local stands, added, length, first, newest, is_sealed = stream_position(events)
local is_open = redis.call('EXISTS', events) == 1 and not is_sealed
local is_behind = is_open and id_less(stands, last)
-- Redis counts entries: what it counts too little are records that are here no more. It may have taken others since.
local left, is_more = left_behind(events, last, newest, length, first)
local lacks = is_open and math.max(0, total + (is_more and 0 or left) - records_added(events, added)) or 0
if lacks > 2 ^ 53 then return {'BADTYPE', counts} end
redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
redis.call('HSET', lock, 'before', text(before))
if is_behind or lacks > 0 then
  -- Nobody has deleted what a group has not counted of these.
  for _, name in ipairs(redis.pcall('HKEYS', groups_key(events))) do
    local its = beside(events, 'lock:' .. name)
    if redis.call('EXISTS', its) == 1 then redis.pcall('HSET', its, 'cold', last) end
  end
  redis.call('XSETID', events, is_behind and last or stands, 'ENTRIESADDED', text(added + lacks))
  note_dropped(events, added + lacks, length)
end
return {'OK'}
