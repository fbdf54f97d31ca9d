-- uses: adding
-- Appends entries of one producer to a partition, all or none. A send that is repeated after a lost answer
-- has the same number and writes nothing. A producer has at most two sends in progress, and the second
-- names the number that it follows. The script refuses the second if that number is not the last one
-- written, so that no send overtakes another, even if the first fails. Redis stores the last two sends,
-- and answers repeats of both from that. A send with a lower number is no longer awaited, written or not:
-- it writes nothing, and the answer says nothing about it.
--
-- KEYS  1 events (stream)  2 producer (string): number of its last send, last id of that, number of the
--       send before, last id of this one too, and the number before of a send that was confirmed  3 counts (hash)
-- ARGV  1 number of this send  2 number of the send that it follows; '' for any
--       3 number of the last send that was confirmed to the producer; 0 for none
--       4 records that the partition may hold besides those that are retained; 0 for no limit
--       5 number of records
--       6 'v': a payload for each record; 'f': for each record the number of its fields and values, and
--       these; 'p': for each entry the number of its records, of its fields and values, and these
--       7... the entries
-- reply [OK | DUP, id of the last record, length: records that count against the limit, number of the append
--       before, whether something was written, number before that one] | [FULL | EARLY, '', length] | [BADTYPE, key]
--
-- Numbers before are '' if the server knows none. It has lost the confirmed sends between two numbers that
-- follow each other. A send that nobody has confirmed may have been given up, so it is passed over in the third.

local events, count, limit = KEYS[1], tonumber(ARGV[5]), tonumber(ARGV[4])
local length = records_of(events)

local known = redis.call('GET', KEYS[2])
local number, at, behind, earlier = string.match(known or '', '^(%d+):([^:]*):?(%d*):?(.*)$')
if number and tonumber(number) >= tonumber(ARGV[1]) then
  -- WAIT covers the writes of this connection only, so a repeat must write, too: it writes the same value.
  -- When memory is full, Redis refuses that, and the reply says so.
  local written = redis.pcall('SET', KEYS[2], known, 'PX', REMEMBER_MS)
  local its_at, third = string.match(earlier, '^([^:]+):?(%d*)$')
  if number ~= ARGV[1] and its_at then at, behind = its_at, third end
  return {'DUP', at, length, behind, written.err and 0 or 1, third or ''}
end
if ARGV[2] ~= '' and ARGV[2] ~= number then return {'EARLY', '', length} end

length = with_room(events, length, count, limit)
if limit > 0 and length + count > limit then return {'FULL', '', length} end
local last, refused = add_records(events, KEYS[3], count, 6)
if refused then return refused end
local third = behind or ''
if third ~= '' and tonumber(third) > tonumber(ARGV[3]) then third = string.match(earlier, ':(%d*)$') or '' end
local now_known = {ARGV[1], last, number or '', at or '', third}
redis.call('SET', KEYS[2], table.concat(now_known, ':'), 'PX', REMEMBER_MS)
return {'OK', last, length + count, number or '', 1, third}
