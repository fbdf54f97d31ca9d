-- An entry id is two whole numbers of up to 64 bits. As text, '10-1'
-- would sort before '9-1'; as Lua numbers, they would lose digits above 2^53.

-- Another program may have written anything where an id is expected.
local function is_id(value)
  return value and string.find(value, '^%d+%-%d+$') ~= nil
end

local function digits_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function id_less(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  if a_ms ~= b_ms then return digits_less(a_ms, b_ms) end
  return digits_less(a_seq, b_seq)
end

-- Returns the next id. If Lua cannot represent its number exactly, it returns the id itself, and a trim
-- keeps one entry more than necessary.
local function successor(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if #seq > 15 then return id end
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

local function pairs_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
