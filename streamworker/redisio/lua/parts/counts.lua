-- A hash beside a partition counts what XLEN does not say: `dropped` the entries that were added and are no
-- longer there, as of the last trim; and of entries that hold many records, those beyond one an entry: `extra`
-- those ever added, `before` those of entries that were dropped from the front; `chosen`, the last id that the
-- append script chose itself; and `single`. `sealed` stands in that of a partition that takes nothing any more.
--
-- With retention, `retained` counts the records that stay although every group has passed them, as of the last
-- trim. The limit of a partition counts only the others: no sender waits for what is retained.
--
-- So the records ever added are XLEN + dropped + extra, and those present are XLEN + extra - before. A group's lock
-- counts the records up to its checkpoint in `entries`. The lag is the difference, and nothing else counts it.
-- Redis' own entries-added of a stream includes `folded` records where an earlier release has written.
local FIRST, EXTRA, N, CRC = 'sw:first', 4, 6, 12  -- indexes in the fields of an entry of many records
local LOOKED_MAX = 10000

local function beside(events, kind)
  return string.match(events, '^(.*):events$') .. ':' .. kind
end

local function counts_of(events)
  local found = redis.call('HMGET', beside(events, 'counts'), 'extra', 'before', 'retained', 'sealed')
  return tonumber(found[1] or '') or 0, tonumber(found[2] or '') or 0, tonumber(found[3] or ''), found[4]
end

-- Returns how many records of an entry follow an id.
local function records_after(entry, id)
  if entry[2][1] ~= FIRST then return 1 end
  local ms, seq = string.match(entry[1], '^(%d+)%-(%d+)$')
  local id_ms, id_seq = string.match(id, '^(%d+)%-(%d+)$')
  local n = tonumber(entry[2][N]) or 1
  if entry[2][2] ~= ms .. '-' .. string.format('%.0f', tonumber(seq) - n + 1) then return 1 end  -- a copy
  if ms ~= id_ms then return n end
  return math.min(n, tonumber(seq) - tonumber(id_seq))
end

-- Stores how many records were dropped with the entries before the first one. The next entry of many records
-- says that; `single` is the id up to which there is none, so that no entry is looked at twice. If there is none
-- among LOOKED_MAX entries, a later call looks on; until then the count of the records present is too high.
local function count_dropped(events)
  local extra, known = counts_of(events)
  if extra == known then return end
  local counts, before, looked, size = beside(events, 'counts'), nil, 0, 1
  local single = redis.call('HGET', counts, 'single') or '0-0'
  repeat
    local slice = redis.call('XRANGE', events, '(' .. single, '+', 'COUNT', size)
    for _, entry in ipairs(slice) do
      if entry[2][1] == FIRST then
        before = (tonumber(entry[2][EXTRA]) or extra) - (tonumber(entry[2][N]) or 1) + 1
        break
      end
      single = entry[1]
    end
    if #slice < size then before = before or extra end
    looked, size = looked + size, math.min(100, 4 * size)  -- few at first: an entry of many may have 64 kB
  until before or looked > LOOKED_MAX
  redis.call('HSET', counts, 'before', string.format('%.0f', before or known), 'single', single)
end
