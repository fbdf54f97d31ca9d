"""All commands in one store."""

from tests.simulator.store.sortedsets import SortedSets
from tests.simulator.store.streams import Streams


class Store(SortedSets, Streams):
    """What a server stores, and its commands by name.

    >>> store = Store(lambda: 0)
    >>> store.do_xadd(b"events", b"*", b"v", b"1"), store.call("XLEN", b"events")
    (b'0-1', 1)
    """
