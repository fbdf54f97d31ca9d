"""RUNS: tasks, threads and signals; passes events to the core and performs its effects."""
