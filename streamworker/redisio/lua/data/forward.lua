-- uses: adding
-- Takes one message of an outbox into a partition, if the partition stands where the message begins: it keeps
-- how far it has come with each source, as a number of records and a digest of all of them. So a message is
-- taken once, whoever sends it and however often. If the partition stands elsewhere, one of the two has gone
-- back after a failover, or a later message was taken, and the answer says where it stands.
--
-- KEYS  events (stream)  taken (hash)  counts (hash)
-- ARGV  source  begins: where the message begins  ends: where it ends
--       limit (number): records that the partition may hold; 0 for no limit
--       records...: see parts/adding.lua
-- reply [OK | FULL, '', length] | [DUP | OTHER, where it stands]
--       | [BADTYPE, key] for a key of another type, and for a position that another program wrote
local known = redis.call('HGET', taken, source)
local stands = known or '0-'
if not string.find(stands, '^%d+%-%x*$') then return {'BADTYPE', taken} end
if stands ~= begins or stands == ends then
  -- The source deletes what the answer says is here. So it writes for WAIT, as in append.lua. HDEL makes Redis
  -- accept HSET when memory is full.
  redis.call('HDEL', taken, '')
  if known then redis.call('HSET', taken, source, known) end
  return {stands == ends and 'DUP' or 'OTHER', stands}
end
local count = tonumber(ARGV[records_at])
local length = with_room(events, records_of(events), count, limit)
if limit > 0 and length + count > limit then return {'FULL', '', length} end
local _, refused = add_records(events, counts, records_at)
if refused then return refused end
redis.call('HSET', taken, source, ends)
return {'OK', '', length + count}
