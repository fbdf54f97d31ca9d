-- uses: tables
-- Removes values of a partition's tables that have expired; only the owner at its epoch may.
--
-- KEYS  1 lock (hash)  then for each table its values (hash) and its expiry index (zset)
-- ARGV  1 owner  2 epoch  3 most values to remove of each table
-- reply [OK, values removed] | [FENCED] | [BADTYPE, key]
local wrong = wrong_type({'hash'}) or wrong_table(2)
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'FENCED'} end
local now, removed = text(server_ms()), 0
for i = 2, #KEYS, 2 do removed = removed + expire(KEYS[i], KEYS[i + 1], now, tonumber(ARGV[3])) end
return {'OK', removed}
