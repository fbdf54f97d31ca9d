-- uses: trim
-- Drops the rows of an acked log without readers, up to a row, if it is still the same log. Each call drops
-- some entries, so that it never blocks the server for long: call it until it drops none.
--
-- KEYS  1 lock (hash)  2 acked (stream)
-- ARGV  1 identity of the log  2 row  3 most entries to drop
-- reply [OK, entries dropped] | [CHANGED] | [BADTYPE, key]
if redis.call('HGET', KEYS[1], 'log') ~= ARGV[1] then return {'CHANGED'} end
local row = tonumber(ARGV[2])
local dropped = trim_acked(KEYS[2], row, tonumber(ARGV[3]))
-- A trim of whole nodes leaves a part of the last node; dropping that part is quick.
if dropped == 0 and row > 0 then
  dropped = redis.call('XTRIM', KEYS[2], 'MINID', '=', string.format('%.0f-0', row + 1))
end
return {'OK', dropped}
