"""The claim protocol: a store of ownership entries, and at most one new claim in a cycle."""
