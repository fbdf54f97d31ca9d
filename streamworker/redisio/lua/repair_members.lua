-- uses: document
-- Removes dead members from a group without live members. The script does what a peer would do, if neither
-- the document nor the last heartbeat of any of these members has changed since the caller read them. If a
-- member woke meanwhile, nothing changes. The script leaves the control stream and the loads alone if they
-- have another type.
--
-- KEYS  1 members (string)  2 control (any)  3 beats (hash)  4 loads (any)
-- ARGV  1 generation that was read
--       2 new document, JSON without its generation: '{' and at least one field
--       3 number of fields and values of the message, without its generation, then these
--       then (member id, its heartbeat as it was read; '' if there was none) for each that is removed
-- reply [OK, generation] | [CHANGED] | [BADTYPE, key]
local document = redis.call('GET', KEYS[1])
local generation = generation_of(document)
if generation ~= ARGV[1] then return {'CHANGED'} end
local n = tonumber(ARGV[3])
for i = 4 + n, #ARGV, 2 do
  if (redis.call('HGET', KEYS[3], ARGV[i]) or '') ~= ARGV[i + 1] then return {'CHANGED'} end
end

begin_writes(KEYS[3])
local next_generation = text(math.max(server_ms(), tonumber(generation) + 1))
write_document(KEYS[1], ARGV[2], next_generation, KEYS[2], 3)
for i = 4 + n, #ARGV, 2 do drop_beat(KEYS[3], KEYS[4], ARGV[i]) end
return {'OK', next_generation}
