"""What one worker owns: the life of its partitions, their locks, and the pulse that it gives."""
