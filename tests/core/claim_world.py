"""A small world for the claim protocol: workers, a store, locks, handlers and one virtual clock.

The store is the in-memory one that streamworker ships for its simulator, and the locks are those of
the membership protocol's world. A call takes some milliseconds; ``fail_calls`` makes answers get
lost. A handler that was told to drain takes ``drain_ms``.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from streamworker.core import claim_events as claims
from streamworker.core import events as ev
from streamworker.core.claim import ClaimCore
from streamworker.core.claim_timing import ClaimTiming
from streamworker.testing.model_claim import ModelClaims
from tests.core.server import Lock, Server

GRACE_MS = 8_000
DRAIN_DEADLINE_MS = 12_000
STORE_EFFECTS = (
    claims.ListOwnership,
    claims.ClaimPartitions,
    claims.UpdateCheckpoints,
    claims.GiveUpPartitions,
)


class Worker:
    """One process: a core, and the partitions whose runners it has."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.owner = f"{name}.{world.random.getrandbits(32):08x}"
        self.clock_ms = world.random.randrange(10**9)
        """What its own clock has more than the world's."""
        self.alive, self.finished, self.batches_paused = True, False, False
        self.asleep = self.never_cancels = False
        self.running: dict[int, int] = {}
        """Partition to epoch."""
        self.notes: list[str] = []
        self.calls: list[ev.Effect] = []
        """What it asked of the store."""
        self._backlog: list[Callable[[], None]] = []
        self._timer = 0
        self._heard = len(world.server.control)
        self.core = ClaimCore(
            self.owner,
            name=name,
            partitions=world.partitions,
            timing=world.timing,
            grace_period_ms=GRACE_MS,
            retry_ms=200,
            jitter=lambda most: world.random.randint(0, most),
        )
        self.later(0, lambda: self.handle(ev.Started()))

    def handle(self, event: ev.Event) -> None:
        """Bring an event to the core and start what it wants done."""
        if self.finished:
            return
        now_ms = self.world.now_ms + self.clock_ms
        for effect in self.core.handle(event, now_ms):
            self._do(effect)
        self._timer += 1
        timer, deadline_ms = self._timer, self.core.next_deadline_ms()
        if deadline_ms is not None:
            assert deadline_ms > now_ms, f"{self.name} would spin after {event}"
            self.later(deadline_ms - now_ms, lambda: self._deadline(timer))

    def stop(self) -> None:
        """Ask it to leave."""
        self.handle(ev.StopRequested())

    def kill(self) -> None:
        """End at once."""
        self.alive = False
        self.running.clear()

    def wake(self) -> None:
        """Go on after a sleep, with all that piled up."""
        self.asleep = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self._run(action)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while; who sleeps then does it when it wakes."""
        self.world.after(delay_ms, lambda: self._run(action))

    def poll_control(self) -> None:
        """Read what is new on the control stream."""
        messages = tuple(self.world.server.control[self._heard :])
        self._heard += len(messages)
        if messages:
            self.handle(ev.ControlReceived(messages))

    def _run(self, action: Callable[[], None]) -> None:
        if self.asleep:
            self._backlog.append(action)
        elif self.alive:
            action()

    def _deadline(self, timer: int) -> None:
        if timer == self._timer:
            self.handle(ev.DeadlinePassed())

    def _call(self, do: Callable[[], ev.Event], failed: ev.Event) -> None:
        """Make one round trip; where it fails it may have been done all the same."""
        world = self.world
        fails, is_done = world.random.random() < world.fail_calls, world.random.random() < 0.5
        is_done &= not world.store_is_down

        def arrive() -> None:
            answer = do() if is_done or not fails else None
            self.later(world.latency_ms(), lambda: self.handle(failed if fails or not answer else answer))

        world.after(world.latency_ms(), arrive)

    def _do(self, effect: ev.Effect) -> None:
        server = self.world.server
        match effect:
            case _ if isinstance(effect, STORE_EFFECTS):
                self.calls.append(effect)
                self._call(lambda: self.world.store_call(effect), claims.StoreFailed())
            case ev.AcquireLocks(partitions, owner, generation, live):
                self._call(
                    lambda: ev.LocksAnswered(
                        owner, partitions, {p: server.acquire(p, owner, generation, live) for p in partitions}
                    ),
                    ev.LocksAnswered(owner, partitions, {}),
                )
            case ev.ReleaseLocks(owner, epochs):
                asked = tuple(epochs)
                self._call(
                    lambda: ev.LocksReleased(
                        owner, asked, frozenset(p for p in asked if server.release(p, owner, epochs[p]))
                    ),
                    ev.LocksReleased(owner, asked, frozenset()),
                )
            case ev.PostControl(message):
                self.world.after(self.world.latency_ms(), lambda: server.post(message))
            case ev.StartRunner(partition, _, lock):
                assert partition not in self.running
                self.running[partition] = lock.epoch
                self.world.started(self, partition)
            case ev.DrainRunner(partition, epoch):
                self.later(self.world.drain_ms, lambda: self._stopped(partition, epoch))
            case ev.CancelRunner(partition, epoch) if not self.never_cancels:
                self.later(1, lambda: self._stopped(partition, epoch))
            case ev.PauseBatches():
                self.batches_paused = True
            case ev.ResumeBatches():
                self.batches_paused = False
            case ev.Finished():
                self.finished = True
            case ev.Note(event, _):
                self.notes.append(event)

    def _stopped(self, partition: int, epoch: int) -> None:
        if self.running.get(partition) == epoch:
            del self.running[partition]
            self.handle(ev.RunnerStopped(partition, epoch))

    def commit_all(self) -> None:
        """Commit in each partition, and learn where that is refused."""
        for partition, epoch in sorted(self.running.items()):
            lock = self.world.server.locks[partition]
            if (lock.owner, lock.epoch) != (self.owner, epoch):
                del self.running[partition]
                self.handle(ev.RunnerFenced(partition, epoch))


class World:
    """The clock, the dice, the store, the locks and the workers."""

    def __init__(self, partitions: int, seed: int = 0, *, timing: ClaimTiming | None = None) -> None:
        self.random = Random(seed)
        self.partitions = partitions
        self.timing = timing or ClaimTiming()
        self.now_ms = 1_000_000
        self.fail_calls = 0.0
        """How likely a call gets no answer; half of these are done all the same."""
        self.store_is_down = False
        """Calls that fail are not done, either."""
        self.drain_ms = 50
        self.store = ModelClaims(lambda: self.partitions)
        self.server = Server(
            partitions,
            drain_deadline_ms=DRAIN_DEADLINE_MS,
            clock=lambda: self.now_ms,
            on_post=self._spread_the_word,
        )
        self.workers: list[Worker] = []
        self.overlaps = 0
        """How often a partition was started while another live worker had it."""
        self.starts: Counter[int] = Counter()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def start(self, count: int = 1) -> list[Worker]:
        """Start some workers at once."""
        started = [Worker(self, f"w{len(self.workers) + n + 1}") for n in range(count)]
        self.workers += started
        return started

    def grow(self, partitions: int) -> None:
        """Give the stream more partitions."""
        self.server.locks += [Lock() for _ in range(partitions - self.partitions)]
        self.partitions = partitions

    def store_call(self, effect: ev.Effect) -> ev.Event:
        """Let the store do something."""
        answer = self.store.perform(effect, self.now_ms)
        assert answer is not None
        return answer

    def started(self, worker: Worker, partition: int) -> None:
        """Take note of a start."""
        self.starts[partition] += 1
        self.overlaps += sum(
            1
            for other in self.workers
            if other is not worker and other.alive and not other.asleep and partition in other.running
        )

    def latency_ms(self) -> int:
        """How long one way takes."""
        return self.random.randint(1, 5)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen after a while; at one time, in the order of asking."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._count, action))

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], what: str, within_ms: int) -> int:
        """Let time pass until something is true; return how long it took."""
        start_ms = self.now_ms
        while not condition():
            assert self.now_ms - start_ms < within_ms, f"not within {within_ms} ms: {what}; {self.shares()}"
            self.run_for(10)
        return self.now_ms - start_ms

    # -- what an observer sees -----------------------------------------------------------------

    @property
    def there(self) -> list[Worker]:
        """The workers that live and have not left."""
        return [worker for worker in self.workers if worker.alive and not worker.finished]

    def shares(self) -> list[int]:
        """Return how many partitions each worker that is there handles, the most first."""
        return sorted((len(worker.running) for worker in self.there), reverse=True)

    def settles_at(self, *shares: int, within_ms: int = 60_000) -> int:
        """Wait until the workers handle so many partitions each, and nothing moves any more."""
        took_ms = self.run_until(lambda: self.shares() == list(shares), f"{shares}", within_ms)
        before = self.starts.total()
        self.run_for(3 * self.timing.expiry_ms)
        assert self.shares() == list(shares)
        assert self.starts.total() == before, "partitions moved although all was balanced"
        return took_ms

    def _spread_the_word(self) -> None:
        for worker in self.workers:
            worker.later(self.latency_ms(), worker.poll_control)
