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
-- KEYS  members (any)  beats (any)  loads (any)  damaged (any)
-- ARGV  member: its id  beat: 'client id|run id|load'
--       measured: 'partition:load,...'; '' if there is nothing new
-- reply [OK, generation or '', server ms, [member id, beat, ...], fingerprint or '' if it was not drawn,
--        key that held another type or '']
--       | [LOST, generation or '', server ms]
--       | [BADTYPE, key], if heartbeats must restart, and the user lacks a right for that
local LOOKS = 3

local wrong = wrong_type(beats, 'hash', loads, 'hash')
local generation = ''
if redis.call('TYPE', members).ok == 'string' then
  generation = generation_of(redis.call('GETRANGE', members, 0, 63)) or ''
end
local now = server_ms()
if wrong == beats then
  local present = present_in(members)
  if not present then return {'OK', generation, now, {}, fingerprint(members), wrong} end
  if not begin_beats(beats, present, damaged, now) then return {'BADTYPE', wrong} end
end
if redis.call('HEXISTS', beats, member) == 0 then return {'LOST', generation, now} end
begin_writes(beats)
redis.call('HSET', beats, member, text(now) .. '|' .. beat)
if measured ~= '' and (not wrong or is_a(loads, 'hash')) then redis.call('HSET', loads, member, measured) end
-- The reply has this table itself: copying the beats of a thousand members would take longer than the rest.
local all = redis.call('HGETALL', beats)
local drawn = sha1hex and tonumber(string.sub(sha1hex(member .. text(now)), 1, 7), 16) % (#all / 2) < LOOKS
return {'OK', generation, now, all, drawn and fingerprint(members) or '', wrong or ''}
