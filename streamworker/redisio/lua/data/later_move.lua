-- uses: taking later
-- Sends what is due, in the order of the times, and forgets what was sent or cancelled long ago. Any process
-- may call it at any time: each record is appended and marked in one step. Of a partition that is sealed nothing is
-- sent: what waits there belongs to the partitions that follow it.
--
-- KEYS  events (stream)  later (zset)  delayed (hash)  counts (hash)
-- ARGV  most: ids to look at  limit (number): records that the partition may hold; 0 for no limit
--       window_ms (number)
-- reply [OK | FULL | SEALED, number sent, ms until the next is due, or '' if nothing waits] | [BADTYPE, key]
local now, sent, code = server_ms(), 0, 'OK'
local length, _, sealed = records_of(events)
if sealed then return {'SEALED', 0, ''} end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', text(now), 'LIMIT', 0, most)) do
  local state, calls, due, rest = later_of(delayed, id)
  if state == 'w' then
    local sizes, texts = string.match(rest, '^([%d,]+)\n(.*)$')
    if not sizes then return {'BADTYPE', delayed} end
    length = with_room(events, length, 1, limit)
    if limit > 0 and length + 1 > limit then
      code = 'FULL'
      break
    end
    local fields, at = {}, 1
    for size in string.gmatch(sizes, '%d+') do
      fields[#fields + 1] = string.sub(texts, at, at + tonumber(size) - 1)
      at = at + tonumber(size)
    end
    local entry = redis.call('XADD', events, '*', unpack(fields, 3))
    local until_ms, ends = known_until(now, window_ms)
    keep_later(later, delayed, id, until_ms, 's', calls, due, entry, ends)
    length, sent = length + 1, sent + 1
  else
    redis.call('HDEL', delayed, id)
    redis.call('ZREM', later, id)
  end
end
local first = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')
return {code, sent, first[2] and text(math.max(0, tonumber(first[2]) - now)) or ''}
