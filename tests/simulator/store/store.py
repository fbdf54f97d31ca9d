"""All commands in one store."""

from tests.simulator.store.fields import Fields
from tests.simulator.store.streams import Streams


class Store(Fields, Streams):
    """What a server stores, and its commands by name.

    >>> store = Store(lambda: 0)
    >>> store.do_hset(b"lock", b"owner", b"a.1"), store.do_hget(b"lock", b"owner")
    (1, b'a.1')
    """
