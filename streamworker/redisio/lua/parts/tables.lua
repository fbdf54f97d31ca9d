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

local CHUNK = 4000  -- unpack() fails at 8,000 values

-- Calls a command with a key and the words of ARGV between two indices, as many at a time as unpack() takes.
local function in_chunks(command, key, from, to)
  for i = from, to, CHUNK do redis.call(command, key, unpack(ARGV, i, math.min(i + CHUNK - 1, to))) end
end

-- Makes the changes of one table that begin at ARGV[at], and removes some values that have expired; returns
-- where those of the next table begin. First comes how many ms a value lives, 0 for ever; then the number of keys
-- to set, and for each key and value; then the number of keys to delete, and these. A value is stored behind its
-- expiry; in ARGV it begins with the blank that stands between them.
local function write_table(values, index, at, now)
  local ttl, n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local expiry = ttl > 0 and text(tonumber(now) + ttl)
  at = at + 2
  local past = at + 2 * n
  if expiry then
    for from = at, past - 1, CHUNK do
      local sets, scores = {}, {}
      for i = from, math.min(from + CHUNK, past) - 1, 2 do
        sets[#sets + 1], sets[#sets + 2] = ARGV[i], expiry .. ARGV[i + 1]
        scores[#scores + 1], scores[#scores + 2] = expiry, ARGV[i]
      end
      redis.call('HSET', values, unpack(sets))
      redis.call('ZADD', index, unpack(scores))
    end
  else
    local expired_before = redis.call('EXISTS', index) == 1
    in_chunks('HSET', values, at, past - 1)
    if expired_before then
      for i = at, past - 1, 2 do redis.call('ZREM', index, ARGV[i]) end
    end
  end
  local dels = tonumber(ARGV[past])
  in_chunks('HDEL', values, past + 1, past + dels)
  in_chunks('ZREM', index, past + 1, past + dels)
  expire(values, index, now, math.min(n + 100, CHUNK))
  return past + 1 + dels
end

-- Makes the changes of all tables, which begin at ARGV[at].
local function write_tables(first, at, now)
  for i = first, #KEYS, 2 do at = write_table(KEYS[i], KEYS[i + 1], at, now) end
end
