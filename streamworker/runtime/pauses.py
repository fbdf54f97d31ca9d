"""Growing pauses with jitter between tries."""

import random


class Pauses:
    """Pauses that double from ``first_ms`` to ``max_ms``, each drawn from its upper half.

    Equal jitter: never less than half, so that a server that is down is not hammered; and
    spread, so that a hundred workers do not come back in step.
    """

    __slots__ = ("_first_ms", "_max_ms", "_rng", "_tries")

    def __init__(self, rng: random.Random, *, first_ms: int = 50, max_ms: int = 2_000) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._tries = 0

    def next_ms(self) -> int:
        """Return the next pause, in ms."""
        whole = min(self._max_ms, self._first_ms * 2 ** min(self._tries, 32))
        self._tries += 1
        return int(whole * (0.5 + self._rng.random() / 2))

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._tries = 0
