-- uses: tables
-- Removes values of a partition's tables that have expired; only the owner at its epoch may.
--
-- KEYS  lock (hash)  tables...: for each table its values (hash) and its expiry index (zset)
-- ARGV  owner  epoch  most (number): values to remove of each table
-- reply [OK, values removed] | [FENCED] | [BADTYPE, key]
local wrong = wrong_type(lock, 'hash') or wrong_table(tables_at)
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', lock, 'owner', 'epoch')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
local now, removed = text(server_ms()), 0
for i = tables_at, #KEYS, 2 do removed = removed + expire(KEYS[i], KEYS[i + 1], now, most) end
return {'OK', removed}
