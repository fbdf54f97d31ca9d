-- uses: beats
-- Renews a membership, and returns what a member needs to judge its peers. A removed member does not come
-- back: the reply says that it is lost.
--
-- If another program overwrote the document, the member stays alive, and the reply has no generation. If the
-- overwritten document kept the generation, only the fingerprint shows the change. The fingerprint requires
-- the whole document, so only about three members, chosen at random, compute it in each round.
--
-- Heartbeats of another type are moved aside, and restart with the members of the document. If the
-- document cannot be read either, the script cannot tell which members are lost, and reports none as lost:
-- the member that repairs the document repairs the heartbeats, too.
--
-- The loads of the member's partitions go to a separate hash, which only the balancer reads. If that hash has
-- another type, the reply names it, and the member continues.
--
-- KEYS  1 members (any)  2 beats (any)  3 loads (any)  4 damaged (any)
-- ARGV  1 member id  2 'client id|run id|load'  3 'partition:load,...'; '' if there is nothing new
-- reply [OK, generation or '', server ms, [member id, beat, ...], fingerprint or '' if it was not drawn,
--        key that held another type or '']
--       | [LOST, generation or '', server ms]
--       | [BADTYPE, key], if heartbeats must restart, and the user lacks a right for that
local LOOKS = 3

local wrong = wrong_type({'any', 'hash', 'hash', 'any'})
local generation = ''
if redis.call('TYPE', KEYS[1]).ok == 'string' then
  generation = generation_of(redis.call('GETRANGE', KEYS[1], 0, 63)) or ''
end
local now = server_ms()
if wrong == KEYS[2] then
  local present = present_in(KEYS[1])
  if not present then return {'OK', generation, now, {}, fingerprint(KEYS[1]), wrong} end
  if not begin_beats(KEYS[2], present, KEYS[4], now) then return {'BADTYPE', wrong} end
end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return {'LOST', generation, now} end
begin_writes(KEYS[2])
redis.call('HSET', KEYS[2], ARGV[1], text(now) .. '|' .. ARGV[2])
if ARGV[3] ~= '' and (not wrong or is_a(KEYS[3], 'hash')) then redis.call('HSET', KEYS[3], ARGV[1], ARGV[3]) end
-- Returned without a copy: copying the beats of a thousand members would take longer than the rest.
local beats = redis.call('HGETALL', KEYS[2])
local drawn = sha1hex and tonumber(string.sub(sha1hex(ARGV[1] .. text(now)), 1, 7), 16) % (#beats / 2) < LOOKS
return {'OK', generation, now, beats, drawn and fingerprint(KEYS[1]) or '', wrong or ''}
