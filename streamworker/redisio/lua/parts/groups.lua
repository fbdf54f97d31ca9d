-- uses: ids counts
-- A hash beside a partition lists the streamworker groups that read it, so that a tool that moves or removes
-- Redis consumer groups cannot remove one from the list. It maps the name to the number of entries that
-- others had deleted when the count in the group's lock was last compared with the stream. TRIMMED counts
-- the entries that our own trims dropped.
local TRIMMED = '#trimmed'  -- no group can have this name
local COUNTED_MAX = 10000

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

-- Makes entries-added of a stream count records, so that the lag in XINFO GROUPS does.
local function fold_counts(events)
  local extra, _, folded = counts_of(events)
  if extra == folded or redis.call('EXISTS', events) == 0 then return end
  local info = pairs_of(redis.call('XINFO', 'STREAM', events))
  local added = info['entries-added'] + extra - folded
  local set = redis.pcall('XSETID', events, info['last-generated-id'], 'ENTRIESADDED', text(added))
  if set.err then return end  -- another program wrote the counts
  redis.call('HSET', beside(events, 'counts'), 'folded', string.format('%.0f', extra))
end

-- Returns a stream's last id, entries ever added as Redis counts them, length and first id; the stream may be
-- missing.
local function stream_position(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0', 0, 0, nil end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  local first = info['first-entry']
  return info['last-generated-id'], info['entries-added'], info['length'], first and first[1]
end

-- Returns how many entries others ever deleted: those added that are neither present nor trimmed by us.
local function deleted_by_others(events, added, length)
  local _, _, folded = counts_of(events)
  return added - folded - length - (tonumber(redis.call('HGET', groups_key(events), TRIMMED) or '') or 0)
end

-- Returns how many records were ever added, by what Redis counts.
local function records_added(events, added)
  local extra, _, folded = counts_of(events)
  return added + extra - folded
end

-- Returns how many records follow an id; nil for COUNTED_MAX entries and more.
local function left_after(events, id, length, first)
  local extra, before = counts_of(events)
  if not first or (extra == 0 and id_less(id, first)) then return length + extra - before end
  local left, entries, last = 0, 0, id
  repeat
    -- Few at a time: an entry of many records may have 64 kB.
    local slice = redis.pcall('XRANGE', events, '(' .. last, '+', 'COUNT', extra == 0 and COUNTED_MAX or 100)
    for _, entry in ipairs(slice) do left = left + records_after(entry, id) end
    entries = entries + #slice
    last = #slice > 0 and slice[#slice][1]
  until not last or extra == 0 or entries >= COUNTED_MAX / 10
  return entries < (extra == 0 and COUNTED_MAX or COUNTED_MAX / 10) and left or nil
end

-- Compares a lock's count of records up to its checkpoint with the stream, if others have deleted entries
-- since the last comparison. Returns how many of those the group had not committed: the lock counts them in
-- `gone`, and in `entries`. With more than COUNTED_MAX entries to count, a later call does it.
local function settle(lock, events, group)
  local _, added, length, first = stream_position(events)
  local deleted = deleted_by_others(events, added, length)
  if redis.call('HGET', groups_key(events), group) == text(deleted) then return 0 end
  local held = redis.call('HMGET', lock, 'checkpoint', 'entries')
  if not (is_id(held[1]) and tonumber(held[2] or '')) then return 0 end
  local left = left_after(events, held[1], length, first)
  if not left then return 0 end
  local entries = math.max(0, records_added(events, added) - left)  -- as in `register`
  local gone = entries - tonumber(held[2])
  redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
  redis.call('HSET', lock, 'entries', text(entries))
  redis.call('HSET', groups_key(events), group, text(deleted))
  if gone <= 0 then return 0 end
  redis.pcall('HINCRBY', lock, 'gone', gone)
  return gone
end
