"""Python's collector of reference cycles, as long as a worker runs.

It counts containers that are made and not freed yet, and each 700 of them make it look at the young
ones, now and then at all there are. A worker makes some containers a record and frees them a moment
later, while the modules that it has loaded hold 200,000: looking at these again and again took half
of a batch handler's time (measured).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_MAX = 20_000
"""Containers that may be added before the young ones are looked at. More than the records in hand of
a few partitions, so that most are freed before anybody looks; with a kilobyte each, cycles hold 20 MB."""


@contextmanager
def rested_collector() -> Iterator[None]:
    """Leave out what is loaded now, and look at what is made later less often.

    A collector that was turned off stays off, and one that looks less often keeps its pace.

    Examples
    --------
    >>> with rested_collector():
    ...     gc.get_threshold()[0] >= YOUNG_MAX
    True
    """
    if not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    gc.collect()  # What is garbage now would be kept for ever.
    gc.freeze()
    gc.set_threshold(max(before[0], YOUNG_MAX), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
