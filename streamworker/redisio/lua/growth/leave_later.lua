-- uses: later
-- Gives what is scheduled in a partition that is sealed to those that follow, which take it by take_later.lua. Only
-- what has arrived there is removed here, and only if it is still as it was read: a program of an earlier release may
-- have changed it. So each step may be repeated, and a crash between two loses nothing.
--
-- In the order of the times come the records that wait. What was sent or cancelled is moved if its id is asked for,
-- since nothing else says which partition has its key, and is removed when its time is over. A record that stands
-- behind many of those comes before it is due.
--
-- KEYS  later (zset)  delayed (hash)  counts (hash)
-- ARGV  most (number): ids to look at besides those that are asked for
--       ids (list): asked for
--       moved...: ids that have arrived, each with what was known of it
-- reply [OK, the server's ms, how many ids stand here, id, time, what is known of it, ...] | [BADTYPE, key]
local BYTES_MAX = 1000000
local now, found, bytes = server_ms(), {}, 0

local function remove(id)
  redis.call('HDEL', delayed, id)
  redis.call('ZREM', later, id)
end

local function give(id, at)
  local known = bytes < BYTES_MAX and redis.call('HGET', delayed, id)
  if not known then return end
  bytes = bytes + #known
  found[#found + 1] = id
  found[#found + 1] = at or redis.call('ZSCORE', later, id) or '0'
  found[#found + 1] = known
end

for i = moved_at, #ARGV, 2 do
  if redis.call('HGET', delayed, ARGV[i]) == ARGV[i + 1] then remove(ARGV[i]) end
end
if redis.call('HMGET', counts, 'sealed')[1] then
  for i = ids_at, ids_end do give(ARGV[i]) end
  local first = most > 0 and redis.call('ZRANGE', later, 0, most - 1, 'WITHSCORES') or {}
  for i = 1, #first, 2 do
    local id, at = first[i], first[i + 1]
    local state, _, _, rest = later_of(delayed, id)
    if state == 'w' then
      if not string.find(rest, '^%d+,%d+[%d,]*\n') then return {'BADTYPE', delayed} end
      give(id, at)
    elseif not state or tonumber(at) <= now then
      remove(id)
    end
  end
end
return {'OK', text(now), redis.call('HLEN', delayed), unpack(found)}
