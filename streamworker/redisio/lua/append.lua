-- uses: types ids trim
-- Appends entries of one producer to a partition, all or none. A send that is repeated because
-- its answer was lost carries the same number and writes nothing. A producer sends one after
-- the other, so a lower number is one that was answered long ago.
--
-- The entries get consecutive ids: one time, and numbers that follow each other.
--
-- KEYS  1 events (stream)  2 producer (string)
-- ARGV  1 number of this send  2 entries that the partition may hold; 0 for no limit
--       3 number of entries  4 'v': a payload for each; 'f': for each the number of its fields
--       and values, and these  5... the entries
-- reply [OK | DUP, id of the last entry, length, number of the append before, or '' if none is known,
--       whether something was written] | [FULL, '', length] | [BADTYPE, key]
--
-- A producer whose numbers go further than the number before has lost what it sent in between.
local REMEMBER_MS = 3600000
local TRIM_MAX = 10000

local wrong = wrong_type({'stream', 'string'})
if wrong then return {'BADTYPE', wrong} end
local events, count, limit = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[2])
local length = redis.call('XLEN', events)

local known = redis.call('GET', KEYS[2])
local number, at, before = string.match(known or '', '^(%d+):([^:]*):?(%d*)$')
if number and tonumber(number) >= tonumber(ARGV[1]) then
  -- Whoever waits for this to be safe waits for what this connection writes, so it writes what is
  -- there. When memory is full it may not, and says so.
  local written = redis.pcall('SET', KEYS[2], known, 'PX', REMEMBER_MS)
  return {'DUP', at, length, before, written.err and 0 or 1}
end

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
if ARGV[4] == 'v' then
  -- Without a function in between, which would be a tenth of it.
  local call, argv = redis.call, ARGV
  add('v', argv[5])
  for i = 6, 4 + count do last = call('XADD', events, next_id, 'v', argv[i]) end
else
  local at = 5
  for _ = 1, count do
    local n = tonumber(ARGV[at])
    add(unpack(ARGV, at + 1, at + n))
    at = at + 1 + n
  end
end
redis.call('SET', KEYS[2], ARGV[1] .. ':' .. last .. ':' .. (number or ''), 'PX', REMEMBER_MS)
return {'OK', last, length + count, number or '', 1}
