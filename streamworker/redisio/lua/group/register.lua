-- uses: register
-- Registers a group in one partition; does nothing if it is registered. The epoch starts at the server's
-- time, so that it never repeats an epoch of a lock that was lost.
--
-- KEYS  lock (hash)  events (stream)  acked (stream)  groups (hash)  counts (hash)
-- ARGV  group  start: '0-0', '$' for after the last entry, or an id  nonce: of the log
--       parents: numbers of the partitions that share keys with this one in the generation before, or ''
-- reply [OK | EXISTS, checkpoint] | [BADTYPE, key]
local existed, checkpoint = register(lock, events, acked, group, start, nonce, parents)
return {existed and 'EXISTS' or 'OK', checkpoint}
