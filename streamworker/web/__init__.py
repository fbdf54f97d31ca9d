"""The web view: one page, read only, of the same snapshots as the live view of ``top``.

``history`` turns snapshots into what the page shows and keeps the last hour; it is pure. ``broadcast`` looks
once for all tabs and passes the frames on; ``server`` says who may have them. ``static`` is the page as the
browser gets it. The room does not know Redis: whoever starts it passes the function that looks.
"""
