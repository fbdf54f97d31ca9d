"""The lease protocol: workers race for each partition, and a worker with less to do is faster."""
