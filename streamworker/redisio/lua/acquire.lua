-- uses: types ids register epoch
-- Takes a partition's lock if it is free, if its owner is no member any more, or if it was waited
-- for longer than the drain deadline. Taking it raises the epoch, so that whatever the last owner
-- still sends is refused. Asking again for what one has changes nothing.
--
-- The wait is measured here, by one clock, from the first refused try, and goes on whoever asks: a
-- group that changes often would else never overtake a stuck owner. It starts anew after a pause,
-- since a contender that slept did not wait, and ends when the lock is taken, released, or renewed in a
-- generation that is not older than the contender's: an owner that is behind renews what it is to give up.
--
-- An epoch that another program wrote over is nobody's, so the lock is free. A checkpoint or a count
-- cannot be made up like that: nothing is written, and the key is named.
--
-- KEYS  1 lock (hash)  2 events (stream)  3 acked (stream)
-- ARGV  1 owner  2 generation  3 drain deadline, ms  4 group  5 nonce of the log, if it is made
--       6... ids of all members
-- reply [OK, epoch, checkpoint, entries, rows, log] | [HELD, owner, waited ms]
--       | [STALE, generation of the lock]
--       | [BADTYPE, key] for one of another type, and for a lock with fields that are not ours
local PAUSE_MS = 3000

local wrong = wrong_type({'hash', 'stream', 'stream'})
if wrong then return {'BADTYPE', wrong} end
local lock, owner = KEYS[1], ARGV[1]
local generation, deadline = tonumber(ARGV[2]), tonumber(ARGV[3])
local has = redis.call('HMGET', lock, 'checkpoint', 'entries', 'rows')
if has[1] and not (string.find(has[1], '^%d+%-%d+$') and is_count(has[2]) and is_count(has[3])) then
  return {'BADTYPE', lock}
end
register(lock, KEYS[2], KEYS[3], ARGV[4], '0-0', ARGV[5])

local held = redis.call('HMGET', lock, 'owner', 'epoch', 'generation',
  'wanted_since', 'wanted_at', 'wanted_in')
local holder = is_count(held[2]) and held[1] or ''
local held_generation = is_count(held[3]) and tonumber(held[3]) or 0
local wanted_since, wanted_at = tonumber(held[4] or ''), tonumber(held[5] or '') or 0
local wanted_in = tonumber(held[6] or '') or 0
local now = server_ms()

local function granted(epoch)
  local has = redis.call('HMGET', lock, 'checkpoint', 'entries', 'rows', 'log')
  return {'OK', epoch, has[1], has[2], has[3], has[4]}
end

if held_generation > generation then return {'STALE', held_generation} end

if holder == owner then
  if held_generation < generation then
    -- HDEL is allowed when memory is full, and after a first write all others are: see take below.
    if generation >= wanted_in then
      redis.call('HDEL', lock, 'wanted_since', 'wanted_at', 'wanted_in')
    end
    redis.call('HSET', lock, 'generation', ARGV[2])
  end
  return granted(held[2])
end

local live = false
for i = 6, #ARGV do
  if ARGV[i] == holder then live = true end
end

if holder ~= '' and live then
  local since = wanted_since or now
  if now - wanted_at > PAUSE_MS then since = now end
  if now - since < deadline then
    redis.call('HDEL', lock, 'wanted_at')
    redis.call('HSET', lock, 'wanted_since', text(since), 'wanted_at', text(now),
      'wanted_in', text(math.max(generation, wanted_in)))
    return {'HELD', holder, now - since}
  end
end

-- Take it. With a full memory HSET is refused, unless something was written before: ownership
-- must be able to move then, or nothing would ever be trimmed again.
redis.call('HDEL', lock, 'wanted_since', 'wanted_at', 'wanted_in')
local epoch = raise_epoch(lock, held[2])
redis.call('HSET', lock, 'owner', owner, 'generation', ARGV[2], 'since', text(now),
  'state', 'running', 'reason', '')
return granted(text(epoch))
