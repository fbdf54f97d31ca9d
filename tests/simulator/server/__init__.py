"""The simulator's model of Redis: what it stores, and the scripts of each protocol."""
