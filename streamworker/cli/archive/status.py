"""``streamworker archive status``: how far each archive is, what it holds, and what waits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from streamworker.cli.archive.places import Known, Place, in_threads, known, places_of
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AsJson, argument
from streamworker.cli.output import print_json, print_table, say
from streamworker.cli.support import ask
from streamworker.core.data.archivelife import DAY_MS, is_late, objects_a_day
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.words import alike, name_of, ranges
from streamworker.errors import ArchiveError
from streamworker.records.entries import Entries
from streamworker.redisio.keys import whole
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.tui.figures import duration, local_time, memory

ArchivesPath = Annotated[
    str,
    argument("APP|STREAM|PROCESSOR", "MODULE:NAME of the App, a stream, or a processor for its acked log."),
]


@dataclass(frozen=True)
class StoredPart:
    """What the store holds of one partition."""

    end: EntryId
    records: int
    """Records between the begin and the end of its chain, those that were erased among them."""
    segments: int
    bytes: int
    today: int
    """Segments that ended in the last 24 hours; of an acked log unknown, and 0."""


@dataclass(frozen=True)
class Partition:
    """How far the archive of one partition is."""

    partition: int
    known: Known
    stored: StoredPart | None
    """None if the store did not answer."""
    oldest_ms: int | None
    """The time of the oldest record that is not archived; None if there is none."""

    def why(self, place: Place, now_ms: int) -> str:
        """Say why nothing is archived, or what is wrong; empty if nothing is."""
        lock, archive = self.known.lock, place.archive
        if self.known.reason:
            return self.known.reason
        if self.stored is not None and self.known.end > self.stored.end:
            ends = f"the archive ends with {self.stored.end}"
            return f"Redis takes all up to {self.known.end} for archived, and {ends}"
        if self.oldest_ms is None or not is_late(now_ms - self.oldest_ms, archive.every_ms, archive.after_ms):
            return ""
        if lock is None:
            return "no worker has run that archives it"
        if not lock.owner:
            return "no worker owns the partition"
        if not place.log and lock.state == "paused":
            return "an operator has paused it"
        return f"{name_of(lock.owner)} has archived nothing for {duration(now_ms - self.oldest_ms)}"


@dataclass(frozen=True)
class Status:
    """The state of one archive."""

    place: Place
    now_ms: int
    partitions: list[Partition]
    problem: str = ""
    """Why the store could not be read; empty if it was."""

    @property
    def waits_ms(self) -> int | None:
        """How old the oldest record is that is not archived."""
        oldest = [each.oldest_ms for each in self.partitions if each.oldest_ms is not None]
        return max(0, self.now_ms - min(oldest)) if oldest else None

    @property
    def stored(self) -> list[StoredPart]:
        """What the store holds, as far as it answered."""
        return [each.stored for each in self.partitions if each.stored is not None]

    def wrong(self) -> dict[int, str]:
        """Return what is wrong, by partition."""
        said = {each.partition: each.why(self.place, self.now_ms) for each in self.partitions}
        return {partition: why for partition, why in said.items() if why}


def status(path: ArchivesPath, json: AsJson = False) -> None:
    """Show how far each archive is, what it holds, and since when something waits.

    Of each archive it prints a line, and below it the partitions in which nothing is archived,
    with the reason. "a day" are the segments that ended in the last 24 hours, and how many there
    are at most at today's `every` if none reaches its `size` before.

    The exit code is 1 if a store did not answer.

    \b
    Examples:
      streamworker archive status shop:app
      streamworker archive status shop:orders --json
    """
    app, places = places_of(path)
    found: list[Status] = ask(app, _status, places)
    if json:
        print_json([_as_json(each) for each in found])
    else:
        print_table(_COLUMNS, [_row(each) for each in found])
        for each in found:
            say(*(f"{each.place.name}: {line}" for line in _problems(each)))
    if any(each.problem for each in found):
        raise typer.Exit(ExitCode.FAILED)


_COLUMNS = ("archive", "up to", "records", "segments", "bytes", "waits", "a day", "where")


def _row(found: Status) -> Sequence[object]:
    place, most = (
        found.place,
        objects_a_day(len(found.place.stream.placement.active), found.place.archive.every_ms),
    )
    ends = [each.known.end.ms for each in found.partitions]
    behind = [each.known.end.ms or each.oldest_ms for each in found.partitions if each.oldest_ms is not None]
    up_to = f"row {sum(ends):,}" if place.log else ""
    if not place.log and any(ends):
        up_to = local_time(min(behind, default=max(ends)))
    if found.problem:
        return (place.name, up_to, None, None, None, duration(found.waits_ms), None, place.archive.url)
    held, today = found.stored, sum(each.today for each in found.stored)
    return (
        place.name,
        up_to or "nothing",
        sum(each.records for each in held),
        sum(each.segments for each in held),
        memory(sum(each.bytes for each in held)),
        duration(found.waits_ms),
        f"at most {most:,}" if place.log else f"{today:,}, at most {most:,}",
        place.archive.url,
    )


def _problems(found: Status) -> list[str]:
    lines = [found.problem] if found.problem else []
    for why, partitions in alike(found.wrong()).items():
        since = min(
            (each.oldest_ms for each in found.partitions if each.partition in partitions and each.oldest_ms),
            default=None,
        )
        waits = "" if since is None else f" Nothing is archived of what came since {local_time(since)}."
        lines.append(f"partition {ranges(partitions)}: {why.rstrip('.')}.{waits}")
    return lines


def _as_json(found: Status) -> dict[str, Any]:
    place, wrong = found.place, found.wrong()
    return {
        "archive": place.name,
        "stream": place.stream.name,
        "processor": place.log or None,
        "url": place.archive.url,
        "declared": str(place.archive),
        "waits_ms": found.waits_ms,
        "objects_a_day_max": objects_a_day(len(place.stream.placement.active), place.archive.every_ms),
        "problem": found.problem,
        "partitions": [
            {
                "partition": each.partition,
                "archived_to": str(each.known.end),
                "oldest_ms": each.oldest_ms,
                "owner": each.known.lock.owner if each.known.lock else "",
                "problem": wrong.get(each.partition, ""),
                **({} if each.stored is None else {**asdict(each.stored), "end": str(each.stored.end)}),
            }
            for each in found.partitions
        ],
    }


async def _status(backend: Backend, places: Sequence[Place]) -> list[Status]:
    return [await _of(backend, place) for place in places]


async def _of(backend: Backend, place: Place) -> Status:
    partitions = place.stream.placement.all
    here, now_ms = await known(backend, place, partitions), await backend.time_ms()
    oldest = await _oldest(backend, place, here)
    problem, stored = "", dict[int, StoredPart]()
    try:
        found = await in_threads(lambda p: _stored(place, p, now_ms), partitions)
        stored = dict(zip(partitions, found, strict=True))
    except ArchiveError as error:
        problem = error.message
    its = [Partition(p, here[p], stored.get(p), oldest[p]) for p in partitions]
    return Status(place, now_ms, its, problem)


async def _oldest(backend: Backend, place: Place, here: dict[int, Known]) -> dict[int, int | None]:
    """Return the time of the oldest record or row of each partition that is not archived."""
    key = place.keys.acked if place.log else place.keys.events
    asked = [("XRANGE", key(p), f"({each.end}", "+", "COUNT", 1) for p, each in here.items()]
    replies = all_answered(await backend.pipeline(asked))
    return {p: _time(place, Entries.of(reply)) for p, reply in zip(here, replies, strict=True)}


def _time(place: Place, entries: Sequence[Entry]) -> int | None:
    if not entries:
        return None
    return whole(entries[0].fields.get(b"at", b"")) if place.log else entries[0].id.ms


def _stored(place: Place, partition: int, now_ms: int) -> StoredPart:
    chain = place.chain(partition)
    segments = chain.segments()
    last = chain.last(segments[-1].after) if segments else None
    first = chain.footer(segments[0].after) if segments else None
    if last is None or first is None:
        return StoredPart(ZERO, 0, 0, 0, 0)
    ends = [last.last] if place.log else [*(each.after for each in segments[1:]), last.last]
    today = sum(each.ms > now_ms - DAY_MS for each in ends)
    records = last.total - first.total + first.records + first.erased
    return StoredPart(last.last, records, len(segments), sum(each.size for each in segments), today)
