-- Appends a dead letter to its partition as a new entry, and deletes the letter. The entry's first field
-- names the group of the letter: all other groups skip the entry. Fields that an operator has edited take the
-- place of the letter's.
--
-- KEYS  dead (stream)  events (stream)  counts (hash)
-- ARGV  id: of the dead letter  first: name of the first field  group
--       edited...: fields and values; none for those of the letter
-- reply [OK, id of the new entry] | [MISSING] | [SEALED] | [BADTYPE, key]
local letter = redis.call('XRANGE', dead, id, id)[1]
if not letter then return {'MISSING'} end
local fields = {first, group, unpack(ARGV, edited_at)}
for i = 1, edited_at > #ARGV and #letter[2] or 0, 2 do
  if string.sub(letter[2][i], 1, 2) == 'f.' then
    fields[#fields + 1] = string.sub(letter[2][i], 3)
    fields[#fields + 1] = letter[2][i + 1]
  end
end
if #fields == 2 then return {'MISSING'} end
if redis.call('HGET', counts, 'sealed') then return {'SEALED'} end
local entry = redis.call('XADD', events, '*', unpack(fields))
redis.call('XDEL', dead, id)
return {'OK', entry}
