-- Tables of state: each has its values in a hash, by key, and when they end in an index, by key, too. In KEYS
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

-- Sets values that end at a time: from ARGV[at] to ARGV[to] a key and a value each, and with a `step` of 3 its time;
-- with one of 2 all end at `expiry`. A value is stored behind its expiry, unless a function is called at its end.
local function set_until(values, index, at, to, step, expiry, is_called)
  for from = at, to, CHUNK / 4 * step do
    local sets, scores = {}, {}
    for i = from, math.min(from + CHUNK / 4 * step - 1, to), step do
      local ends = expiry or ARGV[i + 2]
      sets[#sets + 1], sets[#sets + 2] = ARGV[i], is_called and ARGV[i + 1] or ends .. ARGV[i + 1]
      scores[#scores + 1], scores[#scores + 2] = ends, ARGV[i]
    end
    redis.call('HSET', values, unpack(sets))
    redis.call('ZADD', index, unpack(scores))
  end
end

-- Makes the changes of one table that begin at ARGV[at], and removes some values that have expired; returns
-- where those of the next table begin. First comes how many ms a value lives, 0 for ever; then '1' if a function is
-- called at its end, which removes it; then the number of keys to set, and for each key and value; then the number
-- of keys that have a time of their own, and for each key, value and time; then the number of keys to delete, and
-- these. A value in ARGV begins with the blank that stands between it and its expiry.
local function write_table(values, index, at, now)
  local ttl, is_called, n = tonumber(ARGV[at]), ARGV[at + 1] == '1', tonumber(ARGV[at + 2])
  at = at + 3
  local past = at + 2 * n
  if ttl > 0 then
    set_until(values, index, at, past - 1, 2, text(tonumber(now) + ttl), is_called)
  else
    local has_index = redis.call('EXISTS', index) == 1
    in_chunks('HSET', values, at, past - 1)
    if has_index then
      for i = at, past - 1, 2 do redis.call('ZREM', index, ARGV[i]) end
    end
  end
  local timed = tonumber(ARGV[past])
  at = past + 1
  past = at + 3 * timed
  set_until(values, index, at, past - 1, 3, nil, is_called)
  local dels = tonumber(ARGV[past])
  in_chunks('HDEL', values, past + 1, past + dels)
  in_chunks('ZREM', index, past + 1, past + dels)
  if not is_called then expire(values, index, now, math.min(n + timed + 100, CHUNK)) end
  return past + 1 + dels
end

-- Makes the changes of all tables, which begin at ARGV[at].
local function write_tables(first, at, now)
  for i = first, #KEYS, 2 do at = write_table(KEYS[i], KEYS[i + 1], at, now) end
end
