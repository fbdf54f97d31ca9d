-- uses: claims
-- Claims partitions whose entries still have the ETags that the claimer saw. A second claimer has an old
-- ETag, so its claim is refused. The reply contains the current entries.
--
-- KEYS  1 claims (hash)
-- ARGV  1 owner  then for each partition: partition, ETag or '0', owner level, checkpoint
-- reply [OK, ETag of the claimed, partition, entry or '', ...] | [BADTYPE, key]
return change_entries(KEYS[1], ARGV[1], function() return true end)
