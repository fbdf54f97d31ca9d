-- uses: document
-- Removes the stored damaged document or heartbeats, if it is still the value that the caller inspected.
--
-- KEYS  damaged (any)
-- ARGV  inspected: fingerprint of the inspected value
-- reply [OK] | [CHANGED]
local there = fingerprint(damaged)
if there == '' or there ~= inspected then return {'CHANGED'} end
redis.call('UNLINK', damaged)
return {'OK'}
