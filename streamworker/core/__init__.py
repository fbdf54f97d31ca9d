"""DECIDES: pure values in, values out; no I/O, clock, randomness, logging or async."""
