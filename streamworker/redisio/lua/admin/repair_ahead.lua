-- uses: writes groups epoch
-- Lets a partition go on whose acked log is ahead of its lock: rows are counted on from the end of the log.
-- Somebody has restored an older lock, or another program has written to the log.
--
-- The log stays as it is, and so does the checkpoint: records that were committed behind it are handled again.
-- The owner is fenced. So the next entry has a later epoch, and readers take its step back in the source for
-- one that was meant.
--
-- KEYS  lock (hash)  acked (stream)
-- ARGV  log: its identity; '' to look only
-- reply [OK, ahead or done, last id of the log] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'log', 'rows', 'epoch')
if held[1] and not is_count(held[2]) then return {'BADTYPE', lock} end
local last_id = stream_position(acked)
local ends = string.match(last_id, '^%d+')
local is_ahead = held[2] and digits_less(held[2], ends)
if log == '' or not is_ahead then return {'OK', is_ahead and 'ahead' or 'done', last_id} end
if held[1] ~= log then return {'CHANGED'} end
if not is_count(ends) then return {'BADTYPE', acked} end  -- no row can follow

local newest = redis.call('XRANGE', acked, last_id, last_id)[1]
local link, epoch = newest and pairs_of(newest[2]) or {}, held[3]
free(lock)
redis.call('HDEL', lock, 'tail')
redis.call('HSET', lock, 'rows', ends)
if is_id(link.last) and is_count(link.epoch) then
  redis.call('HSET', lock, 'tail', ends .. ' ' .. link.last .. ' ' .. link.epoch)
  if digits_less(seen_epoch(epoch), link.epoch) then epoch = link.epoch end
end
raise_epoch(lock, epoch)
return {'OK', 'done', last_id}
