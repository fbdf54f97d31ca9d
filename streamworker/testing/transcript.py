"""A transcript of several workers in the order of time, in the words of ``core.transcript``.

``streamworker simulate --trace`` prints one, tests/protocol compares them, docs/protocol.md shows some.
"""

from collections.abc import Sequence

from streamworker.core import events as ev
from streamworker.core.transcript import is_news, step_in_words

WIDTH = 120
"""A longer line is continued below, where one of its parts ends."""


class Transcript:
    """Lines about several workers.

    Parameters
    ----------
    quiet
        Leave out events that led to nothing.
    """

    def __init__(self, *, quiet: bool = True) -> None:
        self.lines: list[str] = []
        self.start_ms = 0
        self._quiet = quiet

    def took(self, now_ms: int, name: str, event: ev.Event, effects: Sequence[ev.Effect]) -> None:
        """Write down that a core was told something, and what it wants done."""
        if self._quiet and not is_news(event, effects):
            return
        told, *wanted = step_in_words(event, effects)
        self.lines += _folded(f"{now_ms - self.start_ms:>6} ms  {name}  ", told)
        for words in wanted:
            self.lines += _folded(f"{'':>15}", words)

    def happened(self, now_ms: int, text: str) -> None:
        """Write down what happened to a worker or to the server."""
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  ({text})")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _folded(head: str, words: str) -> list[str]:
    lines = [head]
    for part in words.split("; "):
        if len(lines[-1]) + len(part) > WIDTH and lines[-1] != head:
            lines.append(" " * 19)
        lines[-1] += f"{part}; "
    return [line.removesuffix("; ") if line is lines[-1] else line.rstrip() for line in lines]
