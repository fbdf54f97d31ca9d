"""What the workers of one group share: membership, control stream, locks, loads, readers and stalls."""
