-- uses: adding
-- Appends entries of one producer to a partition, all or none. A send that is repeated after a lost answer
-- has the same number and writes nothing. A producer has at most two sends in progress, and the second
-- names the number that it follows. The script refuses the second if that number is not the last one
-- written, so that no send overtakes another, even if the first fails. Redis stores the last two sends,
-- and answers repeats of both from that. A send with a lower number is no longer awaited, written or not:
-- it writes nothing, and the answer says nothing about it.
--
-- KEYS  events (stream)  counts (hash)
--       sent (string): number of the producer's last send, last id of that, number of the send before, last id of
--         this one too, the number before of a send that was confirmed, and the same for the send before
-- ARGV  number: of this send  follows: the number of the send that it follows; '' for any
--       confirmed: the number of the last send that was confirmed to the producer; 0 for none
--       limit (number): records that the partition may hold besides those that are retained; 0 for no limit
--       records...: see parts/adding.lua
-- reply [OK | DUP, id of the last record, length: records that count against the limit, number of the append
--       before, whether something was written, number before that one] | [FULL | EARLY, '', length] | [BADTYPE, key]
--
-- Numbers before are '' if the server knows none. It has lost the confirmed sends between two numbers that
-- follow each other. A send that nobody has confirmed may have been given up, so it is passed over in the third.

local length, count = records_of(events), tonumber(ARGV[records_at])

local known = redis.call('GET', sent)
local last_number, at, behind, its_at, third, fourth =
  string.match(known or '', '^(%d+):([^:]*):?(%d*):?([^:]*):?(%d*):?(%d*)$')
if last_number and tonumber(last_number) >= tonumber(number) then
  -- WAIT covers the writes of this connection only, so a repeat must write, too: it writes the same value.
  -- When memory is full, Redis refuses that, and the reply says so.
  local written = redis.pcall('SET', sent, known, 'PX', REMEMBER_MS)
  if last_number ~= number and its_at ~= '' then
    -- Earlier versions stored no fourth. Without it a loss may stay untold, and none is made up.
    at, behind, third = its_at, third, fourth ~= '' and fourth or third
  end
  return {'DUP', at, length, behind, written.err and 0 or 1, third}
end
if follows ~= '' and follows ~= last_number then return {'EARLY', '', length} end

length = with_room(events, length, count, limit)
if limit > 0 and length + count > limit then return {'FULL', '', length} end
local last, refused = add_records(events, counts, records_at)
if refused then return refused end
local marked = behind or ''
-- Mostly one of the two is the confirmed one, which takes no conversion.
if marked ~= '' and last_number ~= confirmed and marked ~= confirmed and tonumber(marked) > tonumber(confirmed) then
  marked = third
end
local marked_before = third and third ~= '' and third or '0'
local now_known = {number, last, last_number or '', at or '', marked, marked_before}
redis.call('SET', sent, table.concat(now_known, ':'), 'PX', REMEMBER_MS)
return {'OK', last, length + count, last_number or '', 1, marked}
