-- uses: groups
-- Returns the smallest id that a group still needs, or nil if there is no group: then nothing says which
-- entries may be dropped. A streamworker group needs the entries after the checkpoint in its lock. The Redis
-- consumer group of that name only shows the checkpoint to other tools, which can move or remove it, so the
-- script does not read it, and corrects it here. A group of another program needs the entries that it has not
-- read or not acknowledged. If the checkpoint of a streamworker group cannot be read, all entries stay.
local function keep_from(events)
  local keep
  local function needs(id)
    if not keep or id_less(id, keep) then keep = id end
  end
  fold_counts(events)
  local shown, names = groups_at(events), {}
  local listed = redis.pcall('HGETALL', groups_key(events))
  if listed.err then return '0-0' end
  for name in pairs(shown) do names[name] = false end
  for i = 1, #listed, 2 do names[listed[i]] = true end
  names[TRIMMED] = nil
  for name, is_listed in pairs(names) do
    local held = redis.pcall('HMGET', beside(events, 'lock:' .. name), 'checkpoint', 'entries')
    if held.err or is_listed and not held[1] then return '0-0' end
    local group = shown[name]
    if held[1] then
      needs(successor(held[1]))
      show_group(events, name, group, held[1], held[2])
    else
      needs(successor(group['last-delivered-id']))
      local smallest = group['pending'] > 0 and redis.call('XPENDING', events, name)[2]
      if smallest then needs(smallest) end
    end
  end
  return keep
end

-- Drops source entries that no group needs: with '~' whole nodes of the stream and at most `limit` entries.
-- It counts the entries, so that they differ from those that others delete.
local function trim_to(events, ...)
  local dropped = redis.call('XTRIM', events, 'MINID', ...)
  if dropped > 0 then redis.pcall('HINCRBY', groups_key(events), TRIMMED, dropped) end
  count_dropped(events)
  return dropped
end

local function trim_events(events, limit)
  if redis.call('EXISTS', events) == 0 then return 0 end
  local keep = keep_from(events)
  if not keep then return 0 end
  return trim_to(events, '~', keep, 'LIMIT', limit)
end

-- Drops acked entries whose last row is at or below `rows`: an entry's id is the rows up to its end.
local function trim_acked(acked, rows, limit)
  if rows <= 0 then return 0 end
  return redis.call('XTRIM', acked, 'MINID', '~', string.format('%.0f-0', rows + 1), 'LIMIT', limit)
end
