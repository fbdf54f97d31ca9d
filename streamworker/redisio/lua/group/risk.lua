-- uses: writes
-- Names what a worker is about to run, and takes the name back afterwards. A name that another owner has left is
-- a death in it. Deaths count by place, and over all places: what kills its process in one partition alone, and
-- what does so in every partition, are both found after a few. Each worker counts once. The end of a call ends
-- the counts of its place and of all places.
--
-- A name says how many deaths in all places its owner knew of. One that knew of fewer has died side by side with
-- those, as with a lost machine, so both count as one. After a death one owner at a time has its turn; otherwise
-- each further one would take a worker of all that run it. A turn lasts a minute at most.
--
-- KEYS  risks (hash)
-- ARGV  what: kind and name, such as 'timer sweep'  place: a partition  owner: who runs it
--       step: begin or end; or, of a place that is not run yet, count: its last owner has it no more; or look: its
--         owner seems dead, and ends the count if it is not
--       most (number): it is named if no more workers than this have died in it
-- reply [OK, deaths] | [KEPT, deaths] if more have died in it, or it is another owner's turn, and nothing was
--       named | [BADTYPE, key]
local WORKERS, TURN_MS = 10, 60000

local at, here, all = 'at ' .. what .. ' ' .. place, 'died ' .. what .. ' ' .. place, 'died ' .. what
local turn = 'turn ' .. what
local held = redis.call('HMGET', risks, at, here, all, turn)
local left, knew = string.match(held[1] or '', '^(%S+) ?(%d*)$')
if step == 'end' then
  if left == owner then redis.call('HDEL', risks, at, here, all, turn) end
  return {'OK', 0}
end
begin_writes(risks)

local function died_in(name, workers, most)
  local count, is_new = 0, left and left ~= owner
  for each in string.gmatch(workers or '', '%S+') do
    count = count + 1
    if each == left then is_new = false end
  end
  if not is_new or count > most or count == WORKERS then return count end
  redis.call('HSET', risks, name, (workers and workers .. ' ' or '') .. left)
  return count + 1
end

local everywhere = died_in(all, held[3], tonumber(knew or '') or WORKERS)
local deaths = math.max(died_in(here, held[2], WORKERS), everywhere)
if step == 'look' then return {'OK', deaths} end
if deaths > most or step == 'count' then
  redis.call('HDEL', risks, at)
  return {'KEPT', deaths}
end
if everywhere > 0 then
  local whose, after, since = string.match(held[4] or '', '^(%S+) (%d+) (%d+)$')
  local is_new = tonumber(after or '') == everywhere and server_ms() - tonumber(since) < TURN_MS
  if is_new and whose ~= owner then return {'KEPT', deaths} end
  redis.call('HSET', risks, turn, owner .. ' ' .. everywhere .. ' ' .. text(server_ms()))
end
redis.call('HSET', risks, at, owner .. ' ' .. everywhere)
return {'OK', deaths}
