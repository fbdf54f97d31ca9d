-- uses: groups writes
-- Creates the lock hash and the consumer group if they are missing, and lists the group; returns whether
-- the lock existed, and its checkpoint.
--
-- If a lock is lost while its group is listed, the new lock resumes from the consumer group's
-- last-delivered-id, which follows the checkpoint. Its acked log continues after its last row, under a new
-- identity, so that readers notice. A consumer group that is not listed was made by another program, and
-- its position is ignored.
local function register(lock, events, acked, group_name, start, nonce)
  begin_writes(lock)
  fold_counts(events)
  local group = groups_at(events)[group_name]
  local held = redis.call('HMGET', lock, 'checkpoint', 'entries')
  local checkpoint, entries = held[1], nil
  local is_listed = redis.call('HEXISTS', groups_key(events), group_name) == 1
  if checkpoint then
    if not is_listed then redis.call('HSET', groups_key(events), group_name, '') end
    show_group(events, group_name, group, checkpoint, held[2] or '0')
    return true, checkpoint
  end

  local last, added, length, first = stream_position(events)
  if group and is_listed then
    checkpoint = group['last-delivered-id']
    entries = group['entries-read'] or nil
  elseif start == '$' then
    checkpoint = last
  else
    checkpoint = start
  end
  if not entries then
    -- Entries that were trimmed before this group registered count as committed.
    local extra, before = counts_of(events)
    local left = left_after(events, checkpoint, length, first) or length + extra - before
    -- The stream counts a copy of an entry of many records, which another program added, as one record.
    entries = math.max(0, records_added(events, added) - left)
  end
  show_group(events, group_name, group, checkpoint, text(entries))
  local log_last = stream_position(acked)
  local now = text(server_ms())
  redis.call('HSET', lock, 'owner', '', 'epoch', now, 'generation', '0', 'checkpoint', checkpoint,
    'entries', text(entries), 'rows', string.match(log_last, '^(%d+)'), 'log', nonce .. '.' .. now,
    'since', now, 'state', '', 'reason', '')
  redis.call('HSET', groups_key(events), group_name, text(deleted_by_others(events, added, length)))
  return false, checkpoint
end
