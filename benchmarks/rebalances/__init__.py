"""The cost of joins, leaves and deaths of real worker processes."""
