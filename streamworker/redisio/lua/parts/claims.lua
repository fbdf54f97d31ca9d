-- An ownership entry is one field of a hash:
-- 'etag|modified ms|owner level|checkpoint|owner'.

-- Begins a change: returns the ETag of all entries that this call changes, and the time. The ETag is the
-- server's time, or the last ETag plus one if that is greater, so that it grows even if the hash is lost.
local function new_etag(claims)
  local now = server_ms()
  local last = tonumber(redis.call('HGET', claims, 'last') or '0')
  local etag = text(math.max(now, last + 1))
  begin_writes(claims)
  redis.call('HSET', claims, 'last', etag)
  return etag, text(now)
end

-- Returns ETag and owner; '0' and '' if there is no entry.
local function holder(claims, partition)
  local entry = redis.call('HGET', claims, partition) or ''
  local etag, owner = string.match(entry, '^(%d+)|[^|]*|[^|]*|[^|]*|(.*)$')
  return etag or '0', owner or ''
end

-- Writes the entries in ARGV (partition, ETag, owner level, checkpoint) for `owner` where the ETag is still
-- that one and `may` allows it, by the present owner. Returns the reply: the new ETag, and each partition with
-- its current entry.
local function change_entries(claims, owner, may)
  local etag, now = new_etag(claims)
  local reply = {'OK', etag}
  for i = 2, #ARGV, 4 do
    local partition = ARGV[i]
    local held_etag, held_by = holder(claims, partition)
    if held_etag == ARGV[i + 1] and may(held_by) then
      redis.call('HSET', claims, partition,
        etag .. '|' .. now .. '|' .. ARGV[i + 2] .. '|' .. ARGV[i + 3] .. '|' .. owner)
    end
    reply[#reply + 1] = partition
    reply[#reply + 1] = redis.call('HGET', claims, partition) or ''
  end
  return reply
end
