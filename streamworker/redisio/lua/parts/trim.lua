-- Part of other scripts; needs ids.

-- The smallest id that some group of the stream has not finished with, or nil where there is no
-- group: then nobody has said what may go. What another program's group was given and has not
-- acknowledged counts as not finished.
local function keep_from(events)
  local keep = nil
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local group = pairs_of(flat)
    local needs = successor(group['last-delivered-id'])
    if group['pending'] > 0 then
      local smallest = redis.call('XPENDING', events, group['name'])[2]
      if smallest and id_less(smallest, needs) then needs = smallest end
    end
    if not keep or id_less(needs, keep) then keep = needs end
  end
  return keep
end

-- Drops what every group is past: whole nodes of the stream, at most `limit` entries.
local function trim_events(events, limit)
  if redis.call('EXISTS', events) == 0 then return 0 end
  local keep = keep_from(events)
  if not keep then return 0 end
  return redis.call('XTRIM', events, 'MINID', '~', keep, 'LIMIT', limit)
end

-- Drops batches whose last row is at or below `rows`: an entry's id is the rows up to its end.
local function trim_acked(acked, rows, limit)
  if rows <= 0 then return 0 end
  return redis.call('XTRIM', acked, 'MINID', '~', string.format('%.0f-0', rows + 1), 'LIMIT', limit)
end
