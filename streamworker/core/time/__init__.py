"""When something is due: planned times of timers, times beside values of tables, event time, windows.

Everything here is a function of times that are passed in, in milliseconds since 1970.
"""
