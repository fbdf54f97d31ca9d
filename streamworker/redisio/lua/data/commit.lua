-- uses: trim epoch tables outbox aside
-- Commits a batch, all or nothing: checkpoint, acked rows, dead letters, state, tables, and the position of
-- the Redis consumer group, which other tools show. Only the owner at its epoch can commit, and only from the
-- current checkpoint. The script recognises a repeated commit by its new checkpoint.
--
-- KEYS  1 lock (hash)  2 acked (stream)  3 events (stream)  4 state (hash)  5 dead (stream)  6 counts (hash)
--       if there are messages:  7 outbox (stream)  8 heads (hash)
--       then for each table its values (hash) and its expiry index (zset)
-- ARGV  1 owner  2 epoch  3 checkpoint before  4 checkpoint after  5 source records committed
--       6 group  7 limit of the acked log, entries; 0 for none  8 '1' to trim the source
--       9 rows of the acked log that all readers have read; 0 for none; negative if retention keeps them
--       then  n, n x (id, id, tag): the entry or checkpoint after which each read began, its first entry,
--                and the content of that; '' is not compared
--             id, tag: the entry that holds the checkpoint after, and its content; for a timer '', and the
--                value that its field has before
--             n, n x (field, value): state to set
--             n, n x field: state to delete
--             n, n x (number of fields and values, fields and values...): dead letters
--             rows, and if there are any: first, schema, crc, codec, size, batch
--             'outbox', if there are messages for other streams: limit of the outbox, id of its last message,
--                n, n x (id, target, begin, end, data)
--             for each table: ms that a value lives, 0 for ever; n, n x (key, value to set); n, n x key to
--                delete
-- reply [OK | DUP | FENCED | GAP | FULL | OUTBOX, epoch, checkpoint, rows]; OK with tables: and the server's ms
--       | [AHEAD, acked, last id of the log, rows]
--       | [BADTYPE, key] for a key of another type, and for a lock with fields that another program wrote
local CHUNK = 4000      -- unpack() fails at 8,000 values
local TRIM_EVENTS = 1000
local TRIM_ACKED = 100

local lock, acked, events, state, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, epoch, previous, new, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local outbox, heads, tables_at = nil, nil, 7
if string.find(KEYS[7] or '', '}:outbox:', 1, true) then outbox, heads, tables_at = KEYS[7], KEYS[8], 9 end

-- A commit of one record has few commands, so each of them costs. A missing key has no wrong type, and
-- reading a key of a wrong type returns an error, so the types are only checked where keys exist.
if redis.call('EXISTS', acked, state, dead, unpack(KEYS, 6)) > 0 then
  local wrong = wrong_type({'hash', 'stream', 'stream', 'hash', 'stream', 'hash', outbox and 'stream',
    outbox and 'hash'}) or wrong_table(tables_at)
  if wrong then return {'BADTYPE', wrong} end
end
local function refused(key, answer)
  if string.find(tostring(answer.err), 'WRONGTYPE', 1, true) then return {'BADTYPE', key} end
  return answer
end
local held = redis.pcall('HMGET', lock, 'owner', 'epoch', 'checkpoint', 'rows', 'entries', 'aside')
if held.err then return refused(lock, held) end
local function reply(code)
  return {code, held[2] or '', held[3] or '', held[4] or '0'}
end
if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end
-- This is checked before the first write: a later failure would leave rows in the log without a checkpoint.
if not (is_count(held[4]) and is_count(held[5])) then return {'BADTYPE', lock} end
local total, committed = tonumber(held[4]), tonumber(held[5])
-- A timer's commit moves no checkpoint. Its first field of the state to set names the timer, and the planned
-- time, up to which the timer is done after the commit. That field takes the checkpoint's part.
local is_tick = previous == new and string.sub(ARGV[14] or '', 1, 6) == '\0tick:'
local ticked = is_tick and (redis.call('HGET', state, ARGV[14]) or '')
if held[3] == new and not (is_tick and ticked ~= ARGV[15]) then
  -- A repeat writes for WAIT, as in append.lua. HDEL makes Redis accept HSET when memory is full.
  redis.call('HDEL', lock, '')
  redis.call('HSET', lock, 'checkpoint', new)
  return reply('DUP')
end
if held[3] ~= previous or is_tick and ticked ~= ARGV[12] then
  if held[3] and not is_id(held[3]) then return {'BADTYPE', lock} end
  return reply('GAP')
end

-- Index of each section in ARGV.
local at = 10
local reads_n, reads_at = tonumber(ARGV[at]), at + 1
at = reads_at + 3 * reads_n
-- A failover may lose another member's acquisition of the lock, and that member's commits with it. The
-- owner before may have read meanwhile, and skipped the entries that were trimmed after those commits. So
-- the first entry of each read must still follow the entry after which the read began.
-- A failover to a server with a slower clock may also give lost ids to other entries, so contents are compared.
local function is_that(entry, id, tag)
  if not entry or entry[1] ~= id then return false end
  local fields = entry[2]
  if fields[1] == FIRST then return tag == '' or tag == fields[CRC] end
  -- fakeredis has no sha1hex.
  return tag == '' or not redis.sha1hex or tag == redis.sha1hex(table.concat(fields, '\0'))
end
local last = ''
for i = reads_at, at - 1, 3 do
  -- A failover may also lose the last entries of one read, and the next read then returns the entries
  -- that replaced them. So the entry after which a read began must exist, unless it is the checkpoint,
  -- which may have been trimmed, or may lie within the first entry of the read.
  local after, first = ARGV[i], ARGV[i + 1]
  local inside = after ~= previous
  local from, count = inside and after or '(' .. after, inside and 2 or 1
  local found = redis.pcall('XRANGE', events, from, '+', 'COUNT', count)
  if found.err then return refused(events, found) end
  if inside and (not found[1] or found[1][1] ~= after) then return reply('GAP') end
  if not is_that(found[count], first, ARGV[i + 2]) then return reply('GAP') end
  last = first
end
-- A failover may also lose an entry after it was read; its producer sends it again, under another id.
if last ~= ARGV[at] then
  local found = redis.pcall('XRANGE', events, ARGV[at], ARGV[at], 'COUNT', 1)
  if found.err then return refused(events, found) end
  if not is_that(found[1], ARGV[at], ARGV[at + 1]) then return reply('GAP') end
end
at = at + 2
local sets_n, sets_at = tonumber(ARGV[at]), at + 1
at = sets_at + 2 * sets_n
local dels_n, dels_at = tonumber(ARGV[at]), at + 1
at = dels_at + dels_n
local dead_n, dead_at = tonumber(ARGV[at]), at + 1
at = dead_at
for _ = 1, dead_n do at = at + 1 + tonumber(ARGV[at]) end
local rows, batch_at = tonumber(ARGV[at]), at + 1
at = batch_at + (rows > 0 and 6 or 0)
local outbox_at, tables_from = at + 1, at
if outbox then
  tables_from = outbox_at + 3 + 5 * tonumber(ARGV[outbox_at + 2])
  local code = outbox_refuses(outbox, heads, ARGV[outbox_at + 1], tonumber(ARGV[outbox_at]))
  if code then return reply(code) end
end

local limit, past = tonumber(ARGV[7]), tonumber(ARGV[9])
if rows > 0 and limit > 0 and redis.call('XLEN', acked) >= limit then
  trim_acked(acked, past, TRIM_ACKED)
  if waiting_entries(acked, total, math.abs(past)) >= limit then return reply('FULL') end
end

-- The first write is the one that needs memory. If the server refuses it, nothing was written; if the
-- server accepts it, it refuses none of the others.
total = total + rows
local now = (rows > 0 or dead_n > 0 or #KEYS >= tables_at) and text(server_ms())
local outbox_n = outbox and tonumber(ARGV[outbox_at + 2])
local outbox_refusal = outbox and outbox_add(outbox, outbox_n, outbox_at + 3)
if outbox_refusal then return outbox_refusal end
if rows > 0 then
  local added = redis.pcall('XADD', acked, text(total) .. '-0', 'rows', text(rows),
    'first', ARGV[batch_at], 'last', new, 'prev', previous, 'schema', ARGV[batch_at + 1],
    'epoch', epoch, 'owner', owner, 'at', now, 'crc', ARGV[batch_at + 2],
    'codec', ARGV[batch_at + 3], 'size', ARGV[batch_at + 4], 'batch', ARGV[batch_at + 5])
  if type(added) == 'table' and added.err then
    -- The log is ahead of the lock: another program wrote to one of them.
    local last = stream_position(acked)
    if not id_less(last, text(total) .. '-0') then return {'AHEAD', acked, last, held[4]} end
    return added
  end
end
if outbox then outbox_done(heads, outbox_n, outbox_at + 3) end
at = dead_at
for _ = 1, dead_n do
  local n = tonumber(ARGV[at])
  redis.call('XADD', dead, '*', 'at', now, 'by', owner, unpack(ARGV, at + 1, at + n))
  at = at + 1 + n
end
for i = 0, 2 * sets_n - 1, CHUNK do
  redis.call('HSET', state, unpack(ARGV, sets_at + i, sets_at + math.min(i + CHUNK, 2 * sets_n) - 1))
end
at = tables_from
for i = tables_at, #KEYS, 2 do at = write_table(KEYS[i], KEYS[i + 1], at, now, CHUNK) end
for i = 0, dels_n - 1, CHUNK do
  redis.call('HDEL', state, unpack(ARGV, dels_at + i, dels_at + math.min(i + CHUNK, dels_n) - 1))
end

-- A commit without rows must succeed even when memory is full: only commits allow the source to be trimmed.
-- Redis allows XGROUP SETID even then, and HSET after it.
local entries = text(committed + tonumber(ARGV[5]))
fold_counts(events)
local moved = redis.pcall('XGROUP', 'SETID', events, group, new, 'ENTRIESREAD', entries)
if moved.err then
  redis.call('HDEL', lock, '')  -- changes nothing, and allows HSET, too, if the user may not use XGROUP
  -- Another client removed the group: create it at the checkpoint, for tools that show it.
  redis.pcall('XGROUP', 'CREATE', events, group, new, 'MKSTREAM', 'ENTRIESREAD', entries)
end
-- Readers check later entries against the log's last entry, which may have been trimmed by then.
local tail = rows > 0 and {'tail', text(total) .. ' ' .. new .. ' ' .. epoch} or {}
redis.call('HSET', lock, 'checkpoint', new, 'entries', entries, 'rows', text(total), unpack(tail))
-- An order to set a record aside ends with the commit that passes it: no later owner obeys it again.
if held[6] then store_aside(lock, aside_after(held[6], new)) end
if ARGV[8] == '1' then trim_events(events, TRIM_EVENTS) end
if rows > 0 then trim_acked(acked, past, TRIM_ACKED) end
return {'OK', epoch, new, text(total), #KEYS >= tables_at and now or nil}
