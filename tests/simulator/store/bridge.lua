-- What scripts find in Redis: `redis`, `KEYS` and `ARGV`. Each command is one call of Python, which returns several
-- values, so that no object of Python comes into a script: tables are made here. A command that refuses returns
-- nil and a text.
local python_commands, shape_of, lacks, sha1hex, decode = ...
local error, type, unpack, pcall = error, type, unpack, pcall

-- Makes the answer of a command of the values that Python returns.
local shapes = {}

function shapes.one(value)
  if value == nil then return false end
  return value
end

-- A status, or a number.
function shapes.status(value)
  if type(value) == 'string' then return {ok = value} end
  return value
end

-- Python returns the number of values first: without it, a table that ends with nil would lose them.
function shapes.many(count, ...)
  local found = {...}
  for i = 1, count do
    if found[i] == nil then found[i] = false end
  end
  return found
end

function shapes.entries(count, ...)
  local flat, found, at = {...}, {}, 1
  while at <= count do
    local past = at + 2 + flat[at + 1]
    found[#found + 1] = {flat[at], {unpack(flat, at + 2, past - 1)}}
    at = past
  end
  return found
end

-- Of the consumer groups of a stream, or of a stream, its first entry and the id of its last.
function shapes.info(count, what, ...)
  local flat, found = {...}, {}
  if what == 'STREAM' then
    return {'length', flat[1], 'last-generated-id', flat[2], 'max-deleted-entry-id', flat[3], 'entries-added', flat[4],
      'last-entry', flat[5] and {flat[5], {}} or false, 'first-entry', flat[6] and {flat[6], {unpack(flat, 7)}} or false}
  end
  for i = 1, count - 1, 3 do
    found[#found + 1] = {'name', flat[i], 'consumers', 0, 'pending', 0, 'last-delivered-id', flat[i + 1],
      'entries-read', flat[i + 2] or false}
  end
  return found
end

-- A failure of the store itself ends the script: Python raises it again whatever the script does.
local function answer(shape, first, why, ...)
  if first == nil and why then error({err = why}, 0) end
  return shape(first, why, ...)
end

local commands = setmetatable({}, {__index = function(_, name) return lacks(name) end})
for name, run in pairs(python_commands) do
  local shape = shapes[shape_of[name] or 'one']
  commands[name] = function(...) return answer(shape, run(...)) end
end

-- What keys hold is asked most often, and known here: Python tells it when a key comes or goes.
local types

local ask = commands.TYPE

local function type_at(key)
  local known = types[key]
  if known == '' then return ask(key).ok end
  return known or 'none'
end

function commands.TYPE(key)
  return {ok = type_at(key)}
end

function commands.EXISTS(...)
  local count = 0
  for _, key in ipairs({...}) do
    if type_at(key) ~= 'none' then count = count + 1 end
  end
  return count
end

redis = {sha1hex = sha1hex, acl_check_cmd = function() return true end}

function redis.call(name, ...)
  return commands[name](...)
end

function redis.pcall(name, ...)
  local done, found = pcall(commands[name], ...)
  if done or type(found) == 'table' then return found end
  return {err = tostring(found)}
end

cjson = {decode = decode}

-- Returns a flat reply as several values, since Python asks for each value of a table.
local FLAT_MAX = 7000

local function reply(found)
  if type(found) ~= 'table' or found.ok then return 'one', found end
  if found.err then return 'error', found.err end
  local count = 0
  while found[count + 1] ~= nil do
    count = count + 1
    if type(found[count]) == 'table' then return 'one', found end
  end
  if count > FLAT_MAX then return 'one', found end
  return 'many', unpack(found, 1, count)
end

return function(script, keys, args, its_types)
  KEYS, ARGV, types = keys, args, its_types
  local done, found = pcall(script)
  if done then return reply(found) end
  return 'error', type(found) == 'table' and found.err or tostring(found)
end
