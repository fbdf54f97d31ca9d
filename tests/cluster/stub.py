"""A node of a Cluster that answers as it is told, where the slots are too."""

from streamworker.redisio.wire.topology import slot_of

HERE, AWAY = "a", "b"
"""A key that the node has, and one that it sends elsewhere."""


class StubNode:
    """A node that has all slots, and sends one key elsewhere."""

    def __init__(self, moved_to: str = "") -> None:
        self.port = 0
        self.moved_to = moved_to
        self.hangs = b""
        """A command that it does not answer."""
        self.closed = False
        """Whether it lets nobody in."""
        self.beside: StubNode | None = None
        """Who has the second half of the slots."""
        self.looks = 0
        self.hung: list[list[bytes]] = []
        """What it was asked and did not answer."""

    def answer(self, words: list[bytes]) -> bytes:
        if words[0] == self.hangs:
            self.hung.append(words)
            return b""
        match words:
            case [b"CLUSTER", _] if self.beside is not None:
                halves = ((0, 8191, self.port), (8192, 16383, self.beside.port))
                return b"*2\r\n" + b"".join(
                    b"*3\r\n:%d\r\n:%d\r\n*2\r\n$0\r\n\r\n:%d\r\n" % half for half in halves
                )
            case [b"CLIENT", b"SETNAME", _] if self.closed:
                return b"-NOAUTH Authentication required.\r\n"
            case [b"CLUSTER", _]:
                self.looks += 1
                return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n" % self.port
            case [b"GET", key] if key == AWAY.encode() and self.moved_to:
                return f"-MOVED {slot_of(AWAY)} {self.moved_to}\r\n".encode()
            case [b"GET", _]:
                return b"$4\r\nhere\r\n"
            case _:
                return b"+OK\r\n"


def url_of(port: int) -> str:
    return f"redis+cluster://127.0.0.1:{port}"
