-- uses: trim
-- Appends entries of one producer to a partition, all or none. A send that is repeated after a lost answer
-- has the same number and writes nothing. A producer has at most two sends in progress, and the second
-- names the number that it follows. The script refuses the second if that number is not the last one
-- written, so that no send overtakes another, even if the first fails. Redis stores the last two sends,
-- and answers repeats of both from that. A send with a lower number is no longer awaited, written or not:
-- it writes nothing, and the answer says nothing about it.
--
-- The records get consecutive ids: the same milliseconds, and consecutive sequence numbers. An entry has the
-- id of its last record. If the first entry of an append holds one record, Redis chooses its id. If it holds
-- many, as an entry of columns does, the script chooses it, for which it needs no right to read the stream:
-- the sequence numbers begin at a multiple of 10^9 that grows with the microsecond, so they are above all that
-- Redis gives in that millisecond. The id must also be above the last one that was chosen so, and XADD accepts
-- it only above the last id of the stream. If the clock has gone back, the script tries later milliseconds.
--
-- KEYS  1 events (stream)  2 producer (string): number of its last send, last id of that, number of
--       the send before, and of this one too the last id and the number before  3 counts (hash)
-- ARGV  1 number of this send  2 number of the send that it follows; '' for any
--       3 records that the partition may hold; 0 for no limit  4 number of records
--       5 'v': a payload for each record; 'f': for each record the number of its fields and values, and
--       these; 'p': for each entry the number of its records, of its fields and values, and these
--       6... the entries
-- reply [OK | DUP, id of the last record, length, number of the append before, or '' if none is known,
--       whether something was written] | [FULL | EARLY, '', length] | [BADTYPE, key]
--
-- If the number before is lower than a producer expects, the server has lost the sends in between.
local REMEMBER_MS = 3600000
local TRIM_MAX = 10000

local events, count, limit = KEYS[1], tonumber(ARGV[4]), tonumber(ARGV[3])
local extra, before = 0, 0
local function records()
  local entries = redis.call('XLEN', events)
  extra, before = counts_of(events)
  return entries == 0 and 0 or entries + extra - before
end
local length = records()

local known = redis.call('GET', KEYS[2])
local number, at, behind, earlier = string.match(known or '', '^(%d+):([^:]*):?(%d*):?(.*)$')
if number and tonumber(number) >= tonumber(ARGV[1]) then
  -- WAIT covers the writes of this connection only, so a repeat must write, too: it writes the same value.
  -- When memory is full, Redis refuses that, and the reply says so.
  local written = redis.pcall('SET', KEYS[2], known, 'PX', REMEMBER_MS)
  local its_at, its_before = string.match(earlier, '^([^:]+):?(%d*)$')
  if number ~= ARGV[1] and its_at then at, behind = its_at, its_before end
  return {'DUP', at, length, behind, written.err and 0 or 1}
end
if ARGV[2] ~= '' and ARGV[2] ~= number then return {'EARLY', '', length} end

local function make_room()
  count_dropped(events)  -- another program may have trimmed
  trim_events(events, TRIM_MAX)
  length = records()
  if length > 0 and length + count > limit then
    -- '~' keeps a node that is partly needed, so this exact trim drops less than a node.
    local keep = keep_from(events)
    if keep then
      trim_to(events, keep)
      length = records()
    end
  end
end

if limit > 0 and length + count > limit then
  -- A producer's Redis user may have no right to trim, since it could drop unread entries; the owner soon
  -- trims instead. The script checks the right first, since Redis logs each command that it refuses.
  -- fakeredis has no acl_check_cmd.
  local ask = redis.acl_check_cmd
  if not ask or ask('XTRIM', events, 'MINID', '0-0') then pcall(make_room) end
  if length + count > limit then return {'FULL', '', length} end
end

local last
local next_id = '*'
local function add(...)
  last = redis.call('XADD', events, next_id, ...)
  -- In Redis 7.0 the clock advances within a script, so '*' could use the next millisecond.
  if next_id == '*' then next_id = string.match(last, '^%d+') .. '-*' end
end
local function choose_id(of, add_many)
  local now, chosen = redis.call('TIME'), redis.call('HGET', KEYS[3], 'chosen') or '0-0'
  local us = tonumber(now[2])
  local ms, first = tonumber(now[1]) * 1000 + math.floor(us / 1000), (us % 1000 + 1) * 1e9
  local later = 0
  while true do
    local at = text(ms + later)
    if id_less(chosen, at .. '-' .. text(first)) then
      local done, why = pcall(add_many, at, first, first + of - 1)
      if done then break end
      why = type(why) == 'table' and why.err or tostring(why)
      if later > 2 ^ 40 or not string.find(why, 'equal or smaller', 1, true) then return {err = why} end
    end
    later = math.max(1, 2 * later)
  end
  redis.call('HSET', KEYS[3], 'chosen', last)
end
if ARGV[5] == 'v' then
  -- This calls XADD without the helper, which would take a tenth of the time.
  local call, argv = redis.call, ARGV
  add('v', argv[6])
  for i = 7, 5 + count do last = call('XADD', events, next_id, 'v', argv[i]) end
elseif ARGV[5] == 'f' then
  local i = 6
  for _ = 1, count do
    local n = tonumber(ARGV[i])
    add(unpack(ARGV, i + 1, i + n))
    i = i + 1 + n
  end
else
  local i, ms, at_seq = 6, nil, nil
  while i <= #ARGV do
    local of, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
    if ms then at_seq = at_seq + of end
    if of == 1 then
      if ms then next_id = ms .. '-' .. text(at_seq) end
      add(unpack(ARGV, i + 2, i + 1 + n))
    else
      extra = extra + of - 1
      local function add_many(id_ms, first, final)
        next_id = id_ms .. '-' .. text(final)
        return add(FIRST, id_ms .. '-' .. text(first), 'extra', text(extra), unpack(ARGV, i + 2, i + 1 + n))
      end
      if ms then
        add_many(ms, at_seq - of + 1, at_seq)
      else
        local refused = choose_id(of, add_many)
        if refused then return refused end
      end
    end
    if not ms then
      local seq
      ms, seq = string.match(last, '^(%d+)%-(%d+)$')
      at_seq = tonumber(seq)
      -- Lua loses digits of larger numbers. Only another program gives such ids.
      if #seq > 14 then ms, at_seq = text(tonumber(ms) + 1), -1 end
    end
    i = i + 2 + n
  end
  redis.call('HSET', KEYS[3], 'extra', text(extra))
end
local now_known = {ARGV[1], last, number or '', at or '', behind or ''}
redis.call('SET', KEYS[2], table.concat(now_known, ':'), 'PX', REMEMBER_MS)
return {'OK', last, length + count, number or '', 1}
