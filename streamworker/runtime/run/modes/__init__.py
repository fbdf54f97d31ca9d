"""The ways to call a user's function: by batch, record, key, stream or columns.

Each mode is a loop: take entries, decode them, call the function, hand over what was done. ``modes`` is their
base, with retries and policies, and ``record`` has that of modes which commit several calls together. Results
are committed in the order of the entries, whatever the order in which the calls end.
"""
