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
-- KEYS  members (string)  control (any)  beats (any)  loads (any)  damaged (any)
-- ARGV  expected: the generation that was read; '' if there was no document
--       body: the new document, JSON without its generation: '{' and at least one field
--       least (number): the minimum of the new generation
--       message (list): its fields and values, without its generation
--       removed (list): for each member its id, and its heartbeat as it was read; '' if there was none, '*' for
--         any. If one has another heartbeat by now, it woke, and nothing changes
--       added (list): for each member its id, and 'client id|run id|load'
-- reply [OK, generation, server ms] | [CONFLICT, document or nil, server ms] | [BADTYPE, key]
local now = server_ms()
local document = redis.call('GET', members)
local generation = generation_of(document) or ''
if generation ~= expected or (document and generation == '') then
  return {'CONFLICT', document, now}
end

if not is_a(beats, 'hash') then
  local present = present_in(members)
  if not present or not begin_beats(beats, present, damaged, now) then return {'BADTYPE', beats} end
end
for i = removed_at, removed_end, 2 do
  if ARGV[i + 1] ~= '*' and ARGV[i + 1] ~= (redis.call('HGET', beats, ARGV[i]) or '') then
    return {'CONFLICT', document, now}
  end
end
begin_writes(beats)  -- dead members must be removed even when memory is full, and this script writes little
-- Without a document there are no members. A former member learns that from its next heartbeat.
if generation == '' then
  for _, hash in ipairs({beats, is_a(loads, 'hash') and loads or nil}) do
    local left = redis.call('HGETALL', hash)
    for j = 1, #left, 2 do redis.call('HDEL', hash, left[j]) end
  end
end
local next_generation = text(math.max(now, (tonumber(generation) or 0) + 1, least))
write_document(members, body, next_generation)
post(control, 'generation', next_generation, unpack(ARGV, message_at, message_end))
for i = removed_at, removed_end, 2 do drop_beat(beats, loads, ARGV[i]) end
for i = added_at, added_end, 2 do redis.call('HSET', beats, ARGV[i], text(now) .. '|' .. ARGV[i + 1]) end
return {'OK', next_generation, now}
