"""A transcript of several workers in the order of time, in the words of ``core.transcript``.

``streamworker simulate --trace`` prints one, tests/protocol compares them, docs/protocol.md shows some.
"""

from collections.abc import Sequence

from streamworker.core import events as ev
from streamworker.core.transcript import is_news, step_in_words


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
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  {name}  {told}")
        self.lines += [f"{'':>15}{words}" for words in wanted]

    def happened(self, now_ms: int, text: str) -> None:
        """Write down what happened to a worker or to the server."""
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  ({text})")

    def __str__(self) -> str:
        return "\n".join(self.lines)
