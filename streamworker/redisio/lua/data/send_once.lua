-- uses: adding
-- Appends a record that has an id, unless a record of that id and key was appended within the window, or by
-- the same call.
--
-- KEYS  1 events (stream)  2 seen (string): the entry of the id, the call that appended it, if the window is
--       short the time at which it ends, and entries and calls of windows before  3 counts (hash)
-- ARGV  1 name of this call, the same when it is repeated  2 window in ms
--       3 records that the partition may hold; 0 for no limit  4... the fields of the entry
-- reply [OK, id of the entry, 1] | [DUP, id of the first entry, whether something was written]
--       | [FULL, length] | [BADTYPE, key]
local events, seen = KEYS[1], KEYS[2]
local known, before = redis.call('GET', seen), ''
if known then
  local entry, call, ends, older = string.match(known, '^(%d+%-%d+) (%S+) ?(%d*)(.*)$')
  if not entry then return {'BADTYPE', seen} end
  local mine = string.match(' ' .. entry .. ' ' .. call .. older .. ' ', ' (%d+%-%d+) ' .. ARGV[1] .. ' ')
  if mine or ends == '' or server_ms() < tonumber(ends) then
    -- WAIT covers the writes of this connection only. When memory is full, Redis refuses this one.
    local written = redis.pcall('SET', seen, known, 'KEEPTTL')
    return {mine and 'OK' or 'DUP', mine or entry, written.err and 0 or 1}
  end
  before = ' ' .. entry .. ' ' .. call .. (string.match(older, '^ %S+ %S+') or '')
end
local limit = tonumber(ARGV[3])
local length = with_room(events, records_of(events), 1, limit)
if limit > 0 and length + 1 > limit then return {'FULL', length} end
local entry = redis.call('XADD', events, '*', unpack(ARGV, 4))
local window = tonumber(ARGV[2])
local ends = window < REMEMBER_MS and ' ' .. text(server_ms() + window) or ''
redis.call('SET', seen, entry .. ' ' .. ARGV[1] .. ends .. before, 'PX', text(math.max(window, REMEMBER_MS)))
return {'OK', entry, 1}
