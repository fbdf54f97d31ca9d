"""The simulator's server: a store in memory, the scripts that ship, and redisio's own calls of them."""
