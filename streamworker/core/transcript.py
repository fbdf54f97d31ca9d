"""Writes the steps of a core in words: the syntax of every transcript.

The simulator's ``--trace``, the tests in ``tests/protocol``, the pages in docs/ and a worker's log at level
``debug`` all use ``step_in_words``. So an incident reads the same in each of them: one line for the event,
and one for each effect, behind an arrow. Effects on several partitions that do not differ otherwise share a
line. Events, effects and messages write themselves (``str``), so a new protocol needs no change here.
"""

from collections.abc import Sequence

from streamworker.core import events as ev
from streamworker.core.words import ranges


def step_in_words(event: ev.Event, effects: Sequence[ev.Effect]) -> list[str]:
    """Write one step of a core: the event, then each effect behind an arrow.

    >>> step_in_words(ev.Started(), [ev.PauseBatches()])
    ['Started', '-> PauseBatches']
    """
    lines: dict[tuple[str, str], list[int]] = {}
    for effect in effects:
        if isinstance(effect, ev.Note):
            continue
        if (partition := getattr(effect, "partition", None)) is None:
            lines[str(effect), ""] = []
        else:
            name = type(effect).__name__
            lines.setdefault((name, str(effect).removeprefix(f"{name} {partition}")), []).append(partition)
    return [str(event), *(f"-> {head} {ranges(which)}{rest}" if which else f"-> {head}"
                          for (head, rest), which in lines.items())]  # fmt: skip


def is_news(event: ev.Event, effects: Sequence[ev.Effect]) -> bool:
    """Whether a step belongs in a transcript."""
    if isinstance(event, ev.ControlReceived) and any(message.is_news for message in event.messages):
        return True
    return bool(effects) or not event.is_routine
