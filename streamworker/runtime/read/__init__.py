"""How entries come from Redis into a worker's buffers."""
