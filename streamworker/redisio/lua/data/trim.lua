-- uses: trim
-- Drops source entries that every group of the stream has committed, and acked entries that every reader
-- has read, if no retention keeps them. Any process may call it at any time.
--
-- KEYS  1 events (stream)  2 acked (stream)  3 lock (hash)  4 groups (hash)  5 counts (hash)
-- ARGV  1 rows of the acked log that all readers have read; 0 for none  2 most entries to drop of each
--       3 group
--       4 retention of the source, ms; -1 for any time; '' for no retention
--       5 source entries that may stay, however young they are; '' for any number
--       6, 7 the same two for the acked log
--       4 to 7 may be missing
-- reply [OK, source entries dropped, acked entries dropped, entries that others deleted before the group had
--       committed them, without those reported before] | [BADTYPE, key]
local events, acked, lock, limit = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[2])
local passed = tonumber(ARGV[1])
local is_group = redis.call('HEXISTS', lock, 'checkpoint') == 1

local dropped
if (ARGV[4] or '') ~= '' then
  dropped = trim_retained(events, limit, tonumber(ARGV[4]), tonumber(ARGV[5] or ''), not is_group)
else
  dropped = trim_events(events, limit)
  local _, _, _, retained = counts_of(events)
  if retained then redis.call('HDEL', KEYS[5], 'retained', 'oldest') end
end

local acked_dropped = 0
if (ARGV[6] or '') == '' then
  acked_dropped = trim_acked(acked, passed, limit)
else
  local keep_ms, most = tonumber(ARGV[6]), tonumber(ARGV[7] or '')
  passed = math.min(passed, tonumber(redis.call('HGET', lock, 'rows') or '') or 0)
  if keep_ms >= 0 then
    acked_dropped = trim_acked(acked, rows_before(acked, server_ms() - keep_ms, passed), limit)
  end
  local surplus = most and math.min(redis.call('XLEN', acked) - most, limit - acked_dropped) or 0
  if surplus > 0 then acked_dropped = acked_dropped + trim_acked(acked, passed, surplus) end
  if is_group then note_oldest(lock, acked) end
end
local gone = is_group and settle(lock, events, ARGV[3]) or 0
return {'OK', dropped, acked_dropped, gone}
