-- uses: groups
-- Counts the records after an id, one slice in each call, so that it never blocks the server for long.
--
-- KEYS  1 events (stream)  2 counts (hash)
-- ARGV  1 id, exclusive  2 id that the last call returned, or the same  3 most entries to look at
-- reply [OK, records counted, last id counted, records ever added, whether more follow] | [BADTYPE, key]
if redis.call('EXISTS', KEYS[1]) == 0 then return {'OK', 0, ARGV[2], 0, 0} end
local info = pairs_of(redis.call('XINFO', 'STREAM', KEYS[1]))
-- Few at a time where an entry may have 64 kB.
local most = counts_of(KEYS[1]) == 0 and tonumber(ARGV[3]) or math.min(200, tonumber(ARGV[3]))
local slice = redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+', 'COUNT', most)
local last, counted = ARGV[2], 0
for _, entry in ipairs(slice) do
  last, counted = entry[1], counted + records_after(entry, ARGV[1])
end
return {'OK', counted, last, records_added(KEYS[1], info['entries-added']), #slice == most and 1 or 0}
