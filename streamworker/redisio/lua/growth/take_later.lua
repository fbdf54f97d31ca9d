-- uses: later
-- Takes what leave_later.lua gives: a scheduled record, or what is known of one that was sent or cancelled. It stays as
-- it is here if this id is known here already, by an earlier try or because another record of it waits or was sent.
-- An earlier try may be older than what comes now, since a program of an earlier release may have changed that
-- meanwhile; a record that waits as that try left it gives way.
--
-- KEYS  later (zset)  delayed (hash)  counts (hash)
-- ARGV  id  at: when it is due, or forgotten
--       known: what was known of it
--       read_ms (number): when it was read; a record that was sent since may be forgotten after an hour
-- reply [OK | SEALED | OTHER if it was read too long ago, '', 0] | [BADTYPE, key]
if redis.call('HMGET', counts, 'sealed')[1] then return {'SEALED', '', 0} end
local now = server_ms()
if now > read_ms + REMEMBER_MS - 600000 then return {'OTHER', '', 0} end
local state, calls, due, rest = later_of(delayed, id)
local theirs = string.match(known, '^%a (%S+) ')
if not theirs then return {'BADTYPE', delayed} end
local is_here = was_made(calls, string.match(theirs, '^[^,]+'))
local is_older = state == 'w' and was_made(theirs, string.match(calls, '^[^,]+'))
if not is_here and (is_older or is_free(later, id, state, rest, now)) then
  redis.call('HSET', delayed, id, known)
  redis.call('ZADD', later, at, id)
else
  -- WAIT covers the writes of this connection only, so this writes, too.
  redis.call('HSET', delayed, id, table.concat({state, calls, due, rest}, ' '))
end
return {'OK', '', 0}
