-- uses: writes
-- Returns the generation of a membership document; nil if it has none, or there is no document.
local function generation_of(document)
  return document and string.match(document, '^{"generation":(%d+)')
end

-- Writes a document, which is given as JSON without its generation.
local function write_document(members, body, generation)
  redis.call('SET', members, '{"generation":' .. generation .. ',' .. string.sub(body, 2))
end

-- Removes a member's heartbeat and loads; loads of another type stay.
local function drop_beat(beats, loads, member)
  redis.call('HDEL', beats, member)
  if is_a(loads, 'hash') then redis.call('HDEL', loads, member) end
end

-- Returns the fingerprint of the value at a membership document's key: length and SHA-1 of a string, the
-- type of any other value, '' without a value. It covers at most the first megabyte. Every server has
-- sha1hex; with a substitute that lacks it, no fingerprint ever matches.
local LOOKED_AT = 1048577
local sha1hex = redis.sha1hex

local function fingerprint(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return '' end
  if kind ~= 'string' then return kind end
  local value = redis.call('GETRANGE', key, 0, LOOKED_AT - 1)
  return #value .. ':' .. (sha1hex and sha1hex(value) or '')
end

-- Moves the value at a key to `damaged`, which keeps one copy for inspection; of a long string it keeps the
-- beginning. If the user lacks a right, the first command fails.
local KEPT_TEXT = 65536
local KEPT_OTHER = 1048576

local function quarantine(key, damaged)
  local kind = redis.call('TYPE', key).ok
  local kept
  if kind == 'string' then
    local text_of_it = redis.call('GETRANGE', key, 0, KEPT_TEXT)
    if #text_of_it > KEPT_TEXT then kept = string.sub(text_of_it, 1, KEPT_TEXT) end
  else
    local bytes = redis.call('MEMORY', 'USAGE', key) or 0
    if bytes > KEPT_OTHER then kept = 'a ' .. kind .. ' of about ' .. text(bytes) .. ' bytes was not kept' end
  end
  if kept then
    redis.call('UNLINK', key)
    redis.call('SET', damaged, kept)
  else
    redis.call('RENAME', key, damaged)
  end
end
