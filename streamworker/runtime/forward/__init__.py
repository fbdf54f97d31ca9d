"""Results for other streams: routed and encoded where they are made, and forwarded by the owner."""
