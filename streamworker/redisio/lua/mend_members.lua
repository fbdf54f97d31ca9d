-- uses: types document
-- Puts aside what stands in place of a membership document, if it is still what was seen, and writes a
-- document there in the same step; or leaves none, and the group begins anew. So no healthy document is
-- ever put aside, and of two that mend the second finds it done.
--
-- One copy is kept for people, and of a long value its beginning. Heartbeats are those of the members of
-- the new document afterwards: whoever is not in it learns by its next one that it has to join again. What
-- stands in their place goes without a copy. The control stream and the loads a group can do without.
--
-- KEYS  1 members (any)  2 control (any)  3 beats (any)  4 loads (any)
--       5 damaged (any)
-- ARGV  1 fingerprint of what was seen
--       2 new document, JSON without its generation: '{' and at least one field; '' for none
--       3 the least generation that it may get
--       4 number of fields and values of the message, without its generation, then these
--       then the ids of all present members of the new document
-- reply [OK, generation or '', server ms] | [BADTYPE, key], though any type is right here
--       | [CONFLICT, document or nil, server ms, type of what is no string or '']
local MESSAGES = 10000

local wrong = wrong_type({'any', 'any', 'any', 'any', 'any'})
if wrong then return {'BADTYPE', wrong} end
local now = server_ms()
local kind = redis.call('TYPE', KEYS[1]).ok
if ARGV[1] == '' or fingerprint(KEYS[1]) ~= ARGV[1] then
  local document = kind == 'string' and redis.call('GET', KEYS[1])
  return {'CONFLICT', document, now, (kind == 'string' or kind == 'none') and '' or kind}
end

-- HDEL is allowed when memory is full, and so is all that follows it.
if is_a(KEYS[3], 'hash') then redis.call('HDEL', KEYS[3], '') else redis.call('UNLINK', KEYS[3]) end
put_aside(KEYS[1], KEYS[5])

local generation = ''
if ARGV[2] ~= '' then
  generation = text(math.max(now, tonumber(ARGV[3])))
  redis.call('SET', KEYS[1], '{"generation":' .. generation .. ',' .. string.sub(ARGV[2], 2))
end
local n = tonumber(ARGV[4])
if is_a(KEYS[2], 'stream') then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', MESSAGES, '*',
    'generation', generation == '' and '0' or generation, unpack(ARGV, 5, 4 + n))
end

local present = {}
for i = 5 + n, #ARGV do present[ARGV[i]] = true end
local has_loads = is_a(KEYS[4], 'hash')
local beats = redis.call('HGETALL', KEYS[3])
for i = 1, #beats, 2 do
  if not present[beats[i]] then
    redis.call('HDEL', KEYS[3], beats[i])
    if has_loads then redis.call('HDEL', KEYS[4], beats[i]) end
  end
end
for i = 5 + n, #ARGV do
  redis.call('HSETNX', KEYS[3], ARGV[i], text(now) .. '|0||0')
end
return {'OK', generation, now}
