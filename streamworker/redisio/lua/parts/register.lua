-- Part of other scripts; needs types and ids.

-- Last id and number of entries ever added, of a stream that may not be there.
local function stream_position(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0', 0, 0 end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  return info['last-generated-id'], info['entries-added'], info['length']
end

local function find_group(events, name)
  if redis.call('EXISTS', events) == 0 then return nil end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local group = pairs_of(flat)
    if group['name'] == name then return group end
  end
  return nil
end

-- Makes the lock hash and the consumer group where they are missing; returns whether the lock
-- was there, and its checkpoint.
--
-- A lock that is lost while its group is there resumes from the group's last-delivered-id, which
-- follows the checkpoint; its acked log goes on after its last row, under a new identity, so that
-- readers notice. A group that is lost is made anew at the checkpoint, since trimming asks it.
local function register(lock, events, acked, group_name, start, nonce)
  local group = find_group(events, group_name)
  local checkpoint = redis.call('HGET', lock, 'checkpoint')
  if checkpoint then
    if not group then
      local entries = redis.call('HGET', lock, 'entries') or '0'
      redis.call('XGROUP', 'CREATE', events, group_name, checkpoint, 'MKSTREAM', 'ENTRIESREAD', entries)
    end
    return true, checkpoint
  end

  local last, added, length = stream_position(events)
  local entries
  if group then
    checkpoint = group['last-delivered-id']
    entries = group['entries-read'] or nil
  elseif start == '$' then
    checkpoint = last
  else
    checkpoint = start
  end
  if not entries then
    -- Entries that were trimmed before this group came are counted as done.
    entries = id_less(checkpoint, last) and added - length or added
  end
  if not group then
    redis.call('XGROUP', 'CREATE', events, group_name, checkpoint, 'MKSTREAM', 'ENTRIESREAD', text(entries))
  end
  local log_last = stream_position(acked)
  local now = text(server_ms())
  redis.call('HSET', lock, 'owner', '', 'epoch', now, 'generation', '0', 'checkpoint', checkpoint,
    'entries', text(entries), 'rows', string.match(log_last, '^(%d+)'), 'log', nonce .. '.' .. now,
    'since', now, 'state', '', 'reason', '')
  return false, checkpoint
end
