-- uses: document
-- Quarantines a damaged membership document if it is still the value that was seen, and writes a new document
-- atomically; or writes none, and the group starts without members. So a valid document is never quarantined,
-- and if two members repair the document, the second finds a valid one.
--
-- Afterwards only the members of the new document have heartbeats: any other member learns from its next
-- heartbeat that it must join again. Heartbeats of another type are deleted without a copy.
--
-- KEYS  1 members (any)  2 control (any)  3 beats (any)  4 loads (any)  5 damaged (any)
-- ARGV  1 fingerprint of what was seen
--       2 new document, JSON without its generation: '{' and at least one field; '' for none
--       3 the minimum of the new generation
--       4 number of fields and values of the message, without its generation, then these
--       then the ids of all present members of the new document
-- reply [OK, generation; 0 for none, server ms]
--       | [CONFLICT, document or nil, server ms, type of a value that is not a string or '']
local now = server_ms()
local kind = redis.call('TYPE', KEYS[1]).ok
if ARGV[1] == '' or fingerprint(KEYS[1]) ~= ARGV[1] then
  local document = kind == 'string' and redis.call('GET', KEYS[1])
  return {'CONFLICT', document, now, (kind == 'string' or kind == 'none') and '' or kind}
end

if is_a(KEYS[3], 'hash') then begin_writes(KEYS[3]) else redis.call('UNLINK', KEYS[3]) end
quarantine(KEYS[1], KEYS[5])

local generation = ARGV[2] == '' and '0' or text(math.max(now, tonumber(ARGV[3])))
local at = write_document(KEYS[1], ARGV[2], generation, KEYS[2], 4)
local present = {}
for i = at, #ARGV do present[ARGV[i]] = true end
local beats = redis.call('HGETALL', KEYS[3])
for i = 1, #beats, 2 do
  if not present[beats[i]] then drop_beat(KEYS[3], KEYS[4], beats[i]) end
end
for i = at, #ARGV do redis.call('HSETNX', KEYS[3], ARGV[i], text(now) .. '|0||0') end
return {'OK', generation, now}
