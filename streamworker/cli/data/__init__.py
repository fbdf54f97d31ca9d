"""Commands about what is stored: records, dead letters, checkpoints, types and tables."""
