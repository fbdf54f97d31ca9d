-- Appends a dead letter to its partition as a new entry, and deletes the letter. The entry's first field
-- names the group of the letter: all other groups skip the entry.
--
-- KEYS  dead (stream)  events (stream)
-- ARGV  id: of the dead letter  first: name of the first field  group
-- reply [OK, id of the new entry] | [MISSING] | [BADTYPE, key]
local letter = redis.call('XRANGE', dead, id, id)[1]
if not letter then return {'MISSING'} end
local fields = {first, group}
for i = 1, #letter[2], 2 do
  if string.sub(letter[2][i], 1, 2) == 'f.' then
    fields[#fields + 1] = string.sub(letter[2][i], 3)
    fields[#fields + 1] = letter[2][i + 1]
  end
end
if #fields == 2 then return {'MISSING'} end
local entry = redis.call('XADD', events, '*', unpack(fields))
redis.call('XDEL', dead, id)
return {'OK', entry}
