"""What a partition calls by time between two batches: its timers, and functions at the ends of values.

``timers`` watches the clock and calls; ``expiring`` is about values of tables that have ended.
"""
