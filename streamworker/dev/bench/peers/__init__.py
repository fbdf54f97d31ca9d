"""What others do with the same entries: one module for each, run as a process of its own."""
