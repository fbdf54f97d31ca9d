-- uses: writes aside
-- Writes an operator's request into a partition's lock, where it stands for this owner and all later ones, and
-- raises the version of the requests. An owner that sees another version than it obeys finishes what it has in
-- hand, and acquires the lock again: `acquire` returns the requests, and notes the version as obeyed.
--
-- KEYS  lock (hash)
-- ARGV  request: pause, resume, retry or put  who: gives it  why  id: of the record, for `put`
-- reply [OK, version, owner] | [KEPT, version, owner] if no pause stands that could end, and if the record
--       is committed already | [FULL] if too many records are to be set aside | [MISSING] | [BADTYPE, key]
local ASIDE = 100

local held = redis.call('HMGET', lock, 'checkpoint', 'owner', 'ordered', 'paused_at', 'aside')
if not held[1] then return {'MISSING'} end
if not is_id(held[1]) then return {'BADTYPE', lock} end
local now, last = server_ms(), tonumber(held[3] or '') or 0
if (request == 'resume' and not held[4]) or (request == 'put' and not id_less(held[1], id)) then
  return {'KEPT', held[3] or '0', held[2] or ''}
end
local aside = aside_after(held[5], held[1], id)
if request == 'put' and #aside >= ASIDE then return {'FULL'} end
begin_writes(lock)
if request == 'pause' then
  redis.call('HSET', lock, 'paused_at', text(now), 'paused_by', who, 'paused_why', why)
elseif request == 'resume' then
  redis.call('HDEL', lock, 'paused_at', 'paused_by', 'paused_why')
elseif request == 'put' then
  aside[#aside + 1] = id .. ' by ' .. who .. (why ~= '' and ': ' .. why or '')
  store_aside(lock, aside)
end
if request == 'retry' then redis.call('HDEL', lock, 'tries', 'deaths') end
local version = text(math.max(now, last + 1))
redis.call('HSET', lock, 'ordered', version)
return {'OK', version, held[2] or ''}
