"""What a stream holds: ids of entries, partitions of keys, batches, windows of calls, load, readers."""
