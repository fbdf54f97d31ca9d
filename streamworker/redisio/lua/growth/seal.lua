-- uses: groups
-- Seals a partition: it takes nothing any more, from nobody. Its last id becomes the highest one there is, so that
-- Redis itself refuses each XADD, also those of programs that know nothing of seals. A note says which id was the
-- last, and which map of the stream's partitions follows, so that a map that a failover lost is known. Another says
-- when that was: timers ran here until then.
--
-- A call that is repeated writes the note again, since WAIT covers the writes of its own connection only. Where
-- the key was deleted and made anew by another program, the partition is sealed at its present end.
--
-- KEYS  events (stream)  counts (hash)  groups (hash)
-- ARGV  map: the one that follows, such as '8+12'
-- reply [OK, last id before the seal, names of the groups that are listed, the server's ms] | [BADTYPE, key]
local last, added, _, _, _, is_sealed = stream_position(events)
local known = redis.call('HGET', counts, 'sealed')
if is_sealed and known then
  redis.call('HSET', counts, 'sealed', known)
else
  if last == '0-0' then
    -- XDEL would need a right that workers lack. XSETID takes a stream that is there only.
    redis.call('XADD', events, '0-1', 'v', '')
    redis.call('XTRIM', events, 'MAXLEN', '0')
  end
  redis.call('HSET', counts, 'sealed', last .. ' ' .. map, 'sealed_at', text(server_ms()))
  redis.call('XSETID', events, TOP, 'ENTRIESADDED', text(added))
end
return {'OK', last, redis.call('HKEYS', groups), server_ms()}
