-- uses: writes
-- Names what a worker is about to run, and takes the name back afterwards. A name that another owner has left is
-- a death in it. Deaths count by place, and over all places: what kills its process in one partition alone, and
-- what does so in every partition, are both found after a few. Each worker counts once. The end of a call ends
-- the counts of its place and of all places.
--
-- KEYS  risks (hash)
-- ARGV  what: kind and name, such as 'timer sweep'  place: a partition  owner: who runs it
--       step: begin or end  most (number): it is named if no more workers than this have died in it
-- reply [OK, deaths] | [KEPT, deaths] if more have died in it, and nothing was named | [BADTYPE, key]
local WORKERS = 10

local at, here, all = 'at ' .. what .. ' ' .. place, 'died ' .. what .. ' ' .. place, 'died ' .. what
local held = redis.call('HMGET', risks, at, here, all)
local left = held[1]
if step == 'end' then
  if left == owner then redis.call('HDEL', risks, at, here, all) end
  return {'OK', 0}
end
begin_writes(risks)

local function died_in(name, workers)
  local count, is_new = 0, left and left ~= owner
  for each in string.gmatch(workers or '', '%S+') do
    count = count + 1
    if each == left then is_new = false end
  end
  if not is_new or count == WORKERS then return count end
  redis.call('HSET', risks, name, (workers and workers .. ' ' or '') .. left)
  return count + 1
end

local deaths = math.max(died_in(here, held[2]), died_in(all, held[3]))
if deaths > most then
  redis.call('HDEL', risks, at)
  return {'KEPT', deaths}
end
redis.call('HSET', risks, at, owner)
return {'OK', deaths}
