-- uses: beats
-- Writes a membership document if the generation is still the one that was read, and posts the change to
-- the control stream atomically. A generation is the server's time, and greater than the last one. So a
-- group that was deleted never repeats a generation, and neither does one whose latest changes were lost
-- in a failover. Otherwise a member that knows a lost document would find its generation in another
-- document, and overwrite a change that it has not seen. A generation is also not below one in a lock:
-- otherwise no member could acquire that lock until the server's clock reaches that time.
--
-- If the control stream or the loads have another type, the script leaves them alone: a group works without
-- them. Heartbeats of another type restart, as heartbeat.lua says.
--
-- KEYS  1 members (string)  2 control (any)  3 beats (any)  4 loads (any)  5 damaged (any)
-- ARGV  1 generation that was read; '' if there was no document
--       2 new document, JSON without its generation: '{' and at least one field
--       3 number of fields and values of the message, without its generation, then these
--       then  n, n x (member id, its heartbeat as it was read; '' if there was none, '*' for any): removed
--               members; if one has another heartbeat by now, it woke, and nothing changes
--             n, n x (member id, 'client id|run id|load'): members that were added
--             the minimum of the new generation
-- reply [OK, generation, server ms] | [CONFLICT, document or nil, server ms] | [BADTYPE, key]
local now = server_ms()
local document = redis.call('GET', KEYS[1])
local generation = generation_of(document) or ''
if generation ~= ARGV[1] or (document and generation == '') then
  return {'CONFLICT', document, now}
end

if not is_a(KEYS[3], 'hash') then
  local present = present_in(KEYS[1])
  if not present or not begin_beats(KEYS[3], present, KEYS[5], now) then return {'BADTYPE', KEYS[3]} end
end
local at = 4 + tonumber(ARGV[3])
for i = at + 1, at + 2 * tonumber(ARGV[at]), 2 do
  if ARGV[i + 1] ~= '*' and ARGV[i + 1] ~= (redis.call('HGET', KEYS[3], ARGV[i]) or '') then
    return {'CONFLICT', document, now}
  end
end
begin_writes(KEYS[3])  -- dead members must be removed even when memory is full, and this script writes little
-- Without a document there are no members. A former member learns that from its next heartbeat.
if generation == '' then
  for i = 3, is_a(KEYS[4], 'hash') and 4 or 3 do
    local left = redis.call('HGETALL', KEYS[i])
    for j = 1, #left, 2 do redis.call('HDEL', KEYS[i], left[j]) end
  end
end
local least = tonumber(ARGV[#ARGV]) or 0
local next_generation = text(math.max(now, (tonumber(generation) or 0) + 1, least))
write_document(KEYS[1], ARGV[2], next_generation, KEYS[2], 3)
for _ = 1, tonumber(ARGV[at]) do
  drop_beat(KEYS[3], KEYS[4], ARGV[at + 1])
  at = at + 2
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HSET', KEYS[3], ARGV[at + 1], text(now) .. '|' .. ARGV[at + 2])
  at = at + 2
end
return {'OK', next_generation, now}
