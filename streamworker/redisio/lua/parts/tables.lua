-- Tables of state: each has its values in a hash, by key, and their expiry in an index, by key, too. In KEYS
-- these two follow each other, after all other keys.

-- Returns the first of these keys that holds another type, or nil; they begin with KEYS[first].
local function wrong_table(first)
  for i = first, #KEYS, 2 do
    if not is_a(KEYS[i], 'hash') then return KEYS[i] end
    if not is_a(KEYS[i + 1], 'zset') then return KEYS[i + 1] end
  end
end

-- Removes values that have expired, the oldest first.
local function expire(values, index, now, most)
  local due = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)
  if #due > 0 then
    redis.call('HDEL', values, unpack(due))
    redis.call('ZREM', index, unpack(due))
  end
  return #due
end

-- Makes the changes of one table that begin at ARGV[at], and removes some values that have expired; returns
-- where those of the next table begin. A value is stored behind its expiry; in ARGV it begins with the blank
-- that stands between them.
local function write_table(values, index, at, now, chunk)
  local ttl, n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local expiry = ttl > 0 and text(tonumber(now) + ttl)
  local expired_before = not expiry and redis.call('EXISTS', index) == 1
  at = at + 2
  for from = at, at + 2 * n - 1, chunk do
    local to = math.min(from + chunk, at + 2 * n) - 1
    if expiry then
      local sets, scores = {}, {}
      for i = from, to, 2 do
        sets[#sets + 1], sets[#sets + 2] = ARGV[i], expiry .. ARGV[i + 1]
        scores[#scores + 1], scores[#scores + 2] = expiry, ARGV[i]
      end
      redis.call('HSET', values, unpack(sets))
      redis.call('ZADD', index, unpack(scores))
    else
      redis.call('HSET', values, unpack(ARGV, from, to))
      if expired_before then
        for i = from, to, 2 do redis.call('ZREM', index, ARGV[i]) end
      end
    end
  end
  at = at + 2 * n
  local dels = tonumber(ARGV[at])
  for from = at + 1, at + dels, chunk do
    local to = math.min(from + chunk - 1, at + dels)
    redis.call('HDEL', values, unpack(ARGV, from, to))
    redis.call('ZREM', index, unpack(ARGV, from, to))
  end
  expire(values, index, now, math.min(n + 100, chunk))
  return at + 1 + dels
end
