-- What scripts find in Redis: `redis`, `KEYS` and `ARGV`, and the commands of keyspace.lua. Each other command is one
-- call of Python, which returns several values, so that no object of Python comes into a script: tables are made here.
-- A command that refuses returns nil and a text.
local commands, enter, python_commands, shape_of, lacks, sha1hex, decode, LIST = ...
local error, type, unpack, pcall, select = error, type, unpack, pcall, select

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

for name, run in pairs(python_commands) do
  local shape = shapes[shape_of[name]]
  commands[name] = function(...) return answer(shape, run(...)) end
end
setmetatable(commands, {__index = function(_, name) return lacks(name) end})

local its_redis = {sha1hex = sha1hex, acl_check_cmd = function() return true end}
local its_cjson = {decode = decode}

function its_redis.call(name, ...)
  return commands[name](...)
end

function its_redis.pcall(name, ...)
  local done, found = pcall(commands[name], ...)
  if done or type(found) == 'table' then return found end
  return {err = tostring(found)}
end

-- Adds what Redis sends of a reply to a flat list: an array ends at nil.
local function flatten(flat, value)
  if type(value) == 'table' and value.ok == nil then
    local at = #flat
    flat[at + 1], flat[at + 2] = LIST, 0
    local count = 0
    while value[count + 1] ~= nil do
      count = count + 1
      flatten(flat, value[count])
    end
    flat[at + 2] = count
  else
    flat[#flat + 1] = type(value) == 'table' and value.ok or value
  end
end

-- Returns a reply as several values, since Python asks for each value of a table.
local FLAT_MAX = 7000

local function reply(found)
  if type(found) ~= 'table' then return 'one', found end
  if found.ok then return 'one', found.ok end
  if found.err then return 'error', found.err end
  local count = 0
  while found[count + 1] ~= nil and type(found[count + 1]) ~= 'table' do count = count + 1 end
  if found[count + 1] == nil and count <= FLAT_MAX then return 'many', count, unpack(found, 1, count) end
  local flat = {}
  flatten(flat, found)
  if #flat > FLAT_MAX then return 'table', flat end
  return 'nested', unpack(flat)
end

local function done_or_error(done, found)
  if done then return reply(found) end
  return 'error', type(found) == 'table' and found.err or tostring(found)
end

-- Runs a script. The keys and arguments are values, or if they are many, two tables.
local function run(space, now_us, script, count, ...)
  enter(space, now_us)
  redis, cjson = its_redis, its_cjson
  if count < 0 then
    KEYS, ARGV = ...
  else
    KEYS, ARGV = {unpack({...}, 1, count)}, {select(count + 1, ...)}
  end
  return done_or_error(pcall(script))
end

local function command(space, now_us, name, ...)
  enter(space, now_us)
  return done_or_error(pcall(commands[name], ...))
end

return run, command
