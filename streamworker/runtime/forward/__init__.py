"""Results for other streams: routed and encoded where they are made, and forwarded by the owner.

A commit writes the messages of a partition to its outbox, in the same step as its checkpoint. The owner then
forwards them, in order for each target partition, and deletes what the target has. A target takes a message
only if it stands where the message begins: so each record is there once, also after a crash of the owner.
"""
