-- uses: types document
-- Removes what was put aside in place of a membership document or of heartbeats, if it is what somebody looked at.
--
-- KEYS  1 damaged (any)
-- ARGV  1 fingerprint of what was looked at
-- reply [OK] | [CHANGED] | [BADTYPE, key], though any type is right here
local wrong = wrong_type({'any'})
if wrong then return {'BADTYPE', wrong} end
local there = fingerprint(KEYS[1])
if there == '' or there ~= ARGV[1] then return {'CHANGED'} end
redis.call('UNLINK', KEYS[1])
return {'OK'}
