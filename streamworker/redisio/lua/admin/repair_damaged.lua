-- uses: document
-- Removes the stored damaged document or heartbeats, if it is still the value that the caller inspected.
--
-- KEYS  1 damaged (any)
-- ARGV  1 fingerprint of the inspected value
-- reply [OK] | [CHANGED]
local there = fingerprint(KEYS[1])
if there == '' or there ~= ARGV[1] then return {'CHANGED'} end
redis.call('UNLINK', KEYS[1])
return {'OK'}
