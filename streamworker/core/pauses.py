"""Exponential backoff with jitter between retries."""

from collections.abc import Callable


def pause_ms(failures: int, random: Callable[[], float], *, first_ms: int, max_ms: int) -> int:
    """Return the pause in ms after so many failures: it doubles with each, and is drawn from its upper half.

    This is equal jitter. A pause is never less than half its maximum, so that retries do not overload a
    server that is down; and pauses are spread, so that a hundred workers do not retry at the same time. It is
    at least a millisecond: nothing is repeated without a pause.
    ``random`` returns a number from 0 up to 1.
    """
    whole = min(max_ms, first_ms * 2 ** min(max(failures - 1, 0), 32))
    return max(1, int(whole * (0.5 + random() / 2)))


class Pauses:
    """The pauses between the tries of one call, from ``first_ms`` to ``max_ms``; see :func:`pause_ms`."""

    def __init__(self, random: Callable[[], float], *, first_ms: int = 50, max_ms: int = 2_000) -> None:
        self._random = random
        self._first_ms = first_ms
        self._max_ms = max_ms
        self.failures = 0
        """The tries that have failed since the last reset."""

    def next_ms(self) -> int:
        """Return the next pause, in ms."""
        self.failures += 1
        return pause_ms(self.failures, self._random, first_ms=self._first_ms, max_ms=self._max_ms)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self.failures = 0
