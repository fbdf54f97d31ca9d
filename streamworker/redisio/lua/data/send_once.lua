-- uses: adding
-- Appends a record that has an id, unless a record of that id and key was appended within the window, or by
-- the same call.
--
-- KEYS  events (stream)  counts (hash)
--       once (string): the entry of the id, the call that appended it, if the window is short the time at which
--         it ends, and entries and calls of windows before
-- ARGV  call: its name, the same when it is repeated  window_ms (number)
--       limit (number): records that the partition may hold; 0 for no limit
--       fields...: of the entry, and values
-- reply [OK, id of the entry, 0, 1] | [DUP, id of the first entry, 0, whether something was written]
--       | [FULL, '', length] | [BADTYPE, key]
local known, before = redis.call('GET', once), ''
if known then
  local entry, its_call, ends, older = string.match(known, '^(%d+%-%d+) (%S+) ?(%d*)(.*)$')
  if not entry then return {'BADTYPE', once} end
  local mine = string.match(' ' .. entry .. ' ' .. its_call .. older .. ' ', ' (%d+%-%d+) ' .. call .. ' ')
  if mine or ends == '' or server_ms() < tonumber(ends) then
    -- WAIT covers the writes of this connection only. When memory is full, Redis refuses this one.
    local written = redis.pcall('SET', once, known, 'KEEPTTL')
    return {mine and 'OK' or 'DUP', mine or entry, 0, written.err and 0 or 1}
  end
  before = ' ' .. entry .. ' ' .. its_call .. (string.match(older, '^ %S+ %S+') or '')
end
local length = with_room(events, records_of(events), 1, limit)
if limit > 0 and length + 1 > limit then return {'FULL', '', length} end
local entry = redis.call('XADD', events, '*', unpack(ARGV, fields_at))
local ends = window_ms < REMEMBER_MS and ' ' .. text(server_ms() + window_ms) or ''
redis.call('SET', once, entry .. ' ' .. call .. ends .. before, 'PX', text(math.max(window_ms, REMEMBER_MS)))
return {'OK', entry, 0, 1}
