"""The transcript in docs/protocol.md: real cores, and a server on plain values, on one clock.

Each line of a transcript is an event as `WorkerCore.handle` gets it, with the effects that it returns.
The cores are the product's own. The server is the one that the tests of the core use, where
contract tests hold the Lua scripts to the same rules. Each call takes 1 ms here, and a batch 40 ms.
"""

import heapq
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged, PartitionsAcquired, PartitionsReleased
from streamworker.core.locks import Acquired, Held, Stale
from streamworker.core.membership import Membership
from streamworker.core.worker import Identity, Timing, WorkerCore
from tests.core.server import Code, Commit, Server

PARTITIONS = 4
CALL_MS = 1
BATCH_MS = 40
FIRST_GENERATION = 700
"""The server's clock when the story begins; real ones have 13 digits."""


class Worker:
    """One core, and what the runtime does for it."""

    def __init__(self, story: "Story", name: str, connection: int) -> None:
        self.story, self.name, self.connection = story, name, connection
        self.alive, self.read = True, len(story.server.control)
        self.beating: str | None = None
        self.core = WorkerCore(
            Identity(name, "host", 1),
            partitions=PARTITIONS,
            strategy="range",
            timing=Timing(),
            nonce=lambda: "x7",
            jitter=lambda most: 0,
        )
        story.server.connections.add(connection)
        self.later(0, lambda: self.handle(ev.Started()))

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while, unless killed by then."""
        self.story.after(delay_ms, lambda: action() if self.alive else None)

    def handle(self, event: ev.Event) -> None:
        """Bring an event, write it down, and do what the core wants done."""
        effects = self.core.handle(event, self.story.now_ms)
        if effects or isinstance(event, ev.LocksAnswered):
            self.story.note(self.name, event, effects)
        for effect in effects:
            self.perform(effect)
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None:
            self.later(deadline_ms - self.story.now_ms, self.deadline)

    def deadline(self) -> None:
        """Tell the core that its time has come, if it has."""
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.story.now_ms:
            self.handle(ev.DeadlinePassed())

    def ask(self, call: Callable[[], ev.Event]) -> None:
        """Make a call to the server and bring its answer."""
        self.later(CALL_MS, lambda: self.handle(call()))

    def perform(self, effect: ev.Effect) -> None:
        """Start one effect."""
        server = self.story.server
        match effect:
            case ev.ReadDocument():
                self.ask(server.read)
            case ev.ChangeDocument():
                self.ask(lambda: server.change(effect))
            case ev.ProbePeers(connections):
                self.ask(lambda: server.probe(connections))
            case ev.AcquireLocks(partitions, owner, generation, live):
                self.ask(
                    lambda: ev.LocksAnswered(
                        owner, partitions, {p: server.acquire(p, owner, generation, live) for p in partitions}
                    )
                )
            case ev.ReleaseLocks(owner, epochs):
                self.ask(
                    lambda: ev.LocksReleased(
                        owner,
                        tuple(epochs),
                        frozenset(p for p, e in epochs.items() if server.release(p, owner, e)),
                    )
                )
            case ev.PostControl(message):
                server.post(message)
            case ev.StartHeartbeat(member):
                self.beating = member
                self.later(1_000, self.beat)
            case ev.StopHeartbeat():
                self.beating = None
            case ev.DrainRunner(partition, epoch):
                self.later(BATCH_MS, lambda: self.drained(partition, epoch))

    def drained(self, partition: int, epoch: int) -> None:
        """Commit the batch that was in hand, and stop."""
        server, done = self.story.server, self.story.server.locks[partition].checkpoint
        assert server.commit(partition, Commit(self.core.member, epoch, done, done + 500)) is Code.OK
        self.handle(ev.RunnerStopped(partition, epoch))

    def beat(self) -> None:
        """Send a heartbeat, and the next one a second later."""
        if self.beating is None:
            return
        member, sent_ms = self.beating, self.story.now_ms
        self.ask(lambda: self.story.server.heartbeat(member, self.connection, sent_ms))
        self.later(1_000, self.beat)

    def hear(self) -> None:
        """Read what is new on the control stream."""
        new = self.story.server.control[self.read :]
        self.read += len(new)
        if new:
            self.handle(ev.ControlReceived(tuple(new)))


class Story:
    """A clock, a server, some workers, and what they said."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.start_ms = 0
        self.lines: list[str] = []
        self.workers: list[Worker] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._ticket = count()
        self.server = Server(
            PARTITIONS,
            drain_deadline_ms=12_000,
            clock=lambda: FIRST_GENERATION + self.now_ms,
            on_post=self._posted,
        )
        for lock in self.server.locks:
            lock.epoch = 70

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._ticket), action))

    def join(self, name: str) -> Worker:
        """Start a worker."""
        worker = Worker(self, name, connection=10 + len(self.workers))
        self.workers.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """End a worker at once; the server sees its connection close."""
        worker.alive = False
        self.server.connections.discard(worker.connection)
        self.lines.append(f"{0:>6} ms  {worker.name}  (killed; its connection closes)")

    def play(self, until_ms: int) -> str:
        """Let the clock run; return what was said meanwhile."""
        end_ms = self.now_ms + until_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = end_ms
        lines, self.lines = self.lines, []
        self.start_ms = end_ms
        return "\n".join(lines)

    def note(self, name: str, event: ev.Event, effects: list[ev.Effect]) -> None:
        """Write a line down."""
        self.lines.append(f"{self.now_ms - self.start_ms:>6} ms  {name}  {_event(event)}")
        for effect in effects:
            if not isinstance(effect, ev.Note):
                self.lines.append(f"{'':>15}-> {_effect(effect)}")

    def _posted(self) -> None:
        for worker in self.workers:
            worker.later(CALL_MS, worker.hear)


def render() -> dict[str, str]:
    """Return the four parts of the story by name."""
    story, parts = Story(), {}
    first = story.join("w1")
    parts["first-worker"] = story.play(500)
    second = story.join("w2")
    parts["join"] = story.play(5_000 - story.now_ms)
    first.handle(ev.StopRequested())
    parts["leave"] = story.play(500)
    third = story.join("w3")
    story.play(10_000 - story.now_ms)
    story.kill(second)
    parts["death"] = story.play(4_000)
    assert story.server.membership is not None
    assert story.server.membership.owners == (third.core.member,) * PARTITIONS
    return parts


# -- in words --------------------------------------------------------------------------------


def _runs(numbers: "tuple[int, ...] | list[int]") -> str:
    """Write partitions with runs shortened: 0-2,5."""
    if not numbers:
        return "nothing"
    ordered = sorted(numbers)
    parts, start = [], ordered[0]
    for here, following in pairwise([*ordered, ordered[-1] + 2]):
        if following != here + 1:
            parts.append(str(here) if here == start else f"{start}-{here}")
            start = following
    return ",".join(parts)


def _owners(membership: Membership) -> str:
    names = {member.id: member.name for member in membership.members}
    shares = [
        f"{names[owner]}: {_runs(sorted(membership.owned_by(owner)))}"
        for owner in dict.fromkeys(membership.owners)
        if owner is not None
    ]
    return "; ".join(shares) or "nobody"


def _message(message: object) -> str:
    match message:
        case GroupChanged(generation, cause, member, moved):
            return f"changed, generation {generation}: {cause} of {member}, moved {_runs(moved)}"
        case PartitionsReleased(partitions, owner, generation):
            return f"released {_runs(partitions)} by {owner.split('.')[0]}, generation {generation}"
        case PartitionsAcquired(partitions, owner, generation):
            return f"acquired {_runs(partitions)} by {owner.split('.')[0]}, generation {generation}"
    raise TypeError(message)


def _event(event: ev.Event) -> str:
    match event:
        case ev.DocumentRead(document, _):
            return f"DocumentRead: {_document(document)}"
        case ev.ChangeRefused(document, _):
            return f"ChangeRefused: {_document(document)}"
        case ev.DocumentChanged(generation):
            return f"DocumentChanged: generation {generation}"
        case ev.ControlReceived(messages):
            return "ControlReceived: " + "; ".join(map(_message, messages))
        case ev.LocksAnswered(_, _, replies):
            return "LocksAnswered: " + "; ".join(
                f"{p} {_reply(reply)}" for p, reply in sorted(replies.items())
            )
        case ev.LocksReleased(_, asked, _):
            return f"LocksReleased: {_runs(asked)}"
        case ev.RunnerStopped(partition, epoch):
            return f"RunnerStopped: {partition}, epoch {epoch}"
        case ev.HeartbeatDone():
            return f"HeartbeatDone: generation {event.generation}"
        case ev.PeersProbed(connected):
            return f"PeersProbed: {sorted(connected or ()) or 'none is connected'}"
    return type(event).__name__


def _document(document: bytes | None) -> str:
    if document is None:
        return "there is none"
    membership = Membership.parse(document)
    return f"generation {membership.generation}, {_owners(membership)}"


def _reply(reply: object) -> str:
    match reply:
        case Acquired():
            return f"acquired, epoch {reply.epoch}"
        case Held(owner, _):
            return f"held by {owner.split('.')[0]}"
        case Stale(generation):
            return f"stale, generation {generation}"
    raise TypeError(reply)


def _effect(effect: ev.Effect) -> str:
    match effect:
        case ev.ChangeDocument(expected, membership, message, _, _):
            before = f"if the generation is {expected}" if expected else "if there is none"
            return f"ChangeDocument {before}: {message.cause} of {message.member}; {_owners(membership)}"
        case ev.StartHeartbeat(member):
            return f"StartHeartbeat {member}"
        case ev.ProbePeers(connections):
            return f"ProbePeers: connections {sorted(connections)}"
        case ev.AcquireLocks(partitions, _, generation, _):
            return f"AcquireLocks {_runs(partitions)}, generation {generation}"
        case ev.ReleaseLocks(_, epochs):
            return f"ReleaseLocks {_runs(tuple(epochs))}"
        case ev.PostControl(message):
            return f"PostControl: {_message(message)}"
        case ev.StartRunner(partition, _, lock):
            return f"StartRunner {partition}, epoch {lock.epoch}, after entry {lock.checkpoint}"
        case ev.DrainRunner(partition, epoch) | ev.CancelRunner(partition, epoch):
            return f"{type(effect).__name__} {partition}, epoch {epoch}"
        case ev.MarkLock(partition, _, _, state, _):
            return f"MarkLock {partition}: {state}"
    return type(effect).__name__


if __name__ == "__main__":
    for title, text in render().items():
        print(f"== {title}\n{text}")
