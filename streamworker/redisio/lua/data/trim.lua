-- uses: trim
-- Drops source entries that every group of the stream has committed, and acked entries that every reader
-- has read, if no retention keeps them. Any process may call it at any time.
--
-- KEYS  events (stream)  acked (stream)  lock (hash)  groups (hash)  counts (hash)
-- ARGV  rows (number): of the acked log that all readers have read; 0 for none
--       most (number): entries to drop of each
--       events_ms: retention of the source, ms; -1 for any time; '' for no retention
--       events_max: source entries that may stay, however young they are; '' for any number
--       acked_ms  acked_max: the same two for the acked log
-- reply [OK, source entries dropped, acked entries dropped, entries that others deleted before the group had
--       committed them, without those reported before] | [BADTYPE, key]
local is_group = redis.call('HEXISTS', lock, 'checkpoint') == 1

-- Drops source entries that no group needs and no retention keeps: those older than `keep_ms`, if it is not
-- negative; and the oldest, if there are more than `max`. A stream without a group keeps what the retention
-- keeps, if the caller's group is not registered either.
local function trim_retained(keep_ms, max)
  if redis.call('EXISTS', events) == 0 then return 0 end
  local keep, passed = keep_from(events)
  keep = keep or not is_group and successor((stream_position(events)))
  if not keep then return 0 end
  local dropped = 0
  if keep_ms >= 0 then
    local oldest = text(math.max(0, server_ms() - keep_ms)) .. '-0'
    dropped = trim_to(events, '~', id_less(oldest, keep) and oldest or keep, 'LIMIT', most)
  end
  local surplus = max and math.min(redis.call('XLEN', events) - max, most - dropped) or 0
  if surplus > 0 then dropped = dropped + trim_to(events, '~', keep, 'LIMIT', surplus) end
  count_retained(events, passed)
  return dropped
end

-- Returns the rows up to the end of the last acked entry that was committed before a time, and that is at or
-- below `past`; 0 if there is none. The ids do not tell the time, so it asks for some 20 entries by bisection.
local function rows_before(ms, past)
  local function next_at(row)
    local entry = redis.call('XRANGE', acked, text(row) .. '-0', '+', 'COUNT', 1)[1]
    if not entry then return nil end
    return tonumber(string.match(entry[1], '^%d+')), tonumber(pairs_of(entry[2])['at'] or '') or 0
  end
  local first, first_at = next_at(0)
  if not first or first > past or first_at >= ms then return 0 end
  local low, high = first, past + 1  -- the entry that ends at `low` is old, and none from `high` on
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local row, at = next_at(middle)
    if row and row < high and at < ms then low = row else high = middle end
  end
  return low
end

-- Notes in the lock how many rows were dropped, and when the oldest of the others was committed.
local function note_oldest()
  local first = redis.call('XRANGE', acked, '-', '+', 'COUNT', 1)[1]
  redis.call('HDEL', lock, 'oldest')  -- and so Redis accepts HSET when memory is full
  local dropped = redis.call('HGET', lock, 'rows') or '0'
  if first then
    local fields = pairs_of(first[2])
    dropped = text(tonumber(string.match(first[1], '^%d+')) - (tonumber(fields['rows'] or '') or 0))
    redis.call('HSET', lock, 'oldest', fields['at'] or '')
  end
  redis.call('HSET', lock, 'dropped', dropped)
end

local dropped
if events_ms ~= '' then
  dropped = trim_retained(tonumber(events_ms), tonumber(events_max))
else
  dropped = trim_events(events, most)
  local _, _, retained = counts_of(events)
  if retained then redis.call('HDEL', counts, 'retained', 'oldest') end
end

local acked_dropped = 0
if acked_ms == '' then
  acked_dropped = trim_acked(acked, rows, most)
else
  local keep_ms, max = tonumber(acked_ms), tonumber(acked_max)
  local passed = math.min(rows, tonumber(redis.call('HGET', lock, 'rows') or '') or 0)
  if keep_ms >= 0 then
    acked_dropped = trim_acked(acked, rows_before(server_ms() - keep_ms, passed), most)
  end
  local surplus = max and math.min(redis.call('XLEN', acked) - max, most - acked_dropped) or 0
  if surplus > 0 then acked_dropped = acked_dropped + trim_acked(acked, passed, surplus) end
  if is_group then note_oldest() end
end
local gone = is_group and count_deleted(lock, events) or 0
return {'OK', dropped, acked_dropped, gone}
