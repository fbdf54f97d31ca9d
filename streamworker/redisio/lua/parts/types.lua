-- Part of other scripts.

-- The first of KEYS that holds another type than expected, or nil. A script that fails half-way
-- is not rolled back, so this is asked before the first write. Of 'any' every type is expected.
local function wrong_type(expected)
  for i, kind in ipairs(expected) do
    if kind ~= 'any' then
      local found = redis.call('TYPE', KEYS[i]).ok
      if found ~= 'none' and found ~= kind then return KEYS[i] end
    end
  end
  return nil
end

-- Whether a key holds a type, or nothing: where a script can do without what another program wrote over.
local function is_a(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

local function server_ms()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- Whole numbers up to 2^53 as text; tostring() would print 1.7e+12.
local function text(number)
  return string.format('%.0f', number)
end
