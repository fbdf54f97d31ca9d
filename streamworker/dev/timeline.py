"""A picture of the partitions' owners over time, from samples. Pure.

Each row is a partition, and each column a time span. A cell is the last character of the name of the
worker that held the lock for most of the span (``w2`` is ``2``); ``.`` means that no worker held it, and a
blank that the stream did not have it yet, or that the group was done with it.
"""

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.text import Text

from streamworker.core.snapshot import GroupSnapshot

STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
NOBODY, ABSENT = ".", " "


@dataclass(slots=True)
class Timeline:
    """Samples of a group at different times."""

    partitions: int
    """The rows of the picture."""
    _samples: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    _symbols: dict[str, str] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)
    """Names of all members so far, by id."""
    _moments: list[tuple[int, str, str]] = field(default_factory=list)
    """Changes of the group: when, the character above the picture, and a text."""

    def sample(self, at_ms: int, snapshot: GroupSnapshot) -> None:
        """Record the owners of the partitions, ``at_ms`` after the start of the picture."""
        names = {member.id: member.name for member in snapshot.members}
        cells = [ABSENT] * self.partitions
        for view in snapshot.partitions:
            if view.owner is None:
                cells[view.partition] = NOBODY
                continue
            # A removed member still holds its locks until other members acquire them.
            name = names.get(view.owner) or self._known.get(view.owner, view.owner)
            cells[view.partition] = self._symbol(name)
        self._known.update(names)
        self._samples.append((at_ms, tuple(cells)))

    def mark(self, at_ms: int, mark: str, text: str) -> None:
        """Record a change of the group, as a character and a text."""
        self._moments.append((at_ms, mark, text))

    def render(self, width: int) -> list[Text]:
        """Return the lines of the picture, each with at most ``width`` columns."""
        if not self._samples:
            return []
        span_ms = max(self._samples[-1][0], 1)
        columns = max(10, width - 5)
        rows = _columns(self._samples, span_ms, columns, self.partitions)
        lines = [Text("     " + _marks(self._moments, span_ms, columns), style="bold")]
        for partition, row in enumerate(rows):
            line = Text().append(f"{partition:>4} ", style="dim")
            for cell, run in groupby(row):
                line.append("".join(run), style=self._style(cell))
            lines.append(line)
        lines.append(_axis(span_ms, columns))
        legend = Text("     ")
        for name, symbol in self._symbols.items():
            legend.append(f"{symbol} ", style=self._style(symbol)).append(f"{name}   ")
        legend.append(f"{NOBODY} nobody")
        for mark, text in dict.fromkeys(moment[1:] for moment in self._moments):
            legend.append(f"   {mark} ", style="bold").append(text)
        lines.append(legend)
        return lines

    def _symbol(self, name: str) -> str:
        if name not in self._symbols:
            taken = {*self._symbols.values(), NOBODY}
            wanted = name[-1:] + string.ascii_uppercase + string.ascii_lowercase
            self._symbols[name] = next((one for one in wanted if one not in taken), "?")
        return self._symbols[name]

    def _style(self, symbol: str) -> str:
        order = list(self._symbols.values())
        return STYLES[order.index(symbol) % len(STYLES)] if symbol in order else "dim"


def _columns(
    samples: Sequence[tuple[int, tuple[str, ...]]], span_ms: int, columns: int, partitions: int
) -> list[str]:
    """Reduce samples to one cell for each column: the most frequent owner in its time span."""
    spans: list[list[tuple[str, ...]]] = [[] for _ in range(columns)]
    for at_ms, cells in samples:
        spans[min(columns - 1, at_ms * columns // span_ms)].append(cells)
    rows = [""] * partitions
    for span in spans:
        for partition, row in enumerate(rows):
            # A column without a sample repeats the previous one.
            cell = Counter(cells[partition] for cells in span).most_common(1)[0][0] if span else row[-1:]
            rows[partition] += cell or NOBODY
    return rows


def _marks(moments: Sequence[tuple[int, str, str]], span_ms: int, columns: int) -> str:
    line = [" "] * columns
    for at_ms, mark, _ in moments:
        line[max(0, min(columns - 1, at_ms * columns // span_ms))] = mark
    return "".join(line)


def _axis(span_ms: int, columns: int) -> Text:
    """Return the axis below the picture, with seconds about every fifteen columns."""
    line = [" "] * (columns + 6)
    for column in range(0, columns, 15):
        label = f"{column * span_ms / columns / 1000:.0f} s"
        line[column : column + len(label)] = label
    return Text("     " + "".join(line).rstrip(), style="dim")
