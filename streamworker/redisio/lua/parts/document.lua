-- Part of other scripts; needs types.

-- What stands at the key of a membership document, in few letters: length and SHA-1 of a string, the
-- type of anything else, '' where there is nothing. More than a megabyte is not looked at. Every server
-- has sha1hex; where a stand-in for one has not, no fingerprint is ever the right one.
local LOOKED_AT = 1048577
local sha1hex = redis.sha1hex

local function fingerprint(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return '' end
  if kind ~= 'string' then return kind end
  local value = redis.call('GETRANGE', key, 0, LOOKED_AT - 1)
  return #value .. ':' .. (sha1hex and sha1hex(value) or '')
end

-- Moves what stands at a key to where one copy is kept for people, and of a long value its beginning.
-- The first command is the one that a user may lack the right to.
local KEPT_TEXT = 65536
local KEPT_OTHER = 1048576

local function put_aside(key, damaged)
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
