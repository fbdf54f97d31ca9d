"""A worker of the simulator does what one in production does."""

from collections.abc import Callable, Sequence

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.registry import Coordinator
from tests.simulator.world import World

ME = "w1.x"
GROUP = Membership.empty(2, "range").with_member(Member(ME, "w1", "host", 1, 1))


class Says(Coordinator):
    """A core that asks for some things when it has started, and for nothing more."""

    def __init__(self, effects: Sequence[ev.Effect]) -> None:
        self._effects = effects
        self.heard: list[ev.Event] = []

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        self.heard.append(event)
        return list(self._effects) if isinstance(event, ev.Started) else []

    @property
    def held(self) -> list[int]:
        return []

    def next_deadline_ms(self) -> int | None:
        return None


def world_of(*effects: ev.Effect) -> tuple[World, Says]:
    """Return a world in which a worker asks for some things at once, and its core, after ten seconds."""
    core = Says(effects)
    wrap: Callable[[Coordinator], Coordinator] = lambda _: core  # noqa: E731
    world = World(1, partitions=2, entry_every_ms=None, wrap=wrap)
    world.start()
    world.clock.run_for(10_000)
    return world, core


def test_a_core_that_mends_a_document_while_it_reads_it_is_found() -> None:
    """One call at most is under way about the document, whichever kind it is."""
    mend = calls.MendDocument("list", GROUP, GroupChanged(0, "repaired", "w1", ()), 1)
    for other in (calls.ReadDocument(), mend):
        world, _ = world_of(mend, other)
        assert ["two calls about one thing" in str(each) for each in world.checker.violations] == [True]
    world, _ = world_of(mend)
    assert world.checker.violations == []


def test_heartbeats_that_are_asked_for_twice_at_once_are_not_sent_twice_from_then_on() -> None:
    """The second takes the place of the first, as the thread of the heartbeats would have it."""
    once, twice = (
        sum(
            isinstance(event, calls.HeartbeatDone)
            for event in world_of(calls.StartHeartbeat(ME), *[calls.SendHeartbeat()] * times)[1].heard
        )
        for times in (1, 2)
    )
    assert twice == once >= 9
