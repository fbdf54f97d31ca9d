"""What a stream holds: ids of entries, partitions of keys, batches, windows of calls, load, readers.

Each module answers one question about the records of a partition: which partition a key has, how many
records one call gets, which may overlap, what an outbox forwards next. Ids, keys and
counts come in; no record does. One invariant holds throughout: a checkpoint never passes an entry that
is not done.
"""
