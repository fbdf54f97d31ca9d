-- uses: groups
-- Opens an outbox for whoever writes and forwards from now on. It writes, so that a WAIT after it covers all
-- that is in the outbox; a commit that nobody has confirmed may have left outbox.
--
-- KEYS  messages (stream)  heads (hash)
-- reply [OK, fields and values of the heads] | [BADTYPE, key] for a key of another type, and for heads that
--       another program wrote
local last, known = stream_position(messages), redis.call('HGET', heads, '#')
if known and not is_id(known) then return {'BADTYPE', heads} end
if last ~= '0-0' then
  redis.call('HDEL', heads, '')  -- changes nothing, and makes Redis accept HSET when memory is full
  if known and id_less(known, last) then
    -- A commit was refused after it had added these, and was not tried again.
    for _, each in ipairs(redis.call('XRANGE', messages, '(' .. known, '+')) do
      redis.call('XDEL', messages, each[1])
    end
  end
  -- If another program deleted the heads, the numbers go on from the last message.
  redis.call('HSET', heads, '#', last)
elseif known then
  -- If another program deleted the outbox, its numbers go on from the heads.
  redis.call('HDEL', heads, '')
  redis.call('HSET', heads, '#', known)
end
return {'OK', redis.call('HGETALL', heads)}
