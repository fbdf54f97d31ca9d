"""How entries come from Redis into a worker's buffers.

One fetcher reads all partitions of a processor that have room, with one blocking call on one server and node
by node on a Cluster. What it reads waits in the buffer of its partition until the runner takes it. All
buffers share a budget of bytes, and a partition that is full does not keep the others from being read.
"""
