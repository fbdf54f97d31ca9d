-- uses: document
-- The document lists the members, and heartbeats say which of them are alive. If another program overwrote
-- the heartbeats, they restart from the document.
local FORMATS = {[1] = true, [2] = true}

-- Returns the ids of the members without those in state `held`; nil if the document cannot be read, or has
-- the format of a later release.
local function present_in(members)
  local kind = redis.call('TYPE', members).ok
  if kind == 'none' then return {} end
  if kind ~= 'string' then return nil end
  local is_read, document = pcall(cjson.decode, redis.call('GETRANGE', members, 0, LOOKED_AT - 1))
  if not is_read or type(document) ~= 'table' then return nil end
  if not FORMATS[document.v] or type(document.members) ~= 'table' then return nil end
  local ids, seen = {}, {}
  for place, member in pairs(document.members) do
    local id = type(place) == 'number' and type(member) == 'table' and member.id
    if type(id) ~= 'string' or seen[id] then return nil end
    seen[id] = true
    if member.state ~= 'held' then ids[#ids + 1] = id end
  end
  return ids
end

-- Quarantines a damaged value of the heartbeats, unless a copy is kept already, and gives each member in
-- `present` a heartbeat at `now`, in ms of the server. So no member is lost, and a dead member is detected
-- as if it had died now. `now` is the time in the script's reply: a time that is read again could be later,
-- and no heartbeat may be in the future. Removed members are not in `present`. Returns false if the user
-- lacks a right; then nothing was changed.
local function begin_beats(beats, present, damaged, now)
  local is_done = pcall(function()
    if redis.call('EXISTS', damaged) == 0 then quarantine(beats, damaged) else redis.call('UNLINK', beats) end
  end)
  if not is_done then return false end
  for _, id in ipairs(present) do redis.call('HSET', beats, id, text(now) .. '|0||0') end
  return true
end
