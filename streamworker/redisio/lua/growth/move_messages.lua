-- uses: epoch ids tables outbox
-- Replaces messages of an outbox, whose target takes nothing more, by messages with their records for the partitions
-- that follow. Only the owner of the source's lock can do it, and only behind the last message that it knows: so no
-- commit comes in between. The script recognises a repeated call by the last message that it adds; without messages
-- a repeat changes nothing.
--
-- KEYS  lock (hash)  messages (stream)  heads (hash)
-- ARGV  owner  epoch  after: id of the last message
--       removed (list): ids of messages  noted (list): fields and values of the heads
--       gone (list): fields of the heads that are removed
--       sends (list): messages, see parts/outbox.lua
-- reply [OK] | [FENCED] | [GAP] the last message is another | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
local last = redis.call('HGET', heads, '#') or ''
local is_repeat = sends_at <= sends_end and last == ARGV[sends_end - 4]
if not is_repeat then
  if last ~= after then return {'GAP'} end
  -- The first write is the one that needs memory, as in commit.lua.
  local refused = outbox_add(messages, sends_at, sends_end)
  if refused then return refused end
  for i = removed_at, removed_end do redis.call('XDEL', messages, ARGV[i]) end
  outbox_done(heads, sends_at, sends_end)
  in_chunks('HDEL', heads, gone_at, gone_end)
  in_chunks('HSET', heads, noted_at, noted_end)
end
-- A repeat writes for WAIT, as in append.lua. HDEL makes Redis accept HSET when memory is full.
redis.call('HDEL', heads, '')
redis.call('HSET', heads, '#', redis.call('HGET', heads, '#') or after)
return {'OK'}
