-- uses: adding
-- Takes one message of an outbox into a partition, if the partition stands where the message begins: it keeps
-- how far it has come with each source, as a number of records and a digest of all of them. So a message is
-- taken once, whoever sends it and however often. If the partition stands elsewhere, one of the two has gone
-- back after a failover, or a later message was taken, and the answer says where it stands.
--
-- KEYS  1 events (stream)  2 taken (hash)  3 counts (hash)
-- ARGV  1 source  2 where the message begins  3 where it ends
--       4 records that the partition may hold; 0 for no limit  5 number of records
--       6... the records, as in append.lua from its sixth argument on
-- reply [OK | FULL, length] | [DUP | OTHER, where it stands]
--       | [BADTYPE, key] for a key of another type, and for a place that another program wrote
local events, taken, source = KEYS[1], KEYS[2], ARGV[1]
local limit, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local known = redis.call('HGET', taken, source)
local stands = known or '0-'
if not string.find(stands, '^%d+%-%x*$') then return {'BADTYPE', taken} end
if stands ~= ARGV[2] or stands == ARGV[3] then
  -- The source deletes what the answer says is here. So it writes for WAIT, as in append.lua. HDEL makes Redis
  -- accept HSET when memory is full.
  redis.call('HDEL', taken, '')
  if known then redis.call('HSET', taken, source, known) end
  return {stands == ARGV[3] and 'DUP' or 'OTHER', stands}
end
local length = with_room(events, records_of(events), count, limit)
if limit > 0 and length + count > limit then return {'FULL', length} end
local _, refused = add_records(events, KEYS[3], count, 6)
if refused then return refused end
redis.call('HSET', taken, source, ARGV[3])
return {'OK', length + count}
