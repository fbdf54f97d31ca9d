-- uses: adding
-- Appends a record that has an id, unless a record of that id and key was appended within the window.
--
-- KEYS  1 events (stream)  2 seen (string): the entry of the id, and the call that appended it  3 counts (hash)
-- ARGV  1 name of this call, the same when it is repeated  2 window in ms
--       3 records that the partition may hold; 0 for no limit  4... the fields of the entry
-- reply [OK, id of the entry, 1] | [DUP, id of the first entry, whether something was written]
--       | [FULL, length] | [BADTYPE, key]
local events, seen = KEYS[1], KEYS[2]
local known = redis.call('GET', seen)
if known then
  local entry, call = string.match(known, '^(%d+%-%d+) (.*)$')
  if not entry then return {'BADTYPE', seen} end
  -- WAIT covers the writes of this connection only. When memory is full, Redis refuses this one.
  local written = redis.pcall('SET', seen, known, 'KEEPTTL')
  return {call == ARGV[1] and 'OK' or 'DUP', entry, written.err and 0 or 1}
end
local limit = tonumber(ARGV[3])
local length = with_room(events, records_of(events), 1, limit)
if limit > 0 and length + 1 > limit then return {'FULL', length} end
local entry = redis.call('XADD', events, '*', unpack(ARGV, 4))
redis.call('SET', seen, entry .. ' ' .. ARGV[1], 'PX', ARGV[2])
return {'OK', entry, 1}
