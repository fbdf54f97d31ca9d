-- uses: ids counts
-- A hash beside a partition lists the streamworker groups that read it, so that a tool that moves or removes
-- Redis consumer groups cannot remove one from the list. It maps the name to ''; an earlier release counted there.
local COUNTED_MAX = 10000
local TOP = '18446744073709551615-18446744073709551615'  -- the last id of a partition that is sealed

-- The archiver of a stream is the group `archive`, whose checkpoint follows what it has put. What is archived may
-- have been trimmed, whoever lags behind: that is read from the archive.
-- Returns up to which id the archive holds a partition, and how many records these are; nil without an archive.
-- A processor of that name, of a release without archives, has no `before` in its lock.
local function archived_of(events)
  local held = redis.pcall('HMGET', beside(events, 'lock:archive'), 'checkpoint', 'entries', 'before')
  if held.err or not held[3] or not is_id(held[1]) or held[1] == '0-0' then return nil end
  return held[1], tonumber(held[2] or '') or 0
end

-- Returns whether the archive holds records behind an id.
local function is_archived_behind(events, id)
  local archived = archived_of(events)
  return archived and id_less(id, archived)
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
local function show_group(events, name, shown, checkpoint)
  if not shown then
    redis.pcall('XGROUP', 'CREATE', events, name, checkpoint, 'MKSTREAM')
  elseif shown['last-delivered-id'] ~= checkpoint then
    redis.pcall('XGROUP', 'SETID', events, name, checkpoint)
  end
end

-- Returns a stream's last id, entries ever added as Redis counts them, length, first entry and the id of the newest
-- entry, which is not the last id where another program deleted that; the stream may be missing. Of a partition
-- that is sealed the last id is the one before that, or the newest if the note of it is lost; the sixth value tells.
local function stream_position(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0', 0, 0, nil end
  local info = pairs_of(redis.call('XINFO', 'STREAM', stream))
  local newest, last = info['last-entry'] and info['last-entry'][1] or nil, info['last-generated-id']
  local is_sealed = last == TOP and string.find(stream, ':events$') ~= nil
  if is_sealed then
    last = string.match(redis.call('HGET', beside(stream, 'counts'), 'sealed') or '', '^%d+%-%d+') or newest or '0-0'
  end
  return last, info['entries-added'], info['length'], info['first-entry'] or nil, newest, is_sealed
end

-- Returns how many records were ever added.
local function records_added(events, added)
  return added + counts_of(events) - (tonumber(redis.call('HGET', beside(events, 'counts'), 'folded') or '') or 0)
end

-- Notes how many entries are no longer there, and returns how many records were ever added. The caller has
-- written before, or Redis refuses this when memory is full.
local function note_dropped(events, added, length)
  local records, counts = records_added(events, added), beside(events, 'counts')
  local dropped = text(math.max(0, records - counts_of(events) - length))
  if redis.call('HGET', counts, 'dropped') ~= dropped then redis.call('HSET', counts, 'dropped', dropped) end
  return records
end

-- Counts the records after an id, in the entries after another.
local function count_after(events, after, since, most)
  -- Few at a time where an entry may have 64 kB.
  local size = counts_of(events) == 0 and most or math.min(200, most)
  local slice = redis.pcall('XRANGE', events, '(' .. since, '+', 'COUNT', size)
  local counted, last = 0, since
  for _, entry in ipairs(slice) do
    last, counted = entry[1], counted + records_after(entry, after)
  end
  return counted, last, #slice == size
end

-- Returns how many records follow a checkpoint, if the ends of the stream show it.
local function left_at_ends(events, checkpoint, newest, length, first)
  if length == 0 or not id_less(checkpoint, newest) then return 0 end
  if not id_less(checkpoint, first[1]) then return nil end
  local extra, before = counts_of(events)
  return length + extra - before - records_after(first, '0-0') + records_after(first, checkpoint)
end

-- As `left_at_ends`, and counts where the ends do not show it. Of very many the count is too high, and the second
-- value true.
local function left_behind(events, checkpoint, newest, length, first)
  local left = left_at_ends(events, checkpoint, newest, length, first)
  if left then return left end
  local counted, since, more = 0, checkpoint, true
  left = 0
  for _ = 1, 10 do
    if more then
      counted, since, more = count_after(events, checkpoint, since, COUNTED_MAX / 10)
      left = left + counted
    end
  end
  local extra, before = counts_of(events)
  return more and length + extra - before or left, more
end

-- Counts what others have deleted before a group had committed it. It shows when the group has come to the end
-- of the stream, or stands before its first entry. The lock counts those records as passed, in `entries`, and
-- tells of them in `gone`. Returns how many were not told of before.
--
-- A group that reads the archive passes records without a count that were erased there or have expired. Up to the
-- id in `cold` they are counted as passed, and not told of. The archive's own count never falls: it is in the files.
local function count_deleted(lock, events)
  local held = redis.call('HMGET', lock, 'checkpoint', 'entries', 'cold')
  if not (is_id(held[1]) and tonumber(held[2] or '')) then return 0 end
  redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
  local archived, cold = archived_of(events), is_id(held[3]) and held[3]
  if archived and id_less(held[1], archived) then
    if not cold then redis.call('HSET', lock, 'cold', archived) end
    return 0
  end
  if cold and id_less(held[1], cold) then return 0 end
  local _, added, length, first, newest = stream_position(events)
  local records = note_dropped(events, added, length)
  local left = left_at_ends(events, held[1], newest, length, first)
  if not left then return 0 end
  local gone = math.max(0, records - left) - tonumber(held[2])
  -- What is present may be counted too high for a while, see count_dropped; the end is exact.
  if gone < 0 and (left > 0 or lock == beside(events, 'lock:archive')) then return 0 end
  if held[3] then redis.call('HDEL', lock, 'cold') end
  if gone == 0 then return 0 end
  redis.call('HSET', lock, 'entries', text(tonumber(held[2]) + gone))
  if gone < 0 or cold then return 0 end
  redis.pcall('HINCRBY', lock, 'gone', gone)
  return gone
end
