-- uses: groups
-- Counts the records after an id, one slice in each call, so that it never blocks the server for long.
--
-- KEYS  events (stream)  counts (hash)
-- ARGV  after: an id  since: the id that the last call returned, or the same  most (number): entries to look at
-- reply [OK, records counted, last id counted, records ever added, whether more follow] | [BADTYPE, key]
if redis.call('EXISTS', events) == 0 then return {'OK', 0, since, 0, 0} end
local info = pairs_of(redis.call('XINFO', 'STREAM', events))
-- Few at a time where an entry may have 64 kB.
local slice_size = counts_of(events) == 0 and most or math.min(200, most)
local slice = redis.call('XRANGE', events, '(' .. since, '+', 'COUNT', slice_size)
local last, counted = since, 0
for _, entry in ipairs(slice) do
  last, counted = entry[1], counted + records_after(entry, after)
end
return {'OK', counted, last, records_added(events, info['entries-added']), #slice == slice_size and 1 or 0}
