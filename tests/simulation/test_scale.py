"""A large group: a join, a leave and a death converge, and what each costs.

The group begins at rest, since a thousand workers that join one after the other are another story.
``docs/scale.md`` shows the figures of the full size; ``-m soak -s`` prints them anew.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.data.entries import EntryId
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.setup import Setup
from streamworker.errors import BackendError
from streamworker.redisio.keys import PARTITIONS_MAX
from tests.simulator.group import START_MS
from tests.simulator.server.server import KEYS, SimulatedServer
from tests.simulator.worker import SimWorker
from tests.simulator.world import World

ASSIGN_MS = 50
"""A change is computed by the one worker that makes it, between two of its heartbeats."""
SETTLE_MS = 20_000
REST_MS = 5_000
NONCE = "0123456789ab"

Change = Callable[[World], object]
CHANGES: dict[str, Change] = {
    "join": lambda world: world.start(),
    "leave": lambda world: world.stop(world.workers[len(world.workers) // 2]),
    "death": lambda world: world.kill(world.workers[len(world.workers) // 3]),
}


class CountingServer(SimulatedServer):
    """Counts commands by kind, as a server would: each lock that is asked for is a script of its own."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.count: Counter[str] = Counter()

    def perform(self, effect: ev.Effect, lost: Callable[[], bool] = lambda: False) -> ev.Event:
        kind = type(effect).__name__
        match effect:
            case ev.AcquireLocks(partitions=several) | ev.ReleaseLocks(epochs=several):
                self.count[kind] += len(several)
            case _:
                self.count[kind] += 1
        return super().perform(effect, lost)

    def heartbeat(self, *args: object, **kwargs: object) -> calls.HeartbeatDone | BackendError:
        self.count["heartbeat"] += 1
        return super().heartbeat(*args, **kwargs)  # type: ignore[arg-type]

    def post(self, message: ControlMessage) -> None:
        self.count["post"] += 1
        super().post(message)

    def control_after(self, position: EntryId) -> tuple[EntryId, tuple[ControlMessage, ...]]:
        self.count["listen"] += 1
        return super().control_after(position)


class LargeWorld(World):
    """A group that has been at rest for long, with nothing to handle."""

    def __init__(self, workers: int, partitions: int, assignment: str) -> None:
        super().__init__(
            1, partitions=partitions, assignment=assignment, entry_every_ms=None, server=CountingServer
        )
        assert isinstance(self.server, CountingServer)
        self.counted = self.server.count
        group = large_group(workers, partitions, assignment)
        document = b'{"generation":%d,%s' % (START_MS, group.body()[1:].encode())
        self.server.store.put(KEYS.members.encode(), document)
        for member in group.members:
            self.server.store.call("HSET", KEYS.beats.encode(), member.id.encode(), b"%d|0||0" % START_MS)
        for _ in range(workers):
            self.start()

    def setup(self, worker: SimWorker) -> Setup:
        return replace(super().setup(worker), nonce=lambda: NONCE)

    @property
    def is_at_rest(self) -> bool:
        """Whether everybody has what the document says, and that names who is there."""
        return self.is_settled and self.is_agreed


def large_group(workers: int, partitions: int, assignment: str) -> Membership:
    members = tuple(
        Member(f"w{n}.{NONCE}", f"w{n}", f"ip-10-0-{n // 256}-{n % 256}", 10_000 + n, START_MS)
        for n in range(1, workers + 1)
    )
    owners = STRATEGIES["range"]([member.id for member in members], partitions, ())
    return replace(Membership.empty(partitions, assignment), members=members, owners=owners)


def at_rest_after(world: LargeWorld, change: str) -> int:
    """Change a group at rest, and wait until it is so again; return how long that took."""
    world.counted.clear()
    CHANGES[change](world)
    took_ms = world.clock.run_until(lambda: world.is_at_rest, SETTLE_MS, step_ms=20)
    assert took_ms is not None, f"{change}: not at rest after {SETTLE_MS} ms"
    world.clock.run_for(100)  # the last messages are heard
    return took_ms


def settled(workers: int, partitions: int, assignment: str) -> LargeWorld:
    world = LargeWorld(workers, partitions, assignment)
    assert world.clock.run_until(lambda: world.is_at_rest, SETTLE_MS, step_ms=500) is not None
    world.clock.run_for(3_000)
    return world


LARGEST = [pytest.mark.soak, pytest.mark.timeout(1_200)]


@pytest.mark.parametrize(
    ("workers", "assignment"),
    [
        (100, "sticky"),
        pytest.param(1_000, "sticky", marks=LARGEST),
        pytest.param(1_000, "range", marks=LARGEST),
    ],
)
def test_a_large_group_takes_a_join_a_leave_and_a_death(workers: int, assignment: str) -> None:
    """With ten partitions a worker, if a stream may have so many: each converges, and costs nothing then.

    A thousand workers take a minute of one core for each assignment.
    """
    world = settled(workers, min(10 * workers, PARTITIONS_MAX), assignment)
    for change in CHANGES:
        before = world.checker.figures.moves
        took_ms = at_rest_after(world, change)
        print(
            f"  {change}: {took_ms} ms, {world.checker.figures.moves - before} moved, {dict(world.counted)}"
        )
        # Everybody reads the document once, some again: the changer, and who was told twice.
        assert world.counted["ReadDocument"] <= 3 * workers
        assert world.counted["heartbeat"] <= (took_ms / 1_000 + 2) * workers
    world.clock.run_for(1_000)
    world.counted.clear()
    world.clock.run_for(REST_MS)
    assert set(world.counted) == {"heartbeat"}
    assert world.counted["heartbeat"] / len(world.staying) == pytest.approx(REST_MS / 1_000, abs=0.1)
    assert not world.checker.violations


def some_group(assignment: str) -> Membership:
    """Return the full size, as it may be after many changes: nothing lies in a row."""
    group = large_group(1_000, 10_000, assignment)
    owners = list(group.owners)
    Random(1).shuffle(owners)
    return replace(group, owners=tuple(owners))


@pytest.mark.parametrize("assignment", STRATEGIES)
def test_a_thousand_workers_are_assigned_ten_thousand_partitions_in_time(assignment: str) -> None:
    """One change with all that belongs to it, but for writing it down: at most 50 ms."""
    group = some_group(assignment)
    newcomer = Member("new.1", "new", "host", 1, 0)
    for change in (
        lambda: group.with_member(newcomer),
        lambda: group.with_leaving(group.members[500].id),
        lambda: group.with_gone([group.members[333].id], 0),
        lambda: group.with_gone([member.id for member in group.members[300:400]], 0),
    ):
        times = list(timed_ms(change, 5))
        print(f"  {assignment}: {statistics.median(times):.1f} ms")
        assert statistics.median(times) <= ASSIGN_MS


def timed_ms(act: Callable[[], object], count: int) -> Iterator[float]:
    """Return what something takes of a core, some times over: others may be at work beside us."""
    for _ in range(count):
        start = time.thread_time()
        act()
        yield (time.thread_time() - start) * 1_000


def test_the_document_of_a_thousand_workers_stays_below_what_a_change_may_carry() -> None:
    """An owner is an index into the members: four letters a partition with its comma, and not its name."""
    group = some_group("sticky")
    size = len(group.body())
    owners = len(json.dumps(json.loads(group.body())["owners"], separators=(",", ":")))
    print(f"  {size} bytes, {owners} of them for owners")
    assert owners <= 10_000 * 4
    assert size <= 1_000 * 150 + owners
    small = len(large_group(100, 1_000, "sticky").body())
    assert size <= 11 * small, "it grows with the group and no faster"
