"""The lease protocol: workers race for each partition, and a worker with less to do is faster.

A worker challenges a partition, waits for a time that grows with its own load, and then takes the lease if
nobody was faster. The former owner drains and says so, or its lease runs out. What a node knows of the
leases may be old: the grab is one atomic step on the server, and so has one winner.
"""
