-- uses: types document beats
-- Renews a membership, and answers with all that a member must know to judge its peers. A member
-- that was removed is not brought back: it learns that it is lost.
--
-- Whatever stands in place of the document, the member lives: it learns that there is no generation. What
-- was written over a document without its generation shows in its fingerprint alone. To make that takes
-- the whole document, so some three members a round do it, drawn anew each time.
--
-- Something else in place of the heartbeats is put aside, and these begin anew with the members of the
-- document. Where that cannot be read either, nobody can tell who is lost, and nobody is: who mends the
-- document then mends them, too.
--
-- What was measured of the member's partitions goes to a hash of its own: only the balancer reads it. So
-- something else in its place is named, and the member goes on.
--
-- KEYS  1 members (any)  2 beats (any)  3 loads (any)  4 damaged (any)
-- ARGV  1 member id  2 'client id|run id|load'  3 'partition:load,...'; '' if there is nothing new
-- reply [OK, generation or '', server ms, [member id, beat, ...], fingerprint or '' if it was not drawn,
--        key that held something else or '']
--       | [LOST, generation or '', server ms]
--       | [BADTYPE, key], if heartbeats should begin anew, and the user lacks a right to that
local LOOKS = 3

local wrong = wrong_type({'any', 'hash', 'hash', 'any'})
local generation = ''
if redis.call('TYPE', KEYS[1]).ok == 'string' then
  generation = string.match(redis.call('GETRANGE', KEYS[1], 0, 63), '^{"generation":(%d+)') or ''
end
local now = server_ms()
if wrong == KEYS[2] then
  local present = present_in(KEYS[1])
  if not present then return {'OK', generation, now, {}, fingerprint(KEYS[1]), wrong} end
  if not begin_beats(KEYS[2], present, KEYS[4], now) then return {'BADTYPE', wrong} end
end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return {'LOST', generation, now} end
-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[2], '')
redis.call('HSET', KEYS[2], ARGV[1], text(now) .. '|' .. ARGV[2])
if ARGV[3] ~= '' and (not wrong or is_a(KEYS[3], 'hash')) then redis.call('HSET', KEYS[3], ARGV[1], ARGV[3]) end
-- As it comes: to copy the beats of a thousand members would take longer than all that is done here.
local beats = redis.call('HGETALL', KEYS[2])
local drawn = sha1hex and tonumber(string.sub(sha1hex(ARGV[1] .. text(now)), 1, 7), 16) % (#beats / 2) < LOOKS
return {'OK', generation, now, beats, drawn and fingerprint(KEYS[1]) or '', wrong or ''}
