"""What notices that a worker or a partition makes no progress."""
