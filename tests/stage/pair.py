"""A primary and a replica that change places, and a proxy that clients find the primary behind."""

from urllib.parse import urlsplit

from tests.chaos.proxy import Proxy
from tests.helpers import wait_for
from tests.stage.server import Server

FOLLOW_TIMEOUT_S = 15.0
MORE = """
repl-diskless-sync no
repl-diskless-load swapdb
"""
"""A disk is quick here; and a replica that loads from it is looked for once a second by Valkey."""


class Switch(Proxy):
    """A proxy that can be pointed at another server, as a name in the DNS can."""

    def point_at(self, url: str) -> None:
        """Send new connections there, and end those that there are."""
        self._parts = urlsplit(url)
        self.reset()


class Pair:
    """Two servers, of which one follows the other."""

    def __init__(self, binary: str | None = None) -> None:
        self.primary = Server(binary=binary, port=0, more=MORE)
        # Clients know one password, whoever is the primary.
        self.replica = Server(binary=binary, port=0, more=MORE, password=self.primary.password)

    def start(self) -> None:
        self.primary.start()
        self.rejoin()

    def stop(self) -> None:
        for server in (self.primary, self.replica):
            server.stop()

    def rejoin(self) -> None:
        """Start the replica if it was killed, let it follow the primary, and wait until it does."""
        self.replica.follow(self.primary)
        self.replica.start()
        wait_for(lambda: self.replica.follows, "the replica follows", FOLLOW_TIMEOUT_S)
        with self.primary.client() as primary:
            wait_for(lambda: primary.wait(1, 100) == 1, "the primary counts it", FOLLOW_TIMEOUT_S)

    def promote(self) -> None:
        """Make the replica the primary; the primary, whatever it does, is the other one now."""
        self.replica.follow(None)
        self.primary, self.replica = self.replica, self.primary
