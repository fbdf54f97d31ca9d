-- uses: adding
-- Takes one message of an outbox into a partition, if the partition stands where the message begins: it keeps
-- how far it has come with each source, as a number of records and a digest of all of them. So a message is
-- taken once, whoever sends it and however often. If the partition stands elsewhere, one of the two has gone
-- back after a failover, and the answer says where it stands.
--
-- KEYS  1 events (stream)  2 taken (hash)  3 counts (hash)
-- ARGV  1 source  2 where the message begins  3 where it ends
--       4 records that the partition may hold; 0 for no limit  5 number of records
--       6... the records, as in append.lua from its fifth argument on
-- reply [OK | DUP | FULL, length] | [OTHER, where it stands]
--       | [BADTYPE, key] for a key of another type, and for a place that another program wrote
local events, taken, source = KEYS[1], KEYS[2], ARGV[1]
local limit, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local stands = redis.call('HGET', taken, source) or '0-'
local length = records_of(events)
if stands == ARGV[3] then
  -- A repeat writes for WAIT, as in append.lua. HDEL makes Redis accept HSET when memory is full.
  redis.call('HDEL', taken, '')
  redis.call('HSET', taken, source, stands)
  return {'DUP', length}
end
if not string.find(stands, '^%d+%-%x*$') then return {'BADTYPE', taken} end
if stands ~= ARGV[2] then return {'OTHER', stands} end
length = with_room(events, length, count, limit)
if limit > 0 and length + count > limit then return {'FULL', length} end
local _, refused = add_records(events, KEYS[3], count, 6)
if refused then return refused end
redis.call('HSET', taken, source, ARGV[3])
return {'OK', length + count}
