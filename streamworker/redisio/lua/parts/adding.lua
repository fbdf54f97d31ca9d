-- uses: ids counts
-- Adds records to a partition, for the scripts that append.
--
-- The records get consecutive ids: the same milliseconds, and consecutive sequence numbers. An entry has the
-- id of its last record. If the first entry of an append holds one record, Redis chooses its id. If it holds
-- many, as an entry of columns does, the script chooses it, for which it needs no right to read the stream:
-- the sequence numbers begin at a multiple of 10^9 that grows with the microsecond, so they are above all that
-- Redis gives in that millisecond. The id must also be above the last one that was chosen so, and XADD accepts
-- it only above the last id of the stream. If the clock has gone back, the script tries later milliseconds.
local TRIM_MAX = 10000

-- Returns how many records a partition holds that count against its limit, and whether it has retention.
local function records_of(events)
  local entries = redis.call('XLEN', events)
  local extra, before, _, retained = counts_of(events)
  local present = entries == 0 and 0 or entries + extra - before
  return math.max(0, present - (retained or 0)), retained ~= nil
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
    local _, is_retained = records_of(events)
    if is_retained then
      -- Only workers know the limits of the retention, and trim by them.
      local _, passed = keep_from(events)
      if passed then count_retained(events, passed) end
      length = records_of(events)
      return
    end
    trim_events(events, TRIM_MAX)
    length = records_of(events)
    if length > 0 and length + count > limit then
      -- '~' keeps a node that is partly needed, so this exact trim drops less than a node.
      local keep = keep_from(events)
      if keep then
        trim_to(events, keep)
        length = records_of(events)
      end
    end
  end)
  return length
end

-- Adds the records that ARGV has from `from` on. First comes their number; then 'v', and a payload for each
-- record; or 'f', and for each record the number of its fields and values, and these; or 'p', and for each entry
-- the number of its records, of its fields and values, and these. Returns the id of the last record; or nil and
-- an error, before anything was written.
local function add_records(events, counts, from)
  local count, kind, last = tonumber(ARGV[from]), ARGV[from + 1], nil
  from = from + 2
  local next_id = '*'
  local function add(...)
    last = redis.call('XADD', events, next_id, ...)
    -- In Redis 7.0 the clock advances within a script, so '*' could use the next millisecond.
    if next_id == '*' then next_id = string.match(last, '^%d+') .. '-*' end
  end
  local function choose_id(of, add_many)
    local now, chosen = redis.call('TIME'), redis.call('HGET', counts, 'chosen')
    if not is_id(chosen) or #chosen > 32 then chosen = '0-0' end  -- another program wrote it
    local us = tonumber(now[2])
    local ms, first = tonumber(now[1]) * 1000 + math.floor(us / 1000), (us % 1000 + 1) * 1e9
    ms = math.max(ms, tonumber(string.match(chosen, '^%d+')))  -- the clock may stand still, or have gone back
    local later = 0
    while true do
      local at = text(ms + later)
      if id_less(chosen, at .. '-' .. text(first)) then
        local done, why = pcall(add_many, at, first, first + of - 1)
        if done then break end
        why = type(why) == 'table' and why.err or tostring(why)
        if later > 2 ^ 40 or not string.find(why, 'equal or smaller', 1, true) then return {err = why} end
      end
      later = math.max(1, 2 * later)
    end
    redis.call('HSET', counts, 'chosen', last)
  end
  if kind == 'v' then
    -- This calls XADD without the helper, which would take a tenth of the time.
    local call, argv = redis.call, ARGV
    add('v', argv[from])
    for i = from + 1, from + count - 1 do last = call('XADD', events, next_id, 'v', argv[i]) end
  elseif kind == 'f' then
    local i = from
    for _ = 1, count do
      local n = tonumber(ARGV[i])
      add(unpack(ARGV, i + 1, i + n))
      i = i + 1 + n
    end
  else
    local extra = counts_of(events)
    local i, ms, at_seq, left = from, nil, nil, count
    while left > 0 do
      local of, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
      left = left - of
      if ms then at_seq = at_seq + of end
      if of == 1 then
        if ms then next_id = ms .. '-' .. text(at_seq) end
        add(unpack(ARGV, i + 2, i + 1 + n))
      else
        extra = extra + of - 1
        local function add_many(id_ms, first, final)
          next_id = id_ms .. '-' .. text(final)
          return add(FIRST, id_ms .. '-' .. text(first), 'extra', text(extra), unpack(ARGV, i + 2, i + 1 + n))
        end
        if ms then
          add_many(ms, at_seq - of + 1, at_seq)
        else
          local refused = choose_id(of, add_many)
          if refused then return nil, refused end
        end
      end
      if not ms then
        local seq
        ms, seq = string.match(last, '^(%d+)%-(%d+)$')
        at_seq = tonumber(seq)
        -- Lua loses digits of larger numbers. Only another program gives such ids.
        if #seq > 14 then ms, at_seq = text(tonumber(ms) + 1), -1 end
      end
      i = i + 2 + n
    end
    redis.call('HSET', counts, 'extra', text(extra))
  end
  return last
end
