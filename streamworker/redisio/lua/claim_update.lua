-- uses: claims
-- Writes the checkpoints of an owner's partitions, which renews its entries. Only the owner can, and only
-- with the current ETag of the entry. The reply contains the current entries.
--
-- KEYS  1 claims (hash)
-- ARGV  1 owner  then for each partition: partition, ETag, owner level, checkpoint
-- reply [OK, ETag of the renewed, partition, entry or '', ...] | [BADTYPE, key]
return change_entries(KEYS[1], ARGV[1], function(held_by) return held_by == ARGV[1] end)
