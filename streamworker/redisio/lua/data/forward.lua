-- uses: taking
-- Takes one message of an outbox into a partition. Its marks are positions: a number of records and a digest of
-- all of them. If the partition stands elsewhere, one of the two has gone back after a failover, or a later
-- message was taken.
--
-- KEYS  events (stream)  taken (hash)  counts (hash)
-- ARGV  source  since: where the message begins  through: where it ends
--       limit (number): records that the partition may hold; 0 for no limit
--       records...: see parts/taking.lua
-- reply [OK | DUP | OTHER | SEALED | FULL, where it stood, length, 1]
--       | [BADTYPE, key] for a key of another type, and for a position that another program wrote
local known = redis.call('HGET', taken, source)
local stands = known or '0-'
if not string.find(stands, '^%d+%-%x*$') then return {'BADTYPE', taken} end
local code, _, length = take(events, counts, since, through, stands, nil, limit, records_at)
if code == 'OK' then
  redis.call('HSET', taken, source, through)
elseif code == 'DUP' or code == 'OTHER' then
  -- The source deletes what is here. HDEL makes Redis accept HSET when memory is full.
  redis.call('HDEL', taken, '')
  if known then redis.call('HSET', taken, source, known) end
end
return code.err and code or {code, stands, length or 0, 1}
