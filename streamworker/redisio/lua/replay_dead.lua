-- uses: types
-- Sends a dead letter through its partition once more, as a new entry, and drops the letter.
--
-- KEYS  1 dead (stream)  2 events (stream)
-- ARGV  1 id of the dead letter
-- reply [OK, id of the new entry] | [MISSING] | [BADTYPE, key]
local wrong = wrong_type({'stream', 'stream'})
if wrong then return {'BADTYPE', wrong} end
local letter = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not letter then return {'MISSING'} end
local fields = {}
for i = 1, #letter[2], 2 do
  if string.sub(letter[2][i], 1, 2) == 'f.' then
    fields[#fields + 1] = string.sub(letter[2][i], 3)
    fields[#fields + 1] = letter[2][i + 1]
  end
end
if #fields == 0 then return {'MISSING'} end
local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('XDEL', KEYS[1], ARGV[1])
return {'OK', id}
