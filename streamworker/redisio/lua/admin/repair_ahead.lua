-- uses: writes groups epoch
-- Repairs an acked log whose last id is ahead of its lock, in slices: call it until it returns 'done'. No
-- commit can be added meanwhile, so the owner may be alive. Readers find a complete log at all times.
--
-- Entries that follow the lock's row are commits from before somebody restored an older lock: the script
-- moves the lock past them, and fences its owner. Other entries between them stay. Where entries were trimmed
-- or deleted, the next commit begins at a later row, and must be of entries of this source. If there are or
-- were other entries behind the last commit, the script copies the entries up to the lock in order. The copy
-- then replaces the log, without entries trimmed meanwhile.
--
-- KEYS  lock (hash)  acked (stream)  copy (stream)  events (stream)  groups (hash)  counts (hash)
-- ARGV  log: its identity  group  cursor: '' to begin, '?' to check only, else the last returned position
-- reply [OK, looked, moved or copied, position] | [OK, done or ahead, last id of the log]
--       | [CHANGED] | [BADTYPE, key]
-- A position is '>' and the last entry that was compared, later the last that was copied, and the lock's row.
local PIECE, ID = 20, '^%d+%-%d+$'

local held = redis.call('HMGET', lock, 'log', 'rows', 'checkpoint', 'epoch', 'tail')
if held[1] and not (is_count(held[2]) and string.find(held[3] or '', ID)) then return {'BADTYPE', lock} end
local row, last_id, _, _, first = tonumber(held[2] or ''), stream_position(acked)
first = first and first[1]
local is_ahead = row and id_less(text(row) .. '-0', last_id)
if cursor == '?' then return {'OK', is_ahead and 'ahead' or 'done', last_id} end
if held[1] ~= log then return {'CHANGED'} end
local compares, at, row_then = string.match(cursor, '^(>?)(%d+%-%d+) (%d+)$')
if cursor == '' then compares, at, row_then = '>', text(row) .. '-0', text(row) end
if compares == '>' or not is_ahead then redis.call('UNLINK', copy) end
if not is_ahead then return {'OK', 'done', last_id} end
if row_then ~= text(row) then return {'CHANGED'} end

local function entry(from)
  -- After the highest id of all, XRANGE returns an error.
  local found = redis.pcall('XRANGE', acked, from, '+', 'COUNT', 1)[1] or {'', {}}
  local link = pairs_of(found[2])
  link.ends = string.match(found[1], '^(%d+)%-0$')
  link.is_ours = is_count(link.ends) and is_count(link.rows) and link.rows ~= '0' and is_count(link.epoch)
    and string.find(link.prev or '', ID) and string.find(link.last or '', ID)
    and id_less(link.prev, link.last)
  return found[1], link, found[2]
end

-- Returns whether entries behind the lock's row may have been trimmed or deleted.
local function has_gap(deleted)
  return id_less(text(row) .. '-0', first or '0-0') or id_less(text(row) .. '-0', deleted)
end

local function was_in_source(id)
  local newest, _, _, oldest = stream_position(events)
  if id_less(newest, id) then return false end
  return not oldest or id_less(id, oldest[1]) or #redis.call('XRANGE', events, id, id) > 0
end

local function compare()
  local of, last, epoch = string.match(held[5] or '', '^(%d+) (%d+%-%d+) (%d+)$')
  local id, before = '', {is_ours = of == text(row), last = last, epoch = epoch}
  if not before.is_ours then id, before = entry(text(row) .. '-0') end
  if not before.is_ours or id ~= '' and id ~= text(row) .. '-0' then
    before = {last = held[3], epoch = '0'}
  end
  local deleted = pairs_of(redis.call('XINFO', 'STREAM', acked))['max-deleted-entry-id']
  local checkpoint, moved, next_id, link = held[3], false
  for _ = 1, PIECE do
    next_id, link = entry('(' .. at)
    if next_id == '' then break end
    at = next_id
    -- As `misfit` in redisio/data/ackedlog.py: a lower epoch or source id does not follow, but for a reset.
    local start = link.is_ours and tonumber(link.ends) - tonumber(link.rows) or -1
    local later = link.is_ours and tonumber(link.epoch) - tonumber(before.epoch) or -1
    -- Where rows are missing, the source entries of their commits are missing, too.
    local skips = later > 0 or link.prev ~= before.last
    if start >= row and (later > 0 or later == 0 and not id_less(link.prev, before.last))
      and (start == row or skips and has_gap(deleted) and was_in_source(link.last)) then
      if later > 0 or id_less(checkpoint, link.last) then checkpoint = link.last end
      row, before, moved = tonumber(link.ends), link, true
    end
  end
  if moved then
    free(lock)
    local epoch = tonumber(before.epoch) > tonumber(seen_epoch(held[4])) and before.epoch or held[4]
    redis.call('HSET', lock, 'rows', text(row), 'checkpoint', checkpoint,
      'tail', text(row) .. ' ' .. before.last .. ' ' .. before.epoch,
      -- The next acquisition of the lock counts its entries anew, none of them as deleted: see settle.
      'entries', text(records_added(events, (select(2, stream_position(events))))))
    raise_epoch(lock, epoch)
    redis.call('HSET', groups, group, '')
  end
  return moved and 'moved' or next_id ~= '' and 'looked'
end

local did = compares == '>' and compare()
if did then return {'OK', did, '>' .. at .. ' ' .. text(row)} end
if compares == '>' then at = '0-0' elseif stream_position(copy) ~= at then return {'CHANGED'} end
for _ = 1, PIECE do
  local next_id, _, fields = entry('(' .. at)
  if next_id == '' or id_less(text(row) .. '-0', next_id) then
    if at == '0-0' and row == 0 then
      redis.call('UNLINK', acked)
    else
      if at == '0-0' then redis.call('XADD', copy, 'MAXLEN', 0, text(row) .. '-0', '', '') end
      redis.call('XTRIM', copy, 'MINID', first or last_id)
      redis.call('RENAME', copy, acked)
    end
    return {'OK', 'done', at}
  end
  redis.call('XADD', copy, next_id, unpack(fields))
  at = next_id
end
return {'OK', 'copied', at .. ' ' .. text(row)}
