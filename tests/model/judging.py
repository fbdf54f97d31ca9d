"""What must hold when a schedule has come to rest."""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.model.groups import Crew
from tests.model.scripts import Record
from tests.model.streams import KEYS, Stream, router

if TYPE_CHECKING:
    from tests.model.world import World


class Broken(Exception):
    """A promise does not hold."""


def judge(world: "World") -> None:
    """Raise Broken if a promise does not hold.

    Where servers go back that nobody waits for, a record may be lost or come twice; then this only asks that
    what is there is handled, and that no log of rows has a row twice.
    """
    is_strict = world.traits.waits or not world.traits.fails_over
    for stream in world.streams:
        judge_places(stream)
        if is_strict:
            judge_sends(world, stream)
    for crew in world.crews:
        judge_rows(crew)
        if is_strict:
            judge_order(crew)
            if crew.has_timer:
                judge_ticks(crew)
            if crew.target is not None:
                judge_chain(crew, crew.target)
    if is_strict and (told := [each for stream in world.streams for each in stream.told]):
        raise Broken(f"told of a loss that was not: {told[0]}")


def entries_of(stream: Stream) -> list[tuple[int, int, Record]]:
    """Return all records that came to a stream, in the order of partitions and ids."""
    return [
        (p, at, record)
        for p, its in enumerate(stream.partitions)
        for at, record in (*its.data["gone"], *its.log)
    ]


def judge_places(stream: Stream) -> None:
    paths = router(stream.map).paths
    for p, _, record in entries_of(stream):
        if p not in paths[record[1]]:
            raise Broken("a record is in a partition of another key")


def judge_sends(world: "World", stream: Stream) -> None:
    entries = entries_of(stream)
    here = Counter(record for _, _, record in entries)
    if twice := [record for record, times in here.items() if times > 1]:
        raise Broken(f"a record is there twice: {kind_of(twice[0])}")
    for producer in world.producers:
        if producer.stream is stream:
            for unit in (*producer.units, *producer.named):
                if unit.is_confirmed and unit.record not in here:
                    raise Broken(f"a record was confirmed and is not there: {kind_of(unit.record)}")
    last: dict[tuple[str, bytes], int] = {}
    for _, _, (sender, key, number) in entries:
        if sender.startswith("P"):
            if last.get((sender, key), -1) >= number:
                raise Broken("the records of a key are out of order")
            last[sender, key] = number


def kind_of(record: Record) -> str:
    return "lane" if record[0].startswith("P") else record[0]


def rows_of(crew: Crew) -> list[tuple[int, int, Record, int]]:
    """Return what a group has committed, in the order of partitions and of commits in each."""
    return [
        (p, at, record, count)
        for p, its in enumerate(crew.stream.partitions)
        if (lock := its.lock(crew.name))
        for record, count, at in lock.rows
    ]


def judge_rows(crew: Crew) -> None:
    for p, its in enumerate(crew.stream.partitions):
        lock = its.lock(crew.name)
        rows = [record for record, _, _ in lock.rows] if lock else []
        if len(set(rows)) < len(rows):
            raise Broken("a row is twice in one log")
        if crew.name != "C" and not {record for _, record in its.log} <= set(rows):
            raise Broken(f"a record is there and was not handled: {crew.name}{p}")


def judge_order(crew: Crew) -> None:
    """Each record once in the group, in the order of its key, and with the state before it."""
    came: dict[bytes, list[Record]] = {key: [] for key in KEYS}
    owed = Counter[Record]()
    paths = router(crew.stream.map).paths
    for p, place, record in entries_of(crew.stream):
        came[record[1]].append(record)
        # A group that comes late owes what came after it was registered.
        began = [at for q in paths[record[1]] if q <= p and (at := since(crew, q)) is not None]
        if crew.name != "C" or len(began) > 1 or (began and (place > began[0] or since(crew, p) is None)):
            owed[record] += 1
    handled: dict[bytes, list[tuple[int, int, Record, int]]] = defaultdict(list)
    for p, at, record, count in rows_of(crew):
        if record[0] != "tick":
            handled[record[1]].append((p, at, record, count))
    for key, its in came.items():
        mine = handled[key]
        if any(later[1] < before[1] for before, later in pairwise(mine)):
            raise Broken("a key was handled in a new partition before an old one")
        records = [record for _, _, record, _ in mine]
        if len(set(records)) < len(records):
            raise Broken(f"a record was handled twice in a group: {crew.name}")
        if any(owed[record] for record in its if record not in records):
            raise Broken(f"a record is missing in a group: {crew.name}")
        if records != [record for record in its if record in records]:
            raise Broken("a key was handled out of order")
        if [count for _, _, _, count in mine] != list(range(1, len(mine) + 1)):
            raise Broken("the state did not go along")


def since(crew: Crew, partition: int) -> int | None:
    """Return the last entry before a group was registered, if the partition took records then."""
    return None if (lock := crew.lock(partition)) is None else lock.since


def judge_ticks(crew: Crew) -> None:
    times: dict[bytes, list[int]] = defaultdict(list)
    for _, _, (sender, key, time), _ in rows_of(crew):
        if sender == "tick":
            times[key].append(time)
    for its in times.values():
        if its != list(range(1, len(its) + 1)):
            raise Broken("a planned time was not called once")


def judge_chain(crew: Crew, target: Stream) -> None:
    """What a group has sent on is there once, in the order in which it was handled."""
    sent: dict[bytes, list[Record]] = defaultdict(list)
    for _, _, (sender, key, number), _ in rows_of(crew):
        if sender != "tick":
            sent[key].append(("chain", key, (sender, number)))
    came: dict[bytes, list[Record]] = defaultdict(list)
    for _, _, record in entries_of(target):
        came[record[1]].append(record)
    if sent != came:
        raise Broken("a chain has lost, repeated or turned round a record")
