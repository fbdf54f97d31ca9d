"""What the Lua scripts do, each in one step, on plain values.

The contract tests hold the scripts to the same rules on real servers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.entries import EntryId
from streamworker.core.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.membership import Membership

CONTENDER_GAP_MS = 3_000
"""Where nobody asked for this long the wait begins anew: the contender may have slept."""


class Code(Enum):
    """The answer to a commit."""

    OK = "ok"
    DUP = "dup"
    FENCED = "fenced"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that the server took: entries after ``previous`` up to ``new``."""

    owner: str
    epoch: int
    previous: int
    new: int


@dataclass(slots=True)
class Lock:
    """The lock hash of one partition, and its acked log."""

    owner: str = ""
    epoch: int = 1_000
    generation: int = 0
    wanted_since: int | None = None
    wanted_at: int = 0
    log: list[Commit] = field(default_factory=list)

    @property
    def checkpoint(self) -> int:
        """The last entry that was committed."""
        return self.log[-1].new if self.log else 0


class Server:
    """The scripts of redisio, on plain values.

    Parameters
    ----------
    partitions
        How many locks there are.
    drain_deadline_ms
        How long a contender waits for a live owner.
    clock
        The server's clock.
    on_post
        Called when there is something new on the control stream.
    """

    def __init__(
        self,
        partitions: int,
        *,
        drain_deadline_ms: int,
        clock: Callable[[], int],
        on_post: Callable[[], None],
    ) -> None:
        self._drain_deadline_ms = drain_deadline_ms
        self._clock = clock
        self._on_post = on_post
        self.locks = [Lock() for _ in range(partitions)]
        self.document: bytes | None = None
        self.history: list[Membership] = []
        self.beats: dict[str, ev.Beat] = {}
        self.control: list[ControlMessage] = []
        self.connections: set[int] = set()
        self.run = 1
        self.tells_connections = True
        self.calls = 0
        """Calls about documents and locks: a group at rest makes none."""
        self.fenced = 0
        """Commits that were refused."""
        self.overtaken = 0
        """Locks that were taken from a live owner, because it did not release in time."""

    @property
    def membership(self) -> Membership | None:
        """The document as it is now."""
        return None if self.document is None else Membership.parse(self.document)

    def read(self) -> ev.Event:
        """``GET members``."""
        self.calls += 1
        return ev.DocumentRead(self.document, self._clock())

    def change(self, effect: ev.ChangeDocument) -> ev.Event:
        """``change_members.lua``."""
        self.calls += 1
        current = self.membership
        if (0 if current is None else current.generation) != effect.expected:
            return ev.ChangeRefused(self.document, self._clock())
        generation = self._clock() if current is None else current.generation + 1
        self.document = b'{"generation":%d,%s' % (generation, effect.membership.body()[1:].encode())
        self.history.append(Membership.parse(self.document))
        for member in effect.removed:
            self.beats.pop(member, None)
        for member in effect.added:
            self.beats[member] = ev.Beat(self._clock(), 0, "", 0)
        self.post(replace(effect.message, generation=generation))
        return ev.DocumentChanged(generation)

    def post(self, message: ControlMessage) -> None:
        """``XADD control``."""
        self.control.append(message)
        self._on_post()

    def heartbeat(self, member: str, connection: int, sent_ms: int) -> ev.Event:
        """``heartbeat.lua``."""
        lost = member not in self.beats
        if not lost:
            self.beats[member] = ev.Beat(self._clock(), connection, f"run-{self.run}", 0)
        current = self.membership
        generation = 0 if current is None else current.generation
        return ev.HeartbeatDone(member, lost, generation, sent_ms, f"run-{self.run}", dict(self.beats))

    def probe(self, connections: Sequence[int]) -> ev.Event:
        """``CLIENT LIST ID``."""
        alive = frozenset(connections) & self.connections
        return ev.PeersProbed(alive if self.tells_connections else None)

    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        """``acquire.lua``."""
        self.calls += 1
        lock, now_ms = self.locks[partition], self._clock()
        if lock.generation > generation:
            return Stale(lock.generation)
        if lock.owner != owner:
            if lock.owner in live:
                if lock.wanted_since is None or now_ms - lock.wanted_at > CONTENDER_GAP_MS:
                    lock.wanted_since = now_ms
                lock.wanted_at = now_ms
                if now_ms - lock.wanted_since < self._drain_deadline_ms:
                    return Held(lock.owner, now_ms - lock.wanted_since)
                self.overtaken += 1
            lock.owner, lock.epoch, lock.wanted_since = owner, lock.epoch + 1, None
        if lock.generation < generation:
            lock.generation, lock.wanted_since = generation, None
        return Acquired(lock.epoch, EntryId(lock.checkpoint, 0), lock.checkpoint, len(lock.log), "log")

    def release(self, partition: int, owner: str, epoch: int) -> bool:
        """``release.lua``; an answer at all means that the lock is not the asker's any more."""
        self.calls += 1
        lock = self.locks[partition]
        if (lock.owner, lock.epoch) == (owner, epoch):
            lock.owner, lock.wanted_since = "", None
        return True

    def commit(self, partition: int, commit: Commit) -> Code:
        """``commit.lua``."""
        lock = self.locks[partition]
        if (lock.owner, lock.epoch) != (commit.owner, commit.epoch):
            self.fenced += 1
            return Code.FENCED
        if lock.checkpoint == commit.new:
            return Code.DUP
        if lock.checkpoint != commit.previous:
            return Code.GAP
        lock.log.append(commit)
        return Code.OK
