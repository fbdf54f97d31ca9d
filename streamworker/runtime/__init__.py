"""RUNS: tasks, threads and signals; carries events into the core and effects out."""
