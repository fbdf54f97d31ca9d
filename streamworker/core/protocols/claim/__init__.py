"""The claim protocol: a store of ownership entries, and at most one new claim in a cycle.

Once a cycle each worker renews its entries, lists all, and claims one partition at most: one without an
owner, or one of the worker that owns most. A claim names the ETag that it saw, so of two claims one is
refused. An entry that is not renewed expires. So the group comes to an even share with no leader.
"""
