-- uses: ids
-- A hash beside a partition lists the streamworker groups that read it, so that a tool that moves or removes
-- Redis consumer groups cannot remove one from the list. It maps the name to the number of entries that
-- others had deleted when the count in the group's lock was last compared with the stream. TRIMMED counts
-- the entries that our own trims dropped.
local TRIMMED = '#trimmed'  -- no group can have this name
local COUNTED_MAX = 10000

local function beside(events, kind)
  return string.match(events, '^(.*):events$') .. ':' .. kind
end

local function groups_key(events)
  return beside(events, 'groups')
end

-- Returns the Redis consumer groups by name.
local function groups_at(events)
  local found = {}
  if redis.call('EXISTS', events) == 0 then return found end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local group = pairs_of(flat)
    found[group['name']] = group
  end
  return found
end

-- Moves the Redis consumer group to the checkpoint, for other tools. It is for display only, so a failure to
-- create it when memory is full is ignored.
local function show_group(events, name, shown, checkpoint, entries)
  if not shown then
    redis.pcall('XGROUP', 'CREATE', events, name, checkpoint, 'MKSTREAM', 'ENTRIESREAD', entries)
  elseif shown['last-delivered-id'] ~= checkpoint or tostring(shown['entries-read']) ~= entries then
    redis.pcall('XGROUP', 'SETID', events, name, checkpoint, 'ENTRIESREAD', entries)
  end
end

-- Returns a stream's last id, number of entries ever added, length and first id; the stream may be missing.
local function stream_position(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0', 0, 0, nil end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  local first = info['first-entry']
  return info['last-generated-id'], info['entries-added'], info['length'], first and first[1]
end

-- Returns how many entries others ever deleted: those added that are neither present nor trimmed by us.
local function deleted_by_others(events, added, length)
  return added - length - (tonumber(redis.call('HGET', groups_key(events), TRIMMED) or '') or 0)
end

-- Returns how many entries follow an id; nil for COUNTED_MAX and more.
local function left_after(events, id, length, first)
  if not first or id_less(id, first) then return length end
  local left = #redis.call('XRANGE', events, '(' .. id, '+', 'COUNT', COUNTED_MAX)
  return left < COUNTED_MAX and left or nil
end

-- Compares a lock's count of entries up to its checkpoint with the stream, if others have deleted entries
-- since the last comparison. Returns how many of those the group had not committed: the lock counts them in
-- `gone`, and in `entries`. With more than COUNTED_MAX entries to count, a later call does it.
local function settle(lock, events, group)
  local _, added, length, first = stream_position(events)
  local deleted = deleted_by_others(events, added, length)
  if redis.call('HGET', groups_key(events), group) == text(deleted) then return 0 end
  local held = redis.call('HMGET', lock, 'checkpoint', 'entries')
  local left = left_after(events, held[1], length, first)
  if not left then return 0 end
  local gone = added - left - tonumber(held[2])
  redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
  redis.call('HSET', lock, 'entries', text(added - left))
  redis.call('HSET', groups_key(events), group, text(deleted))
  if gone <= 0 then return 0 end
  redis.pcall('HINCRBY', lock, 'gone', gone)
  return gone
end
