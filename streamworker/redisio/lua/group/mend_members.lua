-- uses: document
-- Quarantines a damaged membership document if it is still the value that was seen, and writes a new document
-- atomically; or writes none, and the group starts without members. So a valid document is never quarantined,
-- and if two members repair the document, the second finds a valid one.
--
-- Afterwards only the members of the new document have heartbeats: any other member learns from its next
-- heartbeat that it must join again. Heartbeats of another type are deleted without a copy.
--
-- KEYS  members (any)  control (any)  beats (any)  loads (any)  damaged (any)
-- ARGV  seen: fingerprint of what was seen
--       body: the new document, JSON without its generation: '{' and at least one field; '' for none
--       least (number): the minimum of the new generation
--       message (list): its fields and values, without its generation
--       present...: ids of all present members of the new document
-- reply [OK, generation; 0 for none, server ms]
--       | [CONFLICT, document or nil, server ms, type of a value that is not a string or '']
local now = server_ms()
local kind = redis.call('TYPE', members).ok
if seen == '' or fingerprint(members) ~= seen then
  local document = kind == 'string' and redis.call('GET', members)
  return {'CONFLICT', document, now, (kind == 'string' or kind == 'none') and '' or kind}
end

if is_a(beats, 'hash') then begin_writes(beats) else redis.call('UNLINK', beats) end
quarantine(members, damaged)

local generation = body == '' and '0' or text(math.max(now, least))
if body ~= '' then write_document(members, body, generation) end
post(control, 'generation', generation, unpack(ARGV, message_at, message_end))
local stays = {}
for i = present_at, #ARGV do stays[ARGV[i]] = true end
local known = redis.call('HGETALL', beats)
for i = 1, #known, 2 do
  if not stays[known[i]] then drop_beat(beats, loads, known[i]) end
end
for i = present_at, #ARGV do redis.call('HSETNX', beats, ARGV[i], text(now) .. '|0||0') end
return {'OK', generation, now}
