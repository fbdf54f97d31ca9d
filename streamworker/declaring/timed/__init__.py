"""Functions that are called by time: timers, ends of values of tables, windows."""
