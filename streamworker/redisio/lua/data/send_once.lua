-- uses: taking
-- Appends a record that has an id. Its marks are the names of calls: a call follows none, or one whose window has
-- ended. So a record is refused if another of that id and key was appended within the window. A call without a
-- record asks whether that is so, at a partition that takes nothing any more, and is answered SEALED if not.
--
-- KEYS  events (stream)  counts (hash)
--       once (string): the entry of the id, the call that appended it, if the window is short the time at which
--         it ends, and entries and calls of windows before
-- ARGV  call: its name, the same when it is repeated  window_ms (number)
--       limit (number): records that the partition may hold; 0 for no limit
--       records...: one, see parts/taking.lua, or none to ask
-- reply [OK | DUP, id of the entry, 0, whether something was written] | [OTHER, id of the first entry, 0, the same]
--       | [SEALED | FULL, '', length] | [BADTYPE, key]
local known = redis.call('GET', once)
local entry, stands, ends, older, mine = '', '', '', '', nil
if known then
  entry, stands, ends, older = string.match(known, '^(%d+%-%d+) (%S+) ?(%d*)(.*)$')
  if not entry then return {'BADTYPE', once} end
  mine = string.match(' ' .. entry .. ' ' .. stands .. older .. ' ', ' (%d+%-%d+) ' .. call .. ' ')
end
local is_free = ends ~= '' and server_ms() >= tonumber(ends)
local since, its = is_free and stands or '', mine and call or stands
if records_at > #ARGV and since == its and call ~= its then return {'SEALED', '', 0} end
local code, last, length = take(events, counts, since, call, its, nil, limit, records_at)
if code == 'DUP' or code == 'OTHER' then
  local written = redis.pcall('SET', once, known, 'KEEPTTL')  -- refused when memory is full
  return {code, mine or entry, 0, written.err and 0 or 1}
elseif code ~= 'OK' then
  return code.err and code or {code, '', length or 0}
end
local before = known and ' ' .. entry .. ' ' .. stands .. (string.match(older, '^ %S+ %S+') or '') or ''
local until_ms = window_ms < REMEMBER_MS and ' ' .. text(server_ms() + window_ms) or ''
redis.call('SET', once, last .. ' ' .. call .. until_ms .. before, 'PX', text(math.max(window_ms, REMEMBER_MS)))
return {code, last, 0, 1}
