"""A transcript of several workers in the order of time, with the texts of ``core.transcript``.

``python -m tests.simulator --trace`` prints a transcript, tests/protocol compares transcripts, and
docs/protocol.md shows some.
"""

from collections.abc import Sequence

from streamworker.core import events as ev
from streamworker.core.transcript import is_news, step_in_words

WIDTH = 120
"""Maximum length of a line; a longer one continues on the next line, after one of its parts."""


class Transcript:
    """The lines of a transcript; a quiet one leaves out events without consequences."""

    def __init__(self, *, quiet: bool = True) -> None:
        self.lines: list[str] = []
        self.start_ms = 0
        self.only: frozenset[str] = frozenset()
        """The workers whose steps are added; all workers if empty."""
        self._quiet = quiet

    def took(self, now_ms: int, name: str, event: ev.Event, effects: Sequence[ev.Effect]) -> None:
        """Add an event of a core and its effects."""
        if (self.only and name not in self.only) or (self._quiet and not is_news(event, effects)):
            return
        told, *wanted = step_in_words(event, effects)
        self.lines += _folded(f"{now_ms - self.start_ms:>6} ms  {name}  ", told)
        for words in wanted:
            self.lines += _folded(f"{'':>15}", words)

    def happened(self, now_ms: int, text: str) -> None:
        """Add an incident of a worker or the server."""
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  ({text})")


def _folded(head: str, words: str) -> list[str]:
    lines = [head]
    for part in words.split("; "):
        if len(lines[-1]) + len(part) > WIDTH and lines[-1] != head:
            lines.append(" " * 19)
        lines[-1] += f"{part}; "
    return [line.removesuffix("; ") if line is lines[-1] else line.rstrip() for line in lines]
