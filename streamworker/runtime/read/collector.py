"""Settings of Python's garbage collector while a worker runs.

The collector counts containers that are created and not freed yet. After each 700 of them it scans the
young containers, and at times all of them. A worker creates a few containers for each record and frees them
a moment later, while the modules that it has loaded hold 200,000. Scanning those again and again took half
of a batch handler's time (measured).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_MAX = 20_000
"""New containers before the collector scans the young ones. This is more than a few partitions have records
in hand, so that most are freed before a scan. With a kilobyte each, garbage cycles hold 20 MB."""


@contextmanager
def rested_collector() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection, and scan later ones less often.

    A collector that is turned off stays off, and one that scans even less often keeps its threshold.
    """
    if not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    gc.collect()  # Otherwise freeze would keep the present garbage for ever.
    gc.freeze()
    gc.set_threshold(max(before[0], YOUNG_MAX), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
