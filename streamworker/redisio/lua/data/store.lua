-- Stores fields of a hash that say how something is declared, also when memory is full: a worker must be able
-- to start then, or nothing would ever be trimmed again. Redis allows HDEL even then, and all writes after it.
-- A producer has no right for it, and is refused when memory is full, as its records are.
--
-- KEYS  hash (hash)
-- ARGV  command: HSET, or HSETNX to keep what is there  fields...: and values
-- reply [OK] | [BADTYPE, key]
local may = redis.acl_check_cmd or function() return true end  -- the test kit's server has no users
if may('HDEL', hash, '') then redis.call('HDEL', hash, '') end
for i = fields_at, #ARGV, 2 do redis.call(command, hash, ARGV[i], ARGV[i + 1]) end
return {'OK'}
