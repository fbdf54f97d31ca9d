-- For changes of ownership and membership. Appends and commits do without: each function takes time there.

-- Changes nothing, and makes Redis accept the script's writes when memory is full: it allows HDEL even then,
-- and all writes after it. Ownership must be able to move then, or nothing would ever be trimmed again.
local function begin_writes(hash)
  redis.call('HDEL', hash, '')
end

-- Begins a change of ownership in a hash, and returns its version: the server's time, or the last version
-- plus one if that is greater, so that it grows even if the hash is lost.
local function next_version(hash)
  local last = tonumber(redis.call('HGET', hash, 'last') or '') or 0
  local version = text(math.max(server_ms(), last + 1))
  begin_writes(hash)
  redis.call('HSET', hash, 'last', version)
  return version
end

-- Posts a message to the control stream. A control stream of another type is left alone: every protocol
-- allows any message to be lost.
local function post(control, ...)
  redis.pcall('XADD', control, 'MAXLEN', '~', 10000, '*', ...)
end

-- Frees a lock. HDEL comes first: unlike HSET, Redis allows it when memory is full, and all writes after it.
local function free(lock)
  redis.call('HDEL', lock, 'wanted_since', 'wanted_at', 'wanted_in')
  redis.call('HSET', lock, 'owner', '', 'state', '', 'reason', '')
end
