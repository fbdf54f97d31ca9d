-- uses: types ids trim
-- Appends entries of one producer to a partition, all or none. A send that is repeated because
-- its answer was lost carries the same number and writes nothing. A producer has two of them under
-- way at most, and the second says which it follows: it is refused where that one is not the last
-- that was done, so that no send overtakes another, whatever becomes of the first. What is known of
-- the last two answers the repeats of both. A lower number is one that nobody waits for any more, done
-- or not: it writes nothing, and the answer says nothing about it.
--
-- The entries get consecutive ids: one time, and numbers that follow each other.
--
-- KEYS  1 events (stream)  2 producer (string): number of its last send, last id of that, number of
--       the send before, and of this one too the last id and the number before
-- ARGV  1 number of this send  2 number of the send that it follows; '' for whichever was the last
--       3 entries that the partition may hold; 0 for no limit  4 number of entries
--       5 'v': a payload for each; 'f': for each the number of its fields and values, and these
--       6... the entries
-- reply [OK | DUP, id of the last entry, length, number of the append before, or '' if none is known,
--       whether something was written] | [FULL | EARLY, '', length] | [BADTYPE, key]
--
-- A producer whose numbers go further than the number before has lost what it sent in between.
local REMEMBER_MS = 3600000
local TRIM_MAX = 10000

local wrong = wrong_type({'stream', 'string'})
if wrong then return {'BADTYPE', wrong} end
local events, count, limit = KEYS[1], tonumber(ARGV[4]), tonumber(ARGV[3])
local length = redis.call('XLEN', events)

local known = redis.call('GET', KEYS[2])
local number, at, before, earlier = string.match(known or '', '^(%d+):([^:]*):?(%d*):?(.*)$')
if number and tonumber(number) >= tonumber(ARGV[1]) then
  -- Whoever waits for this to be safe waits for what this connection writes, so it writes what is
  -- there. When memory is full it may not, and says so.
  local written = redis.pcall('SET', KEYS[2], known, 'PX', REMEMBER_MS)
  local its_at, its_before = string.match(earlier, '^([^:]+):?(%d*)$')
  if number ~= ARGV[1] and its_at then at, before = its_at, its_before end
  return {'DUP', at, length, before, written.err and 0 or 1}
end
if ARGV[2] ~= '' and ARGV[2] ~= number then return {'EARLY', '', length} end

local function make_room()
  trim_events(events, TRIM_MAX)
  length = redis.call('XLEN', events)
  if length > 0 and length + count > limit then
    -- '~' leaves a node that is partly needed; what can still go is less than a node.
    local keep = keep_from(events)
    if keep then
      redis.call('XTRIM', events, 'MINID', keep)
      length = redis.call('XLEN', events)
    end
  end
end

if limit > 0 and length + count > limit then
  -- A producer's user may not trim, or it could drop what nobody has read: the owner does it soon.
  pcall(make_room)
  if length + count > limit then return {'FULL', '', length} end
end

local last
local next_id = '*'
local function add(...)
  last = redis.call('XADD', events, next_id, ...)
  -- Redis 7.0 lets its clock run on within a script, so '*' could take the next millisecond.
  if next_id == '*' then next_id = string.match(last, '^%d+') .. '-*' end
end
if ARGV[5] == 'v' then
  -- Without a function in between, which would be a tenth of it.
  local call, argv = redis.call, ARGV
  add('v', argv[6])
  for i = 7, 5 + count do last = call('XADD', events, next_id, 'v', argv[i]) end
else
  local i = 6
  for _ = 1, count do
    local n = tonumber(ARGV[i])
    add(unpack(ARGV, i + 1, i + n))
    i = i + 1 + n
  end
end
local now_known = {ARGV[1], last, number or '', at or '', before or ''}
redis.call('SET', KEYS[2], table.concat(now_known, ':'), 'PX', REMEMBER_MS)
return {'OK', last, length + count, number or '', 1}
