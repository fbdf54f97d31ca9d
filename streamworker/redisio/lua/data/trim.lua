-- uses: trim
-- Drops source entries that every group of the stream has committed, and acked entries that every reader
-- has read, if no retention keeps them. Any process may call it at any time.
--
-- KEYS  events (stream)  acked (stream)  lock (hash)  groups (hash)  counts (hash)
-- ARGV  rows (number): of the acked log that all readers have read; 0 for none
--       most (number): entries to drop of each  group
--       events_ms: retention of the source, ms; -1 for any time; '' for no retention
--       events_max: source entries that may stay, however young they are; '' for any number
--       acked_ms  acked_max: the same two for the acked log
-- reply [OK, source entries dropped, acked entries dropped, entries that others deleted before the group had
--       committed them, without those reported before] | [BADTYPE, key]
local is_group = redis.call('HEXISTS', lock, 'checkpoint') == 1

local dropped
if events_ms ~= '' then
  dropped = trim_retained(events, most, tonumber(events_ms), tonumber(events_max), not is_group)
else
  dropped = trim_events(events, most)
  local _, _, _, retained = counts_of(events)
  if retained then redis.call('HDEL', counts, 'retained', 'oldest') end
end

local acked_dropped = 0
if acked_ms == '' then
  acked_dropped = trim_acked(acked, rows, most)
else
  local keep_ms, max = tonumber(acked_ms), tonumber(acked_max)
  local passed = math.min(rows, tonumber(redis.call('HGET', lock, 'rows') or '') or 0)
  if keep_ms >= 0 then
    acked_dropped = trim_acked(acked, rows_before(acked, server_ms() - keep_ms, passed), most)
  end
  local surplus = max and math.min(redis.call('XLEN', acked) - max, most - acked_dropped) or 0
  if surplus > 0 then acked_dropped = acked_dropped + trim_acked(acked, passed, surplus) end
  if is_group then note_oldest(lock, acked) end
end
local gone = is_group and settle(lock, events, group) or 0
return {'OK', dropped, acked_dropped, gone}
