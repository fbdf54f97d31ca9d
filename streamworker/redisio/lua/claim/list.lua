-- Lists the ownership entries, with the server's time, by which they are dated.
--
-- KEYS  claims (hash; field 'last': the newest ETag)
-- reply [OK, server ms, partition, entry, ...] | [BADTYPE, key]
local reply = {'OK', server_ms()}
for _, part in ipairs(redis.call('HGETALL', claims)) do reply[#reply + 1] = part end
return reply
