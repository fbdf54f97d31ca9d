-- uses: register
-- Registers a group in one partition; does nothing if it is registered. The epoch starts at the server's
-- time, so that it never repeats an epoch of a lock that was lost.
--
-- KEYS  1 lock (hash)  2 events (stream)  3 acked (stream)  4 groups (hash)  5 counts (hash)
-- ARGV  1 group  2 start: '0-0', '$' for after the last entry, or an id  3 nonce of the log
-- reply [OK | EXISTS, checkpoint] | [BADTYPE, key]
local existed, checkpoint = register(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3])
return {existed and 'EXISTS' or 'OK', checkpoint}
