-- uses: trim
-- Drops the rows of an acked log without readers, up to a row, if it is still the same log. Each call drops
-- some entries, so that it never blocks the server for long: call it until it drops none.
--
-- KEYS  lock (hash)  acked (stream)
-- ARGV  log: its identity  row (number)  most (number): entries to drop
-- reply [OK, entries dropped] | [CHANGED] | [BADTYPE, key]
if redis.call('HGET', lock, 'log') ~= log then return {'CHANGED'} end
local dropped = trim_acked(acked, row, most)
-- A trim of whole nodes leaves a part of the last node; dropping that part is quick.
if dropped == 0 and row > 0 then
  dropped = redis.call('XTRIM', acked, 'MINID', '=', string.format('%.0f-0', row + 1))
end
return {'OK', dropped}
