-- uses: document
-- Removes the keys of a group that belong to no partition, if no member has joined or sent a heartbeat
-- since the caller read the group.
--
-- KEYS  1 members (string)  2 beats (hash)  3 control (stream)  4 loads (hash)  5 readers (hash)
--       6 schemas (hash)  7 damaged (any)  8 holds (hash)  9 claims (hash)  10 grab (hash)
--       11 allocation (hash)
-- ARGV  1 generation that was read; '' if there was no document
--       then (member id, its heartbeat as it was read; '' if there was none) for each member
-- reply [OK, keys removed] | [CHANGED] | [BADTYPE, key]
if (generation_of(redis.call('GET', KEYS[1])) or '') ~= ARGV[1] then return {'CHANGED'} end
for i = 2, #ARGV, 2 do
  if (redis.call('HGET', KEYS[2], ARGV[i]) or '') ~= ARGV[i + 1] then return {'CHANGED'} end
end
return {'OK', redis.call('UNLINK', unpack(KEYS))}
