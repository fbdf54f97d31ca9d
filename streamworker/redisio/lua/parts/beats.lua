-- Part of other scripts; needs types and document. The document says who is there, and heartbeats say who of
-- them lives. So where something else stands in place of the heartbeats, the document is enough to begin anew.
local FORMAT = 1

-- Ids of the members that are there and not only their places; nil where the document cannot be read, and
-- for one of a later release.
local function present_in(members)
  local kind = redis.call('TYPE', members).ok
  if kind == 'none' then return {} end
  if kind ~= 'string' then return nil end
  local is_read, document = pcall(cjson.decode, redis.call('GETRANGE', members, 0, LOOKED_AT - 1))
  if not is_read or type(document) ~= 'table' then return nil end
  if document.v ~= FORMAT or type(document.members) ~= 'table' then return nil end
  local ids, seen = {}, {}
  for place, member in pairs(document.members) do
    local id = type(place) == 'number' and type(member) == 'table' and member.id
    if type(id) ~= 'string' or seen[id] then return nil end
    seen[id] = true
    if member.state ~= 'held' then ids[#ids + 1] = id end
  end
  return ids
end

-- Puts aside what stands in place of the heartbeats, unless a copy is kept already, and gives each of these
-- members one of `now`, in ms of the server: nobody is lost, and who is dead is found out as if it had died
-- now. It is the time that the script answers with: read anew it could be later, and no beat is of the future.
-- Who was removed is not among them. False if the user lacks a right to it; then nothing was changed.
local function begin_beats(beats, present, damaged, now)
  local is_done = pcall(function()
    if redis.call('EXISTS', damaged) == 0 then put_aside(beats, damaged) else redis.call('UNLINK', beats) end
  end)
  if not is_done then return false end
  for _, id in ipairs(present) do redis.call('HSET', beats, id, text(now) .. '|0||0') end
  return true
end
