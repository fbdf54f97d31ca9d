-- uses: adding
-- Appends entries of one producer to a partition, all or none. A send that is repeated after a lost answer
-- has the same number and writes nothing. Each send names the number that it follows, and the script refuses
-- it if that number is not the last one written. So no send overtakes another, even if the first of two in
-- progress fails, and a producer learns that the server has lost what it had confirmed. Redis stores the last
-- two sends, and answers repeats of both from that. A send with a lower number is no longer awaited, written or
-- not: it writes nothing, and the answer says nothing about it.
--
-- KEYS  events (stream)  counts (hash)
--       sent (string): number of the producer's last send, last id of that, and both of the send before
-- ARGV  number: of this send  follows: the number of the send that it follows; '' for any
--       limit (number): records that the partition may hold besides those that are retained; 0 for no limit
--       records...: see parts/adding.lua
-- reply [OK | DUP, id of the last record, length: records that count against the limit, whether something was
--       written] | [OTHER, number of the last send; '' if none is known, length] | [FULL, '', length]
--       | [BADTYPE, key]

local length, count = records_of(events), tonumber(ARGV[records_at])

local known = redis.call('GET', sent)
local last_number, at, its_at = string.match(known or '', '^(%d+):([^:]*):?%d*:?([^:]*)$')
if last_number and tonumber(last_number) >= tonumber(number) then
  -- WAIT covers the writes of this connection only, so a repeat must write, too: it writes the same value.
  -- When memory is full, Redis refuses that, and the reply says so.
  local written = redis.pcall('SET', sent, known, 'PX', REMEMBER_MS)
  if last_number ~= number and its_at ~= '' then at = its_at end
  return {'DUP', at, length, written.err and 0 or 1}
end
if follows ~= '' and follows ~= last_number then return {'OTHER', last_number or '', length} end

length = with_room(events, length, count, limit)
if limit > 0 and length + count > limit then return {'FULL', '', length} end
local last, refused = add_records(events, counts, records_at)
if refused then return refused end
redis.call('SET', sent, table.concat({number, last, last_number or '', at or ''}, ':'), 'PX', REMEMBER_MS)
return {'OK', last, length + count, 1}
