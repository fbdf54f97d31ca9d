-- uses: groups writes
-- Creates the lock hash and the consumer group if they are missing, and lists the group; returns whether
-- the lock existed, and its checkpoint.
--
-- A partition of a later generation of the stream has parents, which share keys with it. Its lock is made with
-- their numbers in `from`: the group handles nothing here before it is done with them (see growth/finish.lua).
--
-- If a lock is lost while its group is listed, the new lock resumes from the consumer group's
-- last-delivered-id, which each trim moves to the checkpoint. Its acked log continues after its last row, under a new
-- identity, so that readers notice. A consumer group that is not listed was made by another program, and
-- its position is ignored.
local function register(lock, events, acked, group_name, start, nonce, parents)
  begin_writes(lock)
  local group = groups_at(events)[group_name]
  local checkpoint = redis.call('HGET', lock, 'checkpoint')
  local is_listed = redis.call('HEXISTS', groups_key(events), group_name) == 1
  if checkpoint then
    redis.call('HSET', groups_key(events), group_name, '')  -- a repeat writes for WAIT, as in append.lua
    show_group(events, group_name, group, checkpoint)
    return true, checkpoint
  end

  local last, added, length, first, newest = stream_position(events)
  if group and is_listed then
    checkpoint = group['last-delivered-id']
  elseif start == '$' then
    checkpoint = last
  else
    checkpoint = start
  end
  -- Entries that were trimmed before this group registered count as committed.
  local left = left_behind(events, checkpoint, newest, length, first)
  -- The stream counts a copy of an entry of many records, which another program added, as one record.
  local entries = math.max(0, note_dropped(events, added, length) - left)
  -- Unless the archive holds them: it begins with the record behind the first `before` ones.
  if checkpoint == '0-0' and group_name ~= 'archive' then
    local held = redis.pcall('HMGET', beside(events, 'lock:archive'), 'before')
    entries = not held.err and tonumber(held[1] or '') or entries
  end
  show_group(events, group_name, group, checkpoint)
  local log_last = stream_position(acked)
  local now = text(server_ms())
  redis.call('HSET', lock, 'owner', '', 'epoch', now, 'generation', '0', 'checkpoint', checkpoint,
    'entries', text(entries), 'rows', string.match(log_last, '^(%d+)'), 'log', nonce .. '.' .. now,
    'since', now, 'state', '', 'reason', '')
  if parents ~= '' then redis.call('HSET', lock, 'from', parents) end
  if group_name == 'archive' then redis.call('HSET', lock, 'before', text(entries)) end
  redis.call('HSET', groups_key(events), group_name, '')
  return false, checkpoint
end
