-- uses: groups
-- Returns the smallest id that a group still needs, and how many records were ever added up to the slowest
-- group's checkpoint; or nil if there is no group: then nothing says which entries may be dropped. A
-- streamworker group needs the entries after the checkpoint in its lock. The Redis consumer group of that name
-- only shows the checkpoint to other tools, which can move or remove it, so the script does not read it, and
-- corrects it here. Of what the archive holds such a group needs nothing. A group of another program needs the entries that it has not read or not acknowledged. If
-- the checkpoint of a streamworker group cannot be read, all entries stay.
local function keep_from(events)
  local keep
  local passed = math.huge
  local archived, archived_records = archived_of(events)
  local function needs(id, records)
    if not keep or id_less(id, keep) then keep = id end
    passed = math.min(passed, tonumber(records or '') or 0)
  end
  local shown, names = groups_at(events), {}
  local listed = redis.pcall('HGETALL', groups_key(events))
  if listed.err then return '0-0', 0 end
  for name in pairs(shown) do names[name] = false end
  for i = 1, #listed, 2 do names[listed[i]] = true end
  names['#trimmed'] = nil  -- a count of an earlier release; no group can have this name
  for name, is_listed in pairs(names) do
    local held = redis.pcall('HMGET', beside(events, 'lock:' .. name), 'checkpoint', 'entries')
    local group = shown[name]
    if is_id(held[1]) then
      if archived and id_less(held[1], archived) then
        needs(successor(archived), archived_records)
      else
        needs(successor(held[1]), held[2])
      end
      show_group(events, name, group, held[1])
    elseif held.err or held[1] or is_listed then
      needs('0-0', 0)
    else
      local read = (group['entries-read'] or 0) - group['pending']
      needs(successor(group['last-delivered-id']), read)
      local smallest = group['pending'] > 0 and redis.call('XPENDING', events, name)[2]
      if smallest then needs(smallest, read) end
    end
  end
  return keep, passed
end

-- Drops source entries that no group needs: with '~' whole nodes of the stream and at most `limit` entries.
local function trim_to(events, ...)
  local dropped = redis.call('XTRIM', events, 'MINID', ...)
  local _, added, length = stream_position(events)
  note_dropped(events, added, length)
  count_dropped(events)
  return dropped
end

local function trim_events(events, limit)
  if redis.call('EXISTS', events) == 0 then return 0 end
  local keep = keep_from(events)
  if not keep then return 0 end
  return trim_to(events, '~', keep, 'LIMIT', limit)
end

-- Counts the records that stay although every group has passed them, and notes the time of the oldest.
local function count_retained(events, passed)
  local counts = beside(events, 'counts')
  redis.call('HDEL', counts, 'oldest')  -- and so Redis accepts HSET when memory is full
  local _, added, length, first = stream_position(events)
  local extra, before = counts_of(events)
  local present = length + extra - before
  local retained = passed - (note_dropped(events, added, length) - present)
  redis.call('HSET', counts, 'retained', text(math.max(0, math.min(present, retained))))
  if first then redis.call('HSET', counts, 'oldest', string.match(first[1], '^%d+')) end
end

-- Drops acked entries whose last row is at or below `rows`: an entry's id is the rows up to its end.
local function trim_acked(acked, rows, limit)
  if rows <= 0 then return 0 end
  return redis.call('XTRIM', acked, 'MINID', '~', text(rows + 1) .. '-0', 'LIMIT', limit)
end

-- Returns how many acked entries hold the rows after `past`. Redis cannot count them without reading them, so
-- it takes all entries to have the same number of rows, if retention keeps entries before them.
local function waiting_entries(acked, total, past)
  local entries = redis.call('XLEN', acked)
  local first = past > 0 and redis.call('XRANGE', acked, '-', '+', 'COUNT', 1)[1]
  if not first then return entries end
  local held = total - tonumber(string.match(first[1], '^%d+')) + (tonumber(pairs_of(first[2])['rows'] or '') or 1)
  return math.ceil(entries * math.min(1, math.max(0, total - past) / held))
end
