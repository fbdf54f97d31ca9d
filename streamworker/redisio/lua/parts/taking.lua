-- uses: ids counts
-- Takes what a source sends to a partition, once and in order, for the scripts that append.
--
-- A message has a mark where it begins (`since`) and one where it ends (`through`). The partition keeps for
-- each source the mark at which it stands, and takes a message only if that is where the message begins. A mark
-- never names two contents, so a message that is repeated is taken once, whoever sends it and however late, and
-- the source notices a loss at either end. The order of the answers is a promise:
--   DUP     it is here: an earlier try was taken, the last one or, as `before` tells, the one before that
--   OTHER   the partition stands elsewhere
--   SEALED  it follows all that the partition took, and the partition takes nothing any more
--   FULL    it follows, too, and has no room
--   OK      it is taken now
-- A caller keeps the mark, and writes it again with DUP and OTHER: the sender believes both, and WAIT covers the
-- writes of its own connection only.
--
-- The records get consecutive ids: the same milliseconds, and consecutive sequence numbers. An entry has the
-- id of its last record. Redis chooses the ids of entries of one record. If an entry may hold many, the script
-- chooses them, for which it needs no right to read the stream: the sequence numbers begin at a multiple of 10^9
-- that grows with the microsecond, so they are above all that Redis gives in that millisecond. The ids must also
-- be above the last one that was chosen so, and XADD accepts them only above the last id of the stream. If the
-- clock has gone back, the script tries later milliseconds.
local TRIM_MAX = 10000

-- Returns how many records a partition holds that count against its limit, whether it has retention, and whether
-- it is sealed: it takes nothing any more.
local function records_of(events)
  local entries = redis.call('XLEN', events)
  local extra, before, retained, sealed = counts_of(events)
  local present = entries == 0 and 0 or entries + extra - before
  return math.max(0, present - (retained or 0)), retained ~= nil, sealed
end

-- Returns how many records a partition of some length holds, after making room for so many if it lacks room.
local function with_room(events, length, count, limit)
  if limit == 0 or length + count <= limit then return length end
  -- A producer's Redis user may have no right to trim, since it could drop unread entries; the owner soon
  -- trims instead. The script checks the right first, since Redis logs each command that it refuses.
  -- fakeredis has no acl_check_cmd.
  local ask = redis.acl_check_cmd
  if ask and not ask('XTRIM', events, 'MINID', '0-0') then return length end
  pcall(function()
    -- include: trim
    count_dropped(events)  -- another program may have trimmed
    local keep, passed = keep_from(events)
    local _, is_retained = records_of(events)
    if keep and is_retained then
      -- Only workers know the limits of the retention, and trim by them.
      count_retained(events, passed)
    elseif keep then
      trim_to(events, '~', keep, 'LIMIT', TRIM_MAX)
      -- '~' keeps a node that is partly needed, so this exact trim drops less than a node.
      if records_of(events) + count > limit then trim_to(events, keep) end
    end
    length = records_of(events)
  end)
  return length
end

-- Returns the milliseconds and the sequence number from which on the script gives ids.
local function chosen_start(counts)
  local now, chosen = redis.call('TIME'), redis.call('HMGET', counts, 'chosen')[1]
  if not is_id(chosen) or #chosen > 32 then chosen = '0-0' end  -- another program wrote it
  local us = tonumber(now[2])
  local ms, seq = tonumber(now[1]) * 1000 + math.floor(us / 1000), (us % 1000 + 1) * 1e9
  local last_ms, last_seq = string.match(chosen, '^(%d+)%-(%d+)$')
  if tonumber(last_ms) < ms then return ms, seq end
  -- The clock stands still, or has gone back. Lua loses digits of larger numbers.
  local after = (math.floor(tonumber(last_seq) / 1e9) + 1) * 1e9
  if after > 1e15 then return tonumber(last_ms) + 1, seq end
  return tonumber(last_ms), math.max(seq, after)
end

-- Adds entries that may hold many records, as `add_records` does.
local function add_packed(events, counts, at, left)
  local extra, last = counts_of(events), nil
  local function add_entry(ms, seq)
    local of, n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local id, before = ms .. '-' .. text(seq + of - 1), extra + of - 1
    if of == 1 then
      redis.call('XADD', events, id, unpack(ARGV, at + 2, at + 1 + n))
    else
      redis.call('XADD', events, id, FIRST, ms .. '-' .. text(seq), 'extra', text(before),
        unpack(ARGV, at + 2, at + 1 + n))
    end
    last, extra, left, at = id, before, left - of, at + 2 + n
    return seq + of
  end
  local ms, seq = chosen_start(counts)
  local later, done, found = 0, pcall(add_entry, text(ms), seq)
  while not done do
    local why = type(found) == 'table' and found.err or tostring(found)
    if later > 2 ^ 40 or not string.find(why, 'equal or smaller', 1, true) then return nil, {err = why} end
    later = math.max(1, 2 * later)
    done, found = pcall(add_entry, text(ms + later), seq)
  end
  while left > 0 do found = add_entry(text(ms + later), found) end
  redis.call('HSET', counts, 'extra', text(extra), 'chosen', last)
  return last
end

-- Adds the `count` records that ARGV has from `from` on. First comes their number; then 'v', and a payload for each
-- record; or 'f', and for each record the number of its fields and values, and these; or 'p', and for each entry
-- the number of its records, of its fields and values, and these. Returns the id of the last record; or nil and
-- an error, before anything was written.
local function add_records(events, counts, from, count)
  local kind, next_id, last = ARGV[from + 1], '*', nil
  if kind == 'p' then return add_packed(events, counts, from + 2, count) end
  local call, argv, i = redis.call, ARGV, from + 2
  for left = count - 1, 0, -1 do
    if kind == 'v' then
      last = call('XADD', events, next_id, 'v', argv[i])
      i = i + 1
    else
      local n = tonumber(argv[i])
      last = call('XADD', events, next_id, unpack(argv, i + 1, i + n))
      i = i + 1 + n
    end
    -- In Redis 7.0 the clock advances within a script, so '*' could use the next millisecond.
    if left > 0 and next_id == '*' then next_id = string.match(last, '^%d+') .. '-*' end
  end
  return last
end

-- Returns an answer; with OK the id of the last record; with OK and FULL how many records count against the
-- limit. The answer is an error of the server if that refused the records.
local function take(events, counts, since, through, stands, before, limit, at)
  if through == stands or through == before then return 'DUP' end
  if since ~= stands then return 'OTHER' end
  local count, length, _, sealed = tonumber(ARGV[at]), records_of(events)
  if sealed then return 'SEALED' end
  length = with_room(events, length, count, limit)
  if limit > 0 and length + count > limit then return 'FULL', '', length end
  local last, refused = add_records(events, counts, at, count)
  return refused or 'OK', last, length + count
end
