-- uses: groups
-- Counts the records after an id, one slice in each call, so that it never blocks the server for long.
--
-- KEYS  events (stream)  counts (hash)
-- ARGV  after: an id  since: the id that the last call returned, or the same  most (number): entries to look at
-- reply [OK, records counted, last id counted, records ever added, whether more follow] | [BADTYPE, key]
if redis.call('EXISTS', events) == 0 then return {'OK', 0, since, 0, 0} end
local _, added = stream_position(events)
local counted, last, more = count_after(events, after, since, most)
return {'OK', counted, last, records_added(events, added), more and 1 or 0}
