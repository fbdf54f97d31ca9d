"""The membership protocol: one document lists the members, and each computes the same assignment.

A change is a compare-and-set on the document's generation, so that two changes never mix. ``worker`` takes
what was read and heard, and asks for the changes: to join, to leave, to remove a member that is silent.
The assignment is a function of the document alone, so the members need no leader to agree on it.
"""
