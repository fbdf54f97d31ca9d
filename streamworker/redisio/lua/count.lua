-- uses: ids
-- Counts the entries after an id, one slice in each call, so that it never blocks the server for long.
--
-- KEYS  1 entries (stream)
-- ARGV  1 id, exclusive  2 most entries to count
-- reply [OK, entries counted, last id counted, entries ever added] | [BADTYPE, key]
if redis.call('EXISTS', KEYS[1]) == 0 then return {'OK', 0, ARGV[1], 0} end
local info = pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))
local counted = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local last = #counted > 0 and counted[#counted][1] or ARGV[1]
return {'OK', #counted, last, info['entries-added']}
