-- uses: types ids trim
-- Drops what everybody is past: source entries by the groups of the stream, acked batches by the
-- row that all readers have passed. Anyone may call it at any time.
--
-- KEYS  1 events (stream)  2 acked (stream)
-- ARGV  1 rows of the acked log that all readers are past; 0 for none  2 most entries to drop of each
-- reply [OK, source entries dropped, acked entries dropped] | [BADTYPE, key]
local wrong = wrong_type({'stream', 'stream'})
if wrong then return {'BADTYPE', wrong} end
local limit = tonumber(ARGV[2])
return {'OK', trim_events(KEYS[1], limit), trim_acked(KEYS[2], tonumber(ARGV[1]), limit)}
