-- uses: document
-- Removes the keys of a group that belong to no partition, if no member has joined or sent a heartbeat
-- since the caller read the group.
--
-- KEYS  members (string)  beats (hash)  control (stream)  loads (hash)  readers (hash)  schemas (hash)
--       damaged (any)  holds (hash)  risks (hash)  claims (hash)  grab (hash)  allocation (hash)
-- ARGV  generation: as it was read; '' if there was no document
--       seen...: for each member its id, and its heartbeat as it was read; '' if there was none
-- reply [OK, keys removed] | [CHANGED] | [BADTYPE, key]
if (generation_of(redis.call('GET', members)) or '') ~= generation then return {'CHANGED'} end
for i = seen_at, #ARGV, 2 do
  if (redis.call('HGET', beats, ARGV[i]) or '') ~= ARGV[i + 1] then return {'CHANGED'} end
end
return {'OK', redis.call('UNLINK', unpack(KEYS))}
