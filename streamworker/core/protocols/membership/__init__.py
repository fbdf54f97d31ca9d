"""The membership protocol: one document lists the members, and each computes the same assignment."""
