"""A reader's positions in the acked logs, and arithmetic on them. Pure.

An acked log numbers its rows from 1; an entry's id is the number of its last row. So a
position is a count of rows, and lag, limits, splits and gaps are subtractions. An
**offset** is a position in every partition's log. Spark keeps it in its checkpoint directory as

    {"v": 1, "log": {"0": "<log id>"}, "p": {"0": 12000}, "last": {"0": "<source id>"}, "epoch": {"0": 17},
     "of": "shop.orders:price"}

``of`` names the app, the stream and the processor whose logs these are. ``log`` is the identity of the
log: a log that was deleted, recreated or replaced has another one. ``last`` and ``epoch`` describe the
entry that ended the log when the position was its end. They are empty if a limit ended the batch
elsewhere. If a log has another entry at this position, it was rolled back and has grown again. If the
entry is not known, ``last`` is the group's checkpoint and ``epoch`` is 0.

Spark compares offsets as text to find out whether there are new rows. So the position of a partition
without new rows does not change, even when the group's checkpoint moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

from streamworker.core.data.placement import Placement
from streamworker.errors import ConfigurationError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A position in one partition's acked log: after its first ``rows`` rows."""

    rows: int = 0
    log: str = ""
    """Identity of the log; empty while the partition has none."""
    last: str = ""
    """No row up to here comes from a later source entry than this id; empty if not known."""
    epoch: int = 0
    """Epoch of the log entry that ends here; 0 if not known."""


Offset = Mapping[int, Position]
"""A position for each partition."""

START = Position()

ROWS_PER_TASK = 10_000
"""A task costs Spark 20 to 40 ms; these many rows cost 5 to 10 ms."""
ROWS_OF_WAITING_TASK = 1_000_000
"""Half a second of reading: beside that, the cost of a task that has to wait for a core is small."""


class Loss(Enum):
    """Why a log does not hold the rows that a reader has read."""

    GONE = "it is not there any more"
    REPLACED = "it was deleted and made again"
    ROLLED_BACK = "it is shorter than what was already read"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start + 1`` to ``end`` of one partition's log: the unit that a task reads."""

    partition: int
    log: str
    start: int
    end: int
    last: str = ""
    """As in :class:`Position`, for ``start``."""
    epoch: int = 0

    @property
    def rows(self) -> int:
        """Return the number of its rows."""
        return self.end - self.start


def to_json(offset: Offset, of: str = "") -> dict[str, Any]:
    """Return the JSON document that Spark keeps; equal offsets give equal text."""
    ordered = sorted(offset.items())
    document: dict[str, Any] = {
        "v": VERSION,
        "log": {str(p): position.log for p, position in ordered},
        "p": {str(p): position.rows for p, position in ordered},
        "last": {str(p): position.last for p, position in ordered},
        "epoch": {str(p): position.epoch for p, position in ordered},
    }
    return document | {"of": of} if of else document


def from_json(document: object, of: str = "") -> dict[int, Position]:
    """Parse a document of :func:`to_json`; refuse an offset of another source, version or processor."""
    remedy = "Give the query a new checkpoint directory, or the one that it was started with."
    if not isinstance(document, Mapping) or "v" not in document:
        raise ConfigurationError("The checkpoint holds an offset of another source.", remedy=remedy)
    if document["v"] != VERSION:
        raise ConfigurationError(
            f"The checkpoint holds offsets of version {document['v']!r}, and this is version {VERSION}.",
            remedy="Use the streamworker that wrote it, or a newer one.",
        )
    if of and (theirs := str(document.get("of", of))) != of:  # Earlier versions wrote no name.
        raise ConfigurationError(
            f"The checkpoint is of {_titled(theirs)}, and the query reads {_titled(of)}.",
            remedy="Each processor has logs of its own. Let the query read the one that it was started with, "
            "and several in the same order; or give it a new checkpoint directory and a new table.",
        )
    try:
        logs, lasts, epochs = (document.get(name, {}) for name in ("log", "last", "epoch"))
        return {
            int(p): Position(
                row_count(rows), str(logs.get(p, "")), str(lasts.get(p, "")), row_count(epochs.get(p, 0))
            )
            for p, rows in document["p"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigurationError("The checkpoint holds a damaged offset.", remedy=remedy) from None


def _titled(of: str) -> str:
    stream, _, processor = of.rpartition(":")
    return f"processor {processor!r} on {stream}"


def row_count(value: object, least: int = 0) -> int:
    """Return a number of a JSON document; raise ValueError if it is none or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(value)
    return value


def find_losses(offset: Offset, tails: Offset) -> dict[int, Loss]:
    """Compare a reader's position with the logs, and return the losses by partition.

    A partition of which the reader has read no row has no loss.
    """
    losses: dict[int, Loss] = {}
    for p, position in sorted(offset.items()):
        if position.rows == 0:
            continue
        tail = tails.get(p, START)
        if not tail.log:
            losses[p] = Loss.GONE
        elif position.log and tail.log != position.log:
            losses[p] = Loss.REPLACED
        elif tail.rows < position.rows:
            losses[p] = Loss.ROLLED_BACK
    return losses


def find_stepped_back(position: Offset, registered: Offset, tails: Offset) -> dict[int, Position]:
    """Return the registered positions that lie after the reader's position, by partition.

    Registered positions in a log that was replaced are ignored.
    """
    return {
        p: before
        for p, before in sorted(registered.items())
        if before.log
        and before.log == tails.get(p, START).log
        and position.get(p, START).log in ("", before.log)
        and position.get(p, START).rows < before.rows
    }


def advance(start: Offset, tails: Offset, limit: int | None = None) -> dict[int, Position]:
    """Return the end of a batch that begins at ``start`` and has at most ``limit`` rows.

    A partition that is not in ``start`` begins at 0. A position goes back only in a log for which
    :func:`find_losses` reports a loss (the caller decided to continue): a replaced log is read from
    its beginning, a shorter one from its end.
    """
    from_here = {p: _resume(start.get(p, START), tails.get(p, START)) for p in {*start, *tails}}
    backlog = {p: tails[p].rows - here.rows for p, here in from_here.items() if p in tails}
    taken = share(limit, backlog)
    end: dict[int, Position] = {}
    for p, here in sorted(from_here.items()):
        rows = taken.get(p, 0)
        if rows == 0:
            end[p] = here
        elif rows == backlog[p]:
            end[p] = tails[p]
        else:
            end[p] = Position(here.rows + rows, tails[p].log)
    return end


def _resume(position: Position, tail: Position) -> Position:
    if not tail.log or not position.log:
        return position
    if tail.log != position.log:
        return START
    return tail if tail.rows < position.rows else position


def at_most(tails: Offset, target: Offset | None) -> dict[int, Position]:
    """Return ``tails``, limited to ``target``; partitions that ``target`` lacks are left out."""
    if target is None:
        return dict(tails)
    return {
        p: target[p] if tail.log == target[p].log and tail.rows >= target[p].rows else tail
        for p, tail in tails.items()
        if p in target
    }


def parents_first(
    start: Offset, until: Offset, placement: Placement, finished: Mapping[int, int]
) -> dict[int, Position]:
    """Return ``until``, but ``start`` for partitions of a later generation that must wait.

    Rows of one batch have no order between partitions. So a key's rows come in order if a partition is read
    in batches that begin after the last row of all partitions before it that share keys with it.
    ``finished`` has the number of rows of each log that gets no more.
    """

    def is_read(p: int) -> bool:
        return p in finished and start.get(p, START).rows >= finished[p]

    may = {p for p in until if all(map(is_read, placement.ancestors_of(p)))}
    return {p: at if p in may else start.get(p, START) for p, at in until.items()}


def share(limit: int | None, waiting: Mapping[int, int]) -> dict[int, int]:
    """Divide ``limit`` among partitions in proportion to their backlog.

    The sum is exactly ``min(limit, sum(waiting))``. Each partition gets at least one row if the limit
    allows it, so that a large backlog does not starve a small one.

    >>> share(10, {0: 90, 1: 10})
    {0: 8, 1: 2}
    """
    waiting = {p: rows for p, rows in sorted(waiting.items()) if rows > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    if limit <= len(waiting):
        chosen = sorted(waiting, key=lambda p: (-waiting[p], p))[: max(limit, 0)]
        return dict.fromkeys(sorted(chosen), 1)
    spare, base = limit - len(waiting), total - len(waiting)
    taken = {p: 1 + spare * (rows - 1) // base for p, rows in waiting.items()}
    remainder = {p: spare * (rows - 1) % base for p, rows in waiting.items()}
    for p in sorted(waiting, key=lambda p: (-remainder[p], p))[: limit - sum(taken.values())]:
        taken[p] += 1
    return taken


def rows_within(bytes_max: int, waiting: Mapping[int, int], row_bytes: Mapping[int, float]) -> int:
    """Return how many rows have about so many bytes, shared out as :func:`share` does; at least one.

    >>> rows_within(1_000, {0: 90, 1: 10}, {0: 10.0, 1: 110.0})
    50
    """
    known = {p: rows for p, rows in waiting.items() if rows > 0 and p in row_bytes}
    size = sum(rows * row_bytes[p] for p, rows in known.items())
    return max(1, int(bytes_max * sum(known.values()) / size)) if size else sum(waiting.values()) or 1


def lag(position: Offset, tails: Offset) -> dict[int, int]:
    """Return the number of unread rows in each partition."""
    from_here = advance(position, tails, 0)
    return {p: max(0, tails[p].rows - from_here[p].rows) for p in sorted(tails)}


def slices(start: Offset, end: Offset) -> list[Slice]:
    """Return the rows between two offsets: one slice for each partition that has any."""
    found = []
    for p, until in sorted(end.items()):
        since = start.get(p, START)
        if since.log and since.log != until.log:
            since = START
        if until.rows > since.rows:
            found.append(Slice(p, until.log, since.rows, until.rows, since.last, since.epoch))
    return found


def split(parts: Sequence[Slice], at_least: int | None) -> list[Slice]:
    """Cut slices by row range into ``at_least`` pieces, in proportion to their size."""
    if at_least is None or not parts or len(parts) >= at_least:
        return list(parts)
    pieces = share(at_least, {i: part.rows for i, part in enumerate(parts)})
    return [piece for i, part in enumerate(parts) for piece in _cut(part, pieces[i])]


def _cut(part: Slice, pieces: int) -> list[Slice]:
    edges = [part.start + part.rows * i // pieces for i in range(pieces + 1)]
    cut = [replace(part, start=since, end=until, last="") for since, until in pairwise(edges)]
    return [replace(cut[0], last=part.last), *cut[1:]]


def tasks_for(rows: int, parallelism: int) -> int:
    """Return how many tasks to make of so many rows, where ``parallelism`` tasks run at a time.

    >>> [tasks_for(rows, 8) for rows in (500, 50_000, 1_500_000, 100_000_000)]
    [1, 5, 8, 100]
    """
    return max(1, min(rows // ROWS_PER_TASK, max(parallelism, rows // ROWS_OF_WAITING_TASK)))


def plan(
    parts: Sequence[Slice], parallelism: int, *, at_least: int | None = None, at_most: int | None = None
) -> list[tuple[Slice, ...]]:
    """Split and pack slices into tasks, by their rows and within limits for their number."""
    most = max(tasks_for(sum(part.rows for part in parts), parallelism), at_least or 1)
    return pack(split(parts, at_least), min(most, at_most or most))


def pack(parts: Sequence[Slice], at_most: int) -> list[tuple[Slice, ...]]:
    """Combine slices into ``at_most`` tasks of about equal size.

    Each time the largest remaining slice goes to the smallest task. The largest task is at most 4/3 of
    that of the best packing (R. L. Graham, 1969).
    """
    if len(parts) <= at_most:
        return [(part,) for part in parts]
    bins: list[list[Slice]] = [[] for _ in range(at_most)]
    filled = [0] * at_most
    for part in sorted(parts, key=lambda part: (-part.rows, part.partition, part.start)):
        least = filled.index(min(filled))
        bins[least].append(part)
        filled[least] += part.rows
    return [tuple(sorted(b, key=lambda part: (part.partition, part.start))) for b in bins if b]
