-- uses: register epoch ids
-- Acquires a partition's lock if it is free, if its owner is no longer a member, or if members have waited
-- for it longer than the drain deadline. Acquiring it raises the epoch, so that later calls of the last
-- owner are refused. A member that acquires a lock that it holds changes nothing, unless an operator has given
-- a request since: then the epoch is raised, too. The call may be an old one that arrives late, while its
-- member goes on at the last epoch, and nothing may be committed once the lock shows that the request is obeyed.
--
-- The server's clock measures the wait, from the first refused try, and the wait continues when another
-- member asks: otherwise a group that changes often would never take the lock of a stuck owner. The wait
-- restarts after a pause, since a contender that slept did not wait. It ends when the lock is acquired,
-- released, or renewed in a generation that is not older than the contender's: an owner with an older
-- generation renews locks that it must release.
--
-- If another program overwrote the epoch, no owner can hold it, so the lock is free. A checkpoint or a count
-- cannot be replaced like that: the script writes nothing, and names the key.
--
-- A record that kills its process is called by owner after owner. So the script notes that an owner died at a
-- checkpoint with records to handle, and counts those that died one after the other in the call of the record
-- behind it: `store_tries` has stored its name in `tries` with 'alone', which ends with the owner. An owner that
-- gives the lock back while it takes records alone leaves the word, so the next one goes on with that, as does
-- the same one after an operator's request.
--
-- KEYS  lock (hash)  events (stream)  acked (stream)  groups (hash)  counts (hash)
-- ARGV  owner  generation  drain_deadline_ms (number)  group  nonce: of the log, if it is made
--       parents: as of register.lua, if the lock is made
--       members...: ids of all members
-- reply [OK, epoch, checkpoint, entries, rows, log, entries that others deleted before the group had
--       committed them, without those reported before, epoch of the last reset or '', version of the
--       operators' requests or '', when the partition was paused or '', a line for each record to set aside,
--       owners that died in the call of the record after the checkpoint or '' if none died at it,
--       attempts at records and the reason, as `mark` stored them, the parents that the group must be done with
--       before it handles anything here or '']
--       | [HELD, owner, waited ms] | [STALE, generation of the lock]
--       | [BADTYPE, key] for a key of another type, and for a lock with fields that another program wrote
local PAUSE_MS = 3000

local has = redis.call('HMGET', lock, 'checkpoint', 'entries', 'rows')
if has[1] and not (is_id(has[1]) and is_count(has[2]) and is_count(has[3])) then
  return {'BADTYPE', lock}
end
register(lock, events, acked, group, '0-0', nonce, parents)

local held = redis.call('HMGET', lock, 'owner', 'epoch', 'generation',
  'wanted_since', 'wanted_at', 'wanted_in')
local holder = is_count(held[2]) and held[1] or ''
local asked = tonumber(generation)
local held_generation = is_count(held[3]) and tonumber(held[3]) or 0
local wanted_since, wanted_at = tonumber(held[4] or ''), tonumber(held[5] or '') or 0
local wanted_in = tonumber(held[6] or '') or 0
local now = server_ms()

local function granted(epoch)
  local gone = count_deleted(lock, events)
  local has = redis.call('HMGET', lock, 'checkpoint', 'entries', 'rows', 'log', 'reset', 'ordered', 'paused_at',
    'aside', 'deaths', 'tries', 'reason', 'from')
  if has[6] then
    redis.call('HSET', lock, 'obeyed', has[6], 'state', has[7] and 'paused' or 'running', 'reason', '')
    has[11] = ''
  end
  local at, deaths = string.match(has[9] or '', '^(%S+) (%d+)$')
  if at ~= has[1] then deaths = string.find(has[10] or '', ' alone$') and '0' or '' end
  return {'OK', epoch, has[1], has[2], has[3], has[4], gone, has[5] or '', has[6] or '', has[7] or '',
    has[8] or '', deaths, has[10] or '', has[11] or '', has[12] or ''}
end

if held_generation > asked then return {'STALE', held_generation} end

if holder == owner then
  if held_generation < asked then
    if asked >= wanted_in then
      redis.call('HDEL', lock, 'wanted_since', 'wanted_at', 'wanted_in')
    end
    redis.call('HSET', lock, 'generation', generation)
  end
  local orders = redis.call('HMGET', lock, 'ordered', 'obeyed')
  if orders[1] == orders[2] then return granted(held[2]) end
  return granted(raise_epoch(lock, held[2]))
end

local live = false
for i = members_at, #ARGV do
  if ARGV[i] == holder then live = true end
end

if holder ~= '' and live then
  local since = wanted_since or now
  if now - wanted_at > PAUSE_MS then since = now end
  if now - since < drain_deadline_ms then
    redis.call('HDEL', lock, 'wanted_at')
    redis.call('HSET', lock, 'wanted_since', text(since), 'wanted_at', text(now),
      'wanted_in', text(math.max(asked, wanted_in)))
    return {'HELD', holder, now - since}
  end
end

free(lock)
local before = redis.call('HMGET', lock, 'deaths', 'tries')
local tries, named = string.match(before[2] or '', '^((%d+%-%d+) .*) alone$')
local died = holder ~= '' and not live
if died or named then
  local waiting = redis.pcall('XRANGE', events, '(' .. has[1], '+', 'COUNT', 1)
  if waiting[1] or is_archived_behind(events, has[1]) then
    local at, deaths = string.match(before[1] or '', '^(%S+) (%d+)$')
    local its = died and named and id_less(has[1], named) and 1 or 0
    redis.call('HSET', lock, 'deaths', has[1] .. ' ' .. text((at == has[1] and tonumber(deaths) or 0) + its))
  end
end
if named then redis.call('HSET', lock, 'tries', tries) end
local epoch = raise_epoch(lock, held[2])
redis.call('HSET', lock, 'owner', owner, 'generation', generation, 'since', text(now), 'state', 'running',
  'from_epoch', epoch)
return granted(epoch)
