-- Appends a dead letter to its partition as a new entry, and deletes the letter. The entry's first field
-- names the group of the letter: all other groups skip the entry.
--
-- KEYS  1 dead (stream)  2 events (stream)
-- ARGV  1 id of the dead letter  2 name of the first field  3 group
-- reply [OK, id of the new entry] | [MISSING] | [BADTYPE, key]
local letter = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not letter then return {'MISSING'} end
local fields = {ARGV[2], ARGV[3]}
for i = 1, #letter[2], 2 do
  if string.sub(letter[2][i], 1, 2) == 'f.' then
    fields[#fields + 1] = string.sub(letter[2][i], 3)
    fields[#fields + 1] = letter[2][i + 1]
  end
end
if #fields == 2 then return {'MISSING'} end
local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('XDEL', KEYS[1], ARGV[1])
return {'OK', id}
