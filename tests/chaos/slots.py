"""Reads what clients send through a proxy, and looks that each command has its keys in one slot.

Nothing is taken from the project: what a key of ours looks like is from docs/redis-keys.md, and the slot of
a key is redis-py's.
"""

import functools
import re
from collections import Counter
from typing import Any

import hiredis
from redis.crc import key_slot

OURS = re.compile(rb"sw:\{[^}]+\}:[a-z]+(?::[A-Za-z0-9_.-]+)*")
"""A key of ours, wherever it stands in a command."""
CROSSINGS_KEPT = 20


@functools.lru_cache(maxsize=4_096)
def _slot_of(key: bytes) -> int:
    return int(key_slot(key))


def slots_of(words: list[Any]) -> set[int]:
    """Return the slots of all words of a command that are keys of ours."""
    return {
        _slot_of(word)
        for word in words
        if isinstance(word, bytes) and word.startswith(b"sw:{") and OURS.fullmatch(word)
    }


class OneSlot:
    """Counts the commands of all connections, and keeps those that touch more than one slot."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        """By name, those that name keys of ours."""
        self.others = 0
        """Those that name none."""
        self.slots: set[int] = set()
        """All slots that were touched."""
        self.crossing: list[str] = []
        """Commands with keys in several slots, and what could not be read."""
        self.refused = 0
        """Answers ``CROSSSLOT``."""
        self.sent_on: Counter[str] = Counter()
        """Answers ``MOVED``, ``ASK`` and ``TRYAGAIN``."""

    def requests(self) -> "Requests":
        return Requests(self)

    def answered(self, data: bytes) -> None:
        self.refused += data.count(b"-CROSSSLOT")
        if b"-MOVED " in data or b"-ASK " in data or b"-TRYAGAIN " in data:
            for name in ("MOVED", "ASK", "TRYAGAIN"):
                self.sent_on[name] += data.count(b"-%s " % name.encode())

    def take(self, words: Any) -> None:
        if not isinstance(words, list) or not words or not isinstance(words[0], bytes):
            self._found(f"no command: {words!r}")
            return
        slots = slots_of(words)
        if not slots:
            self.others += 1
            return
        self.commands[words[0].decode("utf-8", "replace").upper()] += 1
        self.slots |= slots
        if len(slots) > 1:
            self._found(
                b" ".join(word for word in words[:12] if isinstance(word, bytes)).decode("utf-8", "replace")
            )

    def _found(self, text: str) -> None:
        if len(self.crossing) < CROSSINGS_KEPT:
            self.crossing.append(text[:500])


class Requests:
    """The commands of one connection, from its first byte on.

    A command has the form of an answer that is a list of texts, so the parser of answers reads it.
    """

    def __init__(self, watch: OneSlot) -> None:
        self._watch = watch
        self._reader: Any = hiredis.Reader()

    def feed(self, data: bytes) -> None:
        """Take in some bytes; once they were no command, nothing of this connection is read any more."""
        if self._reader is None:
            return
        self._reader.feed(data)
        try:
            while (words := self._reader.gets()) is not False:
                self._watch.take(words)
        except hiredis.ProtocolError as error:
            self._watch.take(f"{error}: {data[:200]!r}")
            self._reader = None
