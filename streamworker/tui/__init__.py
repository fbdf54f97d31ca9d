"""The live view of a group: snapshot -> model -> renderable, and a loop around it.

``model`` decides what the view shows and ``view`` how it looks; both are pure, so a recorded
snapshot always renders the same frame. ``app`` owns the terminal and the clock. The live view only
reads, and only from Redis: it does not contact workers.
"""
