"""One worker core, driven by hand: events in, effects out, and a clock that the test moves."""

from collections.abc import Iterable
from itertools import count
from typing import Any, Generic, TypeVar

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged
from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.settings import ByDocument
from streamworker.core.protocols.membership.worker import WorkerCore
from streamworker.core.protocols.registry import Coordinator
from streamworker.core.protocols.settings import Coordination
from streamworker.core.protocols.setup import Identity, Setup, Timing

E = TypeVar("E")
C = TypeVar("C", bound=Coordinator)

TIMING = Timing(founding_pause_ms=0)
ME = "w1.1"
"""The core's first member id: its name, and the first of its nonces."""


def setup_of(coordination: Coordination, partitions: int, nonce: str = "a") -> Setup:
    """Return what a core of the worker w1 is made of, without jitter."""
    return Setup(
        coordination=coordination,
        identity=Identity("w1", "host", 1),
        partitions=partitions,
        assignment="range",
        timing=Timing(),
        nonce=lambda: nonce,
        jitter=lambda _: 0,
    )


def group(*ids: str, partitions: int = 8, generation: int = 10, leaving: Iterable[str] = ()) -> Membership:
    """Return the group of these members, in this order."""
    gone = frozenset(leaving)
    members = tuple(
        Member(each, each.partition(".")[0], "host", 1, rank, "leaving" if each in gone else "active")
        for rank, each in enumerate(ids)
    )
    owners = STRATEGIES["range"]([each for each in ids if each not in gone], partitions, ())
    return Membership(generation, partitions, "range", members, owners)


def stored(membership: Membership) -> bytes:
    """Return a document as the script stores it."""
    return b'{"generation":%d,%s' % (membership.generation, membership.body()[1:].encode())


def lock(epoch: int, *, requested: int = 0, is_paused: bool = False) -> Acquired:
    """Return the answer for a lock that was acquired."""
    return Acquired(epoch, EntryId(0, 0), 0, 0, "log", requested=requested, is_paused=is_paused)


def beat(server_ms: int, connection: int, run_id: str = "run") -> calls.Beat:
    """Return what a member wrote at its last heartbeat."""
    return calls.Beat(server_ms, connection, run_id, 0)


def of_type(effects: Iterable[ev.Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def change(effects: Iterable[ev.Effect]) -> calls.ChangeDocument:
    """Return the one change of the document that is asked for."""
    (found,) = of_type(effects, calls.ChangeDocument)
    return found


def names(effects: Iterable[ev.Effect]) -> list[str]:
    """Return what kinds of effects there are, in order, without notes and marks for people."""
    kinds = (type(effect).__name__ for effect in effects)
    return [kind for kind in kinds if kind not in ("Note", "MarkLock")]


class Node(Generic[C]):
    """A core of any protocol and its clock."""

    def __init__(self, core: C) -> None:
        self.core = core
        self.now_ms = 0

    def send(self, event: ev.Event, *, after_ms: int = 0) -> list[ev.Effect]:
        """Bring an event after a while; return what is to be done now."""
        self.now_ms += after_ms
        return self.core.handle(event, self.now_ms)

    def wait(self, ms: int) -> list[ev.Effect]:
        """Let time pass as the runtime does, deadline by deadline; return what was to be done."""
        effects: list[ev.Effect] = []
        end_ms = self.now_ms + ms
        while (deadline_ms := self.core.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            assert deadline_ms > self.now_ms, "the core would spin"
            effects += self.send(ev.DeadlinePassed(), after_ms=deadline_ms - self.now_ms)
        self.now_ms = end_ms
        return effects


class Bench(Node[WorkerCore]):
    """A core of the membership; jitter is what the test says, none by default."""

    def __init__(self, *, partitions: int = 8, strategy: str = "range", static_id: str = "") -> None:
        nonces = count(1)
        self.jitter = 0
        self.jitter_asked: list[int] = []
        super().__init__(
            WorkerCore(
                Setup(
                    coordination=ByDocument(),
                    identity=Identity("w1", "host", 1, static_id),
                    partitions=partitions,
                    assignment=strategy,
                    timing=TIMING,
                    nonce=lambda: str(next(nonces)),
                    jitter=self._jitter,
                )
            )
        )

    def _jitter(self, most: int) -> int:
        self.jitter_asked.append(most)
        return min(self.jitter, most)

    @classmethod
    def running(cls, *ids: str, partitions: int = 8, generation: int = 10) -> "Bench":
        """Return a core that is a member of the group of these and runs all that it is assigned."""
        return cls.member_of(group(*ids, partitions=partitions, generation=generation))

    @classmethod
    def member_of(cls, membership: Membership, **how: Any) -> "Bench":
        """Return a core that is a member of this group and runs all that it is assigned."""
        bench = cls.started(partitions=membership.partitions, **how)
        bench.grant(bench.read(membership))
        return bench

    @classmethod
    def started(cls, **how: Any) -> "Bench":
        """Return a core that waits for the document."""
        bench = cls(**how)
        assert bench.send(ev.Started()) == [calls.ReadDocument()]
        return bench

    @classmethod
    def joining(cls, known: Membership | None) -> "Bench":
        """Return a core that has read this document, and joins."""
        bench = cls.started()
        bench.read(known)
        return bench

    def read(self, membership: Membership | None) -> list[ev.Effect]:
        """Answer ``ReadDocument``."""
        return self.send(calls.DocumentRead(None if membership is None else stored(membership), 5_000))

    def refuse(self, membership: Membership) -> list[ev.Effect]:
        """Answer ``ChangeDocument``: this is what somebody else wrote."""
        return self.send(calls.ChangeRefused(stored(membership), 5_000))

    def changed(self, generation: int, cause: str = "join") -> list[ev.Effect]:
        """Bring the message of a change."""
        return self.send(ev.ControlReceived((GroupChanged(generation, cause, "somebody", ()),)))

    def grant(self, effects: Iterable[ev.Effect]) -> list[ev.Effect]:
        """Answer ``AcquireLocks``: all granted, partition p with epoch 100 + p."""
        answers: list[ev.Effect] = []
        for ask in of_type(effects, ev.AcquireLocks):
            replies = {p: lock(100 + p) for p in ask.partitions}
            answers += self.send(ev.LocksAnswered(ask.owner, ask.partitions, replies))
        return answers

    def release(self, effects: Iterable[ev.Effect]) -> list[ev.Effect]:
        """Answer ``ReleaseLocks``: all released."""
        answers: list[ev.Effect] = []
        for give in of_type(effects, ev.ReleaseLocks):
            asked = tuple(give.epochs)
            answers += self.send(ev.LocksReleased(give.owner, asked, frozenset(asked)))
        return answers

    def stop_runners(self, effects: Iterable[ev.Effect]) -> list[ev.Effect]:
        """Let each runner that was asked to drain do so, and its lock be released."""
        answers: list[ev.Effect] = []
        for drain in of_type(effects, ev.DrainRunner):
            answers += self.release(self.send(ev.RunnerStopped(drain.partition, drain.epoch)))
        return answers

    def heartbeat(self, *, after_ms: int = 0, **facts: object) -> list[ev.Effect]:
        """Bring the answer of a heartbeat; facts replace what is usual.

        ``beats``, ``lost``, ``generation``, ``sent_ms``, ``member``, ``run_id``.
        """
        self.wait_quietly(after_ms)
        usual: dict[str, object] = {
            "member": self.core.member,
            "lost": False,
            "generation": self.core.membership.generation,
            "sent_ms": self.now_ms,
            "run_id": "run",
            "beats": {},
        }
        return self.send(calls.HeartbeatDone(**{**usual, **facts}))  # type: ignore[arg-type]

    def wait_quietly(self, ms: int) -> None:
        """Let time pass without waking the core."""
        self.now_ms += ms
