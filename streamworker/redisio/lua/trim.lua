-- uses: trim
-- Drops source entries that every group of the stream has committed, and acked entries that every reader
-- has read. Any process may call it at any time.
--
-- KEYS  1 events (stream)  2 acked (stream)  3 lock (hash)  4 groups (hash)  5 counts (hash)
-- ARGV  1 rows of the acked log that all readers have read; 0 for none  2 most entries to drop of each
--       3 group
-- reply [OK, source entries dropped, acked entries dropped, entries that others deleted before the group had
--       committed them, without those reported before] | [BADTYPE, key]
local events, lock, limit = KEYS[1], KEYS[3], tonumber(ARGV[2])
local dropped, acked = trim_events(events, limit), trim_acked(KEYS[2], tonumber(ARGV[1]), limit)
local gone = redis.call('HEXISTS', lock, 'checkpoint') == 1 and settle(lock, events, ARGV[3]) or 0
return {'OK', dropped, acked, gone}
