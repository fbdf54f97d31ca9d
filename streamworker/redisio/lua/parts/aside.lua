-- uses: ids
-- Operators' requests to set a record aside stand in a lock's field `aside`, a line for each: id, space, reason.

-- Returns the lines of the records after an id, without that of one record.
local function aside_after(lines, id, without)
  local left = {}
  for line in string.gmatch(lines or '', '[^\n]+') do
    local its = string.match(line, '^%d+%-%d+')
    if its and its ~= without and id_less(id, its) then left[#left + 1] = line end
  end
  return left
end

-- Stores the lines, or removes the field if there are none.
local function store_aside(lock, lines)
  if #lines > 0 then return redis.call('HSET', lock, 'aside', table.concat(lines, '\n')) end
  return redis.call('HDEL', lock, 'aside')
end
