"""What streams, acked logs, dead letters and state hold, and the scripts that write them.

Producers append records; a commit moves a partition's checkpoint and writes its rows, state, tables, dead
letters and messages for other streams in one script. All of that is in one slot of a Cluster, and the script
refuses an owner or epoch that is not the lock's. An append or a message that is sent again is written once.
"""
