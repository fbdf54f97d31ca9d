"""The live view of a group: snapshot -> model -> renderable, and a loop around it.

``model`` decides what is shown and ``view`` how it looks; both are pure, so that a recorded
snapshot renders the same picture everywhere. ``app`` owns the terminal and the clock. The view
is read only and takes what it shows from Redis alone: no worker is asked.
"""
