-- uses: taking
-- Appends entries of one producer to a partition, all or none. The marks of a producer are the numbers of its
-- appends, which it never uses again. Two appends may be in progress, so Redis keeps the last two numbers: both
-- appends are answered when they are repeated. A producer that is refused learns where the partition stands,
-- and so what the server has lost of what it had confirmed.
--
-- KEYS  events (stream)  counts (hash)
--       sent (string): number of the producer's last append, last id of that, and both of the append before
-- ARGV  since: number of the append that it follows; '0' for none  through: of this append
--       limit (number): records that the partition may hold besides those that are retained; 0 for no limit
--       records...: see parts/taking.lua
-- reply [OK | DUP, id of the last record, length: records that count against the limit; 0 with DUP, whether
--       something was written] | [OTHER, number of the last append; '0' for none, 0, whether something was written]
--       | [SEALED | FULL, '', length] | [BADTYPE, key]
local known = redis.call('GET', sent)
local stands, its_id, before, id_before = '0', '', '', ''
if known then
  stands, its_id, before, id_before = string.match(known, '^(%d+):([^:]*):([^:]*):([^:]*)$')
  if not stands then return {'BADTYPE', sent} end
end
local code, last, length = take(events, counts, since, through, stands, before, limit, records_at)
if code == 'OK' then
  redis.call('SET', sent, through .. ':' .. last .. ':' .. stands .. ':' .. its_id, 'PX', REMEMBER_MS)
  return {code, last, length, 1}
elseif code ~= 'DUP' and code ~= 'OTHER' then
  return code.err and code or {code, '', length or 0}
end
-- When memory is full, Redis refuses this, and the reply says so.
local written = known and redis.pcall('SET', sent, known, 'PX', REMEMBER_MS)
local value = code == 'OTHER' and stands or through == stands and its_id or id_before
return {code, value, 0, written and written.err and 0 or 1}
