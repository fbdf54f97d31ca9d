-- Strings and hashes of a store. Streams, sorted sets and all other values are objects of Python; `types` knows what
-- each key holds, wherever that is. A space has the tables of one store; `enter` makes it the one that commands see.
local lacks_python, python_drop, python_move, python_sum = ...
local error, type, unpack, select = error, type, unpack, select
local floor, format, sub, find = math.floor, string.format, string.sub, string.find

local READ_MAX = 3000  -- unpack() fails at 8,000 values

local strings, hashes, orders, types, expiry, touched, now_us

local function enter(space, us)
  strings, hashes, orders, types, expiry, touched, now_us =
    space.strings, space.hashes, space.orders, space.types, space.expiry, space.touched, us or now_us
end

local function refuse(why)
  error({err = why}, 0)
end

-- Redis gets a number with at most 17 digits.
local function word(value)
  if type(value) == 'string' then return value end
  if type(value) == 'number' then return format('%.17g', value) end
  refuse('ERR Command arguments must be strings or integers')
end

local function words(...)
  local found = {...}
  for i = 1, select('#', ...) do
    if type(found[i]) ~= 'string' then found[i] = word(found[i]) end
  end
  return found
end

local function whole(value)
  value = word(value)
  if value == '0' or find(value, '^%-?[1-9]%d*$') and #value < 16 then return tonumber(value) end
  refuse('ERR value is not an integer or out of range')
end

-- Removes a key; returns whether it was there.
local function drop(key)
  local kind = types[key]
  if not kind then return false end
  if kind == 'hash' then
    hashes[key], orders[key] = nil, nil
  elseif kind == 'string' then
    strings[key] = nil
  else
    python_drop(key)
  end
  types[key], expiry[key], touched[key] = nil, nil, true
  return true
end

-- Returns what a key holds, or nil.
local function type_at(key)
  local until_ms = expiry[key]
  if until_ms and until_ms <= floor(now_us / 1000) then drop(key) end
  return types[key]
end

-- Refuses a key that is there, since it holds another type.
local function no_other(key)
  if type_at(key) then refuse('WRONGTYPE Operation against a key holding the wrong kind of value') end
end

-- Nothing that expires is a hash.
local function hash_at(key)
  local found = hashes[key]
  if not found then no_other(key) end
  return found
end

local function string_at(key)
  if expiry[key] then type_at(key) end
  local found = strings[key]
  if not found then no_other(key) end
  return found
end

local function put_string(key, value, until_ms)
  if types[key] ~= 'string' then drop(key) end
  strings[key], types[key], expiry[key], touched[key] = value, 'string', until_ms, true
end

-- Sets fields in the order in which they come; returns how many are new.
local function put_fields(key, found, flat, count)
  if not found then
    found = {}
    hashes[key], orders[key], types[key] = found, {}, 'hash'
  end
  local order = orders[key]
  local before = #order
  local last = before
  for i = 1, count, 2 do
    local field = flat[i]
    if found[field] == nil then
      last = last + 1
      order[last] = field
    end
    found[field] = flat[i + 1]
  end
  touched[key] = true
  return last - before
end

local commands = {}

function commands.TIME()
  return {format('%.0f', floor(now_us / 1e6)), format('%.0f', now_us % 1e6)}
end

function commands.TYPE(key)
  return {ok = type_at(key) or 'none'}
end

function commands.EXISTS(...)
  local count = 0
  for i = 1, select('#', ...) do
    if type_at((select(i, ...))) then count = count + 1 end
  end
  return count
end

function commands.UNLINK(...)
  local count = 0
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    if type_at(key) and drop(key) then count = count + 1 end
  end
  return count
end

function commands.RENAME(key, new)
  local kind = type_at(key)
  if not kind then refuse('ERR no such key') end
  if key == new then return {ok = 'OK'} end
  drop(new)
  if kind == 'hash' or kind == 'string' then
    strings[new], hashes[new], orders[new] = strings[key], hashes[key], orders[key]
    strings[key], hashes[key], orders[key] = nil, nil, nil
  else
    python_move(key, new)
  end
  types[new], expiry[new], touched[new] = kind, expiry[key], true
  types[key], expiry[key], touched[key] = nil, nil, true
  return {ok = 'OK'}
end

-- Takes each value for a small one.
function commands.MEMORY(_, key)
  return type_at(key) and 64 or false
end

function commands.GET(key)
  return string_at(key) or false
end

function commands.GETRANGE(key, from, to)
  return sub(string_at(key) or '', whole(from) + 1, whole(to) + 1)
end

function commands.SET(key, value, how, ms)
  value = word(value)
  local until_ms
  if how == 'PX' then
    until_ms = floor(now_us / 1000) + whole(ms)
  elseif how == 'KEEPTTL' then
    type_at(key)  -- which forgets a key that has expired
    until_ms = expiry[key]
  elseif how then
    lacks_python('SET ' .. how)
  end
  put_string(key, value, until_ms)
  return {ok = 'OK'}
end

function commands.HGET(key, field)
  local found = hash_at(key)
  return found and found[word(field)] or false
end

function commands.HMGET(key, ...)
  local found, values = hash_at(key) or {}, words(...)
  for i = 1, #values do values[i] = found[values[i]] or false end
  return values
end

function commands.HGETALL(key)
  local found, flat = hash_at(key), {}
  for i, field in ipairs(found and orders[key] or {}) do
    flat[2 * i - 1], flat[2 * i] = field, found[field]
  end
  return flat
end

function commands.HEXISTS(key, field)
  local found = hash_at(key)
  return found and found[word(field)] and 1 or 0
end

function commands.HKEYS(key)
  local names = {}
  for i, field in ipairs(hash_at(key) and orders[key] or {}) do names[i] = field end
  return names
end

function commands.HLEN(key)
  return hash_at(key) and #orders[key] or 0
end

function commands.HSET(key, ...)
  local flat, count = words(...), select('#', ...)
  if count == 0 or count % 2 == 1 then refuse("ERR wrong number of arguments for 'hset' command") end
  return put_fields(key, hash_at(key), flat, count)
end

function commands.HSETNX(key, field, value)
  if commands.HEXISTS(key, field) == 1 then return 0 end
  return commands.HSET(key, field, value)
end

function commands.HINCRBY(key, field, by)
  field = word(field)
  local found = hash_at(key)
  local total, why = python_sum(found and found[field], word(by))
  if not total then refuse(why) end
  put_fields(key, found, {field, total}, 2)
  return tonumber(total)
end

function commands.HDEL(key, ...)
  local found, removed = hash_at(key), 0
  if not found then return 0 end
  local order = orders[key]
  for _, field in ipairs(words(...)) do
    if found[field] ~= nil then
      found[field] = nil
      local at = 1
      while order[at] ~= field do at = at + 1 end
      table.remove(order, at)
      removed = removed + 1
    end
  end
  if removed > 0 then touched[key] = true end
  if #order == 0 then drop(key) end
  return removed
end

-- -- what Python asks for

local python = {}

function python.new_space()
  return {strings = {}, hashes = {}, orders = {}, types = {}, expiry = {}, touched = {}}
end

-- Returns some keys that were written since the last time, and whether there are more.
function python.touched(space)
  local found, count = {}, 0
  for key in pairs(space.touched) do
    count = count + 1
    found[count] = key
    if count == READ_MAX then break end
  end
  for i = 1, count do space.touched[found[i]] = nil end
  return count == READ_MAX, count, unpack(found)
end

function python.type_at(space, us, key)
  enter(space, us)
  return type_at(key)
end

-- Returns the expiry of a key, its type, and its string, or some fields of its hash.
function python.read(space, key, past)
  local kind, value = space.types[key], space.strings[key]
  if kind ~= 'hash' then return space.expiry[key], kind, value end
  local values, order, flat = space.hashes[key], space.orders[key], {}
  for i = past + 1, math.min(#order, past + READ_MAX) do
    flat[#flat + 1] = order[i]
    flat[#flat + 1] = values[order[i]]
  end
  return nil, kind, unpack(flat)
end

-- Returns a field of a hash, or nil, even if it is no hash.
function python.field(space, key, name)
  local found = space.hashes[key]
  return found and found[name]
end

function python.drop(space, key)
  enter(space)
  return drop(key)
end

function python.put_string(space, key, value, until_ms)
  enter(space)
  put_string(key, value, until_ms)
end

function python.put_hash(space, key, flat)
  enter(space)
  drop(key)
  put_fields(key, nil, flat, #flat)
end

-- Notes that Python has a value of a type at a key.
function python.put_other(space, key, kind)
  space.types[key] = kind
end

return commands, enter, python
