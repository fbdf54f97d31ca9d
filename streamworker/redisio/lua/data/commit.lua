-- uses: epoch counts tables outbox aside
-- Commits a batch, all or nothing: checkpoint, acked rows, dead letters, state, tables and messages for other
-- streams. Only the owner at its epoch can commit, and only from the current checkpoint. The script recognises a
-- repeated commit by its new checkpoint.
--
-- KEYS  lock (hash)  acked (stream)  events (stream)  state (hash)  dead (stream)  counts (hash)
--       messages (stream)  heads (hash)
--       tables...: for each table its values (hash) and its expiry index (zset)
-- ARGV  owner  epoch  previous: checkpoint before  new: checkpoint after
--       records (number): source records committed  group  trim: '1' to trim the source
--       acked_limit (number): of the acked log, entries; 0 for none
--       read_rows (number): of the acked log that all readers have read; 0 for none; negative if retention
--         keeps them
--       last: the entry that holds the checkpoint after; '' if it need not be there  tag: of its content; '' is not compared
--       timer: the field of the timer that this owner called last; '' for none  ticked: what it holds since
--       outbox_limit (number): messages that the outbox may hold  outbox_last: id of its last message
--       reads (list): for each read the entry or checkpoint after which it began, its first entry, and the
--         tag of that
--       sets (list): fields and values of state to set  dels (list): fields of state to delete
--       batch (list): number of its rows, first id, schema, crc, codec, size, data; empty without rows
--       letters (list): for each dead letter the number of its fields and values, and these
--       sends (list): messages, see parts/outbox.lua
--       changes...: of tables, see parts/tables.lua
-- reply [OK | DUP | FENCED | GAP | FULL | OUTBOX, epoch, checkpoint, rows]; OK with tables: and the server's ms
--       | [AHEAD, acked, last id of the log, rows]
--       | [BADTYPE, key] for a key of another type, and for a lock with fields that another program wrote
local TRIM_EVENTS = 1000
local TRIM_ACKED = 100

-- 1. The keys have their types.
--
-- A commit of one record has few commands, so each of them costs. A missing key has no wrong type, and
-- reading a key of a wrong type returns an error, so the types are only checked where keys exist.
local has_sends, has_tables = sends_at <= sends_end, tables_at <= #KEYS
local wrong = has_sends and wrong_type(messages, 'stream', heads, 'hash')
if not wrong and redis.call('EXISTS', acked, state, dead, unpack(KEYS, tables_at)) > 0 then
  wrong = wrong_type(lock, 'hash', acked, 'stream', events, 'stream', state, 'hash', dead, 'stream')
    or wrong_table(tables_at)
end
if not wrong and trim == '1' then wrong = wrong_type(counts, 'hash') end
if wrong then return {'BADTYPE', wrong} end
local function refused(key, answer)
  if string.find(tostring(answer.err), 'WRONGTYPE', 1, true) then return {'BADTYPE', key} end
  return answer
end

-- 2. The owner holds the lock, and the batch begins at the checkpoint.
local held = redis.pcall('HMGET', lock, 'owner', 'epoch', 'checkpoint', 'rows', 'entries', 'aside', 'from')
if held.err then return refused(lock, held) end
local function reply(code)
  return {code, held[2] or '', held[3] or '', held[4] or '0'}
end
if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end
-- The group may not be done with the partitions that come before; see growth/open.lua.
if held[7] then return reply('GAP') end
-- This is checked before the first write: a later failure would leave rows in the log without a checkpoint.
if not (is_count(held[4]) and is_count(held[5])) then return {'BADTYPE', lock} end
if held[3] == new then
  -- A repeat writes for WAIT, as in append.lua. HDEL makes Redis accept HSET when memory is full.
  redis.call('HDEL', lock, '')
  redis.call('HSET', lock, 'checkpoint', new)
  return reply('DUP')
end
if held[3] ~= previous then
  if held[3] and not is_id(held[3]) then return {'BADTYPE', lock} end
  return reply('GAP')
end
if is_tick_lost(state, timer, ticked) then return reply('GAP') end

-- 3. The stream still holds the entries that were read.
--
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
--
-- What is archived may have been trimmed since it was read, or was read from the archive.
local function is_archived(id)
  -- include: groups
  local archived = archived_of(events)
  return archived and is_id(id) and not id_less(archived, id)
end
local last_first = ''
for i = reads_at, reads_end, 3 do
  -- A failover may also lose the last entries of one read, and the next read then returns the entries
  -- that replaced them. So the entry after which a read began must exist, unless it is the checkpoint,
  -- which may have been trimmed, or may lie within the first entry of the read.
  local after, its_first = ARGV[i], ARGV[i + 1]
  local inside = after ~= previous
  local from, count = inside and after or '(' .. after, inside and 2 or 1
  local found = redis.pcall('XRANGE', events, from, '+', 'COUNT', count)
  if found.err then return refused(events, found) end
  local at = inside and found[1] and found[1][1] == after and 2 or 1
  if inside and at == 1 and not is_archived(after) then return reply('GAP') end
  if not (is_that(found[at], its_first, ARGV[i + 2]) or is_archived(its_first)) then return reply('GAP') end
  last_first = its_first
end
-- A failover may also lose an entry after it was read; its producer sends it again, under another id.
if last_first ~= last then
  local found = redis.pcall('XRANGE', events, last, last, 'COUNT', 1)
  if found.err then return refused(events, found) end
  if not (is_that(found[1], last, tag) or is_archived(last)) then return reply('GAP') end
end

-- 4. The outbox and the acked log have room.
local code = has_sends and outbox_refuses(messages, heads, outbox_last, outbox_limit)
if code then return reply(code) end
local rows, first, schema, crc, codec, size, data = unpack(ARGV, batch_at, batch_end)
rows = tonumber(rows) or 0
local total = tonumber(held[4])
if rows > 0 and acked_limit > 0 and redis.call('XLEN', acked) >= acked_limit then
  -- include: trim
  trim_acked(acked, read_rows, TRIM_ACKED)
  if waiting_entries(acked, total, math.abs(read_rows)) >= acked_limit then return reply('FULL') end
end

-- 5. The results are written.
--
-- The first write is the one that needs memory. If the server refuses it, nothing was written; if the
-- server accepts it, it refuses none of the others.
total = total + rows
local has_letters = letters_at <= letters_end
local now = (rows > 0 or has_letters or has_tables) and text(server_ms())
local outbox_refusal = outbox_add(messages, sends_at, sends_end)
if outbox_refusal then return outbox_refusal end
if rows > 0 then
  local added = redis.pcall('XADD', acked, text(total) .. '-0', 'rows', text(rows), 'first', first, 'last', new,
    'prev', previous, 'schema', schema, 'epoch', epoch, 'owner', owner, 'at', now, 'crc', crc, 'codec', codec,
    'size', size, 'batch', data)
  if type(added) == 'table' and added.err then
    -- The log is ahead of the lock: another program wrote to one of them.
    -- include: groups
    local log_last = stream_position(acked)
    if not id_less(log_last, text(total) .. '-0') then return {'AHEAD', acked, log_last, held[4]} end
    return added
  end
end
outbox_done(heads, sends_at, sends_end)
local at = letters_at
while at <= letters_end do
  local n = tonumber(ARGV[at])
  redis.call('XADD', dead, '*', 'at', now, 'by', owner, unpack(ARGV, at + 1, at + n))
  at = at + 1 + n
end
in_chunks('HSET', state, sets_at, sets_end)
write_tables(tables_at, changes_at, now)
in_chunks('HDEL', state, dels_at, dels_end)

-- 6. The checkpoint moves.
--
-- The Redis consumer group stays where it is; the next trim moves it, since only other tools look at it.
local entries = text(tonumber(held[5]) + records)
-- Readers check later entries against the log's last entry, which may have been trimmed by then.
local tail = rows > 0 and {'tail', text(total) .. ' ' .. new .. ' ' .. epoch} or {}
local function move()
  return redis.pcall('HSET', lock, 'checkpoint', new, 'entries', entries, 'rows', text(total), unpack(tail))
end
local moved = move()
if type(moved) == 'table' and moved.err then
  -- Nothing was written yet, and memory is full. Only commits allow the source to be trimmed, so this one must
  -- succeed: HDEL changes nothing, and Redis accepts HSET after it.
  redis.call('HDEL', lock, '')
  moved = move()
  if type(moved) == 'table' then return moved end
end
-- A request to set a record aside ends with the commit that passes it: no later owner obeys it again.
if held[6] then store_aside(lock, aside_after(held[6], new)) end
if trim == '1' or (rows > 0 and read_rows > 0) then
  -- include: trim
  if trim == '1' then trim_events(events, TRIM_EVENTS) end
  if rows > 0 then trim_acked(acked, read_rows, TRIM_ACKED) end
end
return {'OK', epoch, new, text(total), has_tables and now or nil}
