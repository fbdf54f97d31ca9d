"""Schedules: faults, then a healed network, then the checks; and the smallest schedule that fails.

A schedule has three phases. During the faults, the checker checks the safety promises at every step.
Then all faults end, and the group must settle within a fixed time: each partition has one owner, all
entries are committed, and workers send only heartbeats. Then all workers are asked to leave, and must
leave no locks, members or heartbeats behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random

from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from streamworker.core.protocols.setup import Timing
from tests.simulator.checkers import Violation
from tests.simulator.faults import QUIET, Fault, FaultKind, draw, kinds_of, smaller
from tests.simulator.group import START_MS
from tests.simulator.process import CALL_TIMEOUT_MS, LATEST_MS
from tests.simulator.server.server import TABLE
from tests.simulator.transcript import Transcript
from tests.simulator.world import World

LATE_MS = CALL_TIMEOUT_MS + LATEST_MS + 500
"""After this time each request that its sender gave up has arrived at the server."""
TICK_MS = 200
"""Ids follow a coarser clock than at Redis, so that more failovers make ids again with other contents."""
SETTLE_MS = 40_000
"""Time to settle after ``LATE_MS``: 10 s until a silent peer is removed if the server does not report
connections, up to 4 s of jitter between peers, 4 s for a held place and another 4 s for the order of
peers, 12 s until a contender overtakes a stuck owner, and some calls. Or 20 s until a handler that cannot
be cancelled ends, if its worker is leaving."""
REST_MS = 2_500
"""Longer than two heartbeat intervals, so a worker that has a call to make has made it."""
LEAVE_MS = 30_000
CALM = frozenset({FaultKind.START, FaultKind.STOP, FaultKind.HERD, FaultKind.FLAP})
SHRINK_RUNS = 60
STATIC = (0, 0, 0.5, 1)
"""Shares of the workers that have a static id."""
HOLD_MS = 4_000
"""How long a place is held: some workers restart within it, and others do not."""
GRACE_MS = (500, 8_000)
"""Grace periods: one so short that handlers are often cancelled, and the default."""
GRACE_TO_DRAIN_MS = 4_000
"""From the grace period to the drain deadline."""
WORKERS = (1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8)
"""Small groups are enough for most races, and cost less."""
LOG_PARTITIONS = 6.0225
"""The binary logarithm of 65: all sizes from 1 to 64 are drawn, small ones more often."""
MINUTES = (0.1, 0.2, 0.5)
"""In six seconds a dozen faults overlap; long faults need half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One run of one group, drawn from its seed."""

    seed: int
    protocol: str = "membership"
    assignment: str | None = None
    """The assignment under membership; drawn if None. With ``weighted`` loads are drawn too, and change
    every few seconds during the faults."""
    workers: int | None = None
    """Number of workers at the start; drawn from 1 to 8 if None, small numbers more often."""
    partitions: int | None = None
    """Number of partitions; drawn from 1 to 64 if None, small numbers more often."""
    static: float | None = None
    """Share of the members with a static id, from 0 to 1; one of ``STATIC`` if None."""
    faults: str = "all"
    minutes: float | None = None
    """Duration of the faults in virtual minutes; one of ``MINUTES`` if None."""
    plan: tuple[Fault, ...] | None = None
    """The faults; drawn from the seed if None."""

    @property
    def command(self) -> str:
        """Return the command that replays the schedule."""
        options = ((name, getattr(self, name)) for name in ("assignment", "workers", "partitions", "minutes"))
        texts = {k: f"{v:g}" if isinstance(v, float) else v for k, v in options if v is not None}
        drawn = "".join(f" --{name} {text}" for name, text in texts.items())
        return (
            f"python -m tests.simulator --protocol {self.protocol} --seed {self.seed} --schedules 1{drawn} "
            f"--faults {self.faults} --trace"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one schedule."""

    schedule: Schedule
    workers: int
    partitions: int
    plan: tuple[Fault, ...]
    violations: tuple[Violation, ...]
    settled_ms: int | None
    """Time from the end of the faults until the group settled; None if it did not settle."""
    moves: int
    jumps: int
    """Moves away from a live worker without a reason in the 15 s before."""
    records: int
    story: str = field(repr=False, default="")


def run(
    schedule: Schedule,
    trace: Transcript | None = None,
    wrap: Callable[[Coordinator], Coordinator] = lambda core: core,
) -> Outcome:
    """Run one schedule; ``wrap`` may put an observer around each core.

    >>> run(Schedule(seed=1)).violations
    ()
    """
    random = Random(f"{schedule.seed}")
    workers, partitions = random.choice(WORKERS), int(2 ** (random.random() * LOG_PARTITIONS))
    workers, partitions = schedule.workers or workers, schedule.partitions or partitions
    minutes = random.choice(MINUTES)
    during_ms = int(60_000 * (minutes if schedule.minutes is None else schedule.minutes))
    kinds = kinds_of(schedule.faults)
    drawn = draw(random, kinds, during_ms)
    grace_ms = random.choice(GRACE_MS)
    plan = drawn if schedule.plan is None else schedule.plan
    world = World(
        schedule.seed,
        partitions=partitions,
        protocol=schedule.protocol,
        assignment=schedule.assignment or random.choice(tuple(STRATEGIES)),
        entry_every_ms=random.choice((25, 60, 250)),
        timing=Timing(grace_period_ms=grace_ms, hold_ms=HOLD_MS),
        static=_static(schedule, random),
        drain_deadline_ms=grace_ms + GRACE_TO_DRAIN_MS,
        wrap=wrap,
        trace=trace,
    )
    world.senders.fills_entries = True
    world.has_timers = schedule.seed % 4 == 1
    world.has_chains = schedule.seed % 4 == 2
    world.server.tables = ((), ("ends",), (), (TABLE,))[schedule.seed % 4]
    world.server.tick_ms = TICK_MS
    world.server.tells_connections = random.random() < 0.8
    world.usual = world.conditions = replace(QUIET, batch_ms=random.choice((30, 400, 1_200)))
    settled_ms = None
    try:
        settled_ms = _play(world, plan, workers, during_ms)
    except Exception as error:
        # A bug in a core raises an exception; the caller must still report and shrink the seed.
        world.checker.found("crash", f"{type(error).__name__}: {error}")
    checker, figures = world.checker, world.checker.figures
    return Outcome(
        schedule,
        workers,
        partitions,
        plan,
        tuple(checker.violations),
        settled_ms,
        figures.moves,
        figures.jumps,
        len(checker.executions),
        story(world) if checker.violations else "",
    )


def _static(schedule: Schedule, random: Random) -> float:
    drawn = random.choice(STATIC) if PROTOCOLS[schedule.protocol].has_document else 0
    return drawn if schedule.static is None else schedule.static


def _play(world: World, plan: Sequence[Fault], workers: int, during_ms: int) -> int | None:
    # A batch that takes longer than its grace period is cancelled, and another worker handles it again.
    is_calm = world.usual.batch_ms < world.timing.grace_period_ms - 4 * world.usual.latency_ms
    is_calm &= all(fault.kind in CALM for fault in plan)
    for _ in range(workers):
        world.start()
    for fault in plan:
        world.clock.run_for(max(0, START_MS + fault.at_ms - world.clock.now_ms))
        world.happen(fault)
    world.clock.run_for(max(0, START_MS + during_ms - world.clock.now_ms))
    world.heal()
    if not world.staying:
        world.start()
    took_ms = _settle(world)
    if is_calm and world.protocol.has_document:
        world.checker.judge_calm(world.server)
    if took_ms is not None:
        _leave(world)
    world.checker.judge(world.server)
    return took_ms


def _settle(world: World) -> int | None:
    """Wait until the group has settled (I7, I10); return how long it took, or None.

    Protocols without a document need not settle: the simulator only reports whether they do.
    """
    must_settle = world.protocol.has_document
    start_ms = world.clock.now_ms
    world.clock.run_for(LATE_MS)
    world.senders.stop()
    checker, server = world.checker, world.server

    def at_rest() -> bool:
        agrees = not must_settle or (world.is_agreed and world.has_come_to_rest)
        return agrees and world.is_settled and world.is_caught_up and world.is_forwarded

    took_ms = world.clock.run_until(at_rest, SETTLE_MS // 2, step_ms=100)
    if took_ms is None:
        # A worker that lost a lock in a failover, and has not committed since, notices at its next commit.
        world.senders.send_to_all()
        took_ms = world.clock.run_until(at_rest, SETTLE_MS // 2, step_ms=100)
    done, before = 0, -1
    while took_ms is None and world.is_settled and world.is_agreed and before < done:
        # A worker that got a partition late may have a long backlog: whoever commits does not stall.
        before, done = done, sum(its.committed for its in server.partitions)
        took_ms = world.clock.run_until(at_rest, SETTLE_MS // 8, step_ms=100)
    if took_ms is None:
        if must_settle and world.is_settled and world.is_agreed:
            checker.found("I10", f"entries are still waiting {SETTLE_MS} ms after all faults")
        elif must_settle:
            checker.found("I7", f"not each partition has its owner {SETTLE_MS} ms after all faults")
        return None
    settled_ms = world.clock.now_ms - start_ms
    if must_settle:
        world.clock.run_for(REST_MS // 4)  # Messages that are on their way reach the cores.
        calls = server.calls
        world.clock.run_for(REST_MS)
        checker.judge_rest(server)
        # Under weighted the balancer writes the measured loads into the document once a minute.
        if (server.calls != calls and not world.is_weighted) or not world.is_settled:
            checker.found("I8", "a group at rest asks about documents or locks")
    return settled_ms


def _leave(world: World) -> None:
    """Ask all workers to leave, and check what they leave behind (I8)."""
    world.checker.figures.is_over = True
    for worker in world.staying:
        world.stop(worker)
    gone_ms = world.clock.run_until(
        lambda: all(worker.finished for worker in world.workers if worker.alive), LEAVE_MS, step_ms=100
    )
    if world.protocol.has_document:
        if gone_ms is None:
            world.checker.found("I8", f"workers have not left after {LEAVE_MS} ms")
        world.checker.judge_end(world.server)


def shrink(outcome: Outcome, most: int = SHRINK_RUNS) -> Outcome:
    """Leave out faults while the schedule still fails; return the failure with the fewest faults."""
    promises = {violation.promise for violation in outcome.violations}
    best, plans = outcome, iter(smaller(outcome.plan))
    for _ in range(most):
        if (plan := next(plans, None)) is None:
            break
        tried = run(replace(best.schedule, plan=plan))
        if promises & {violation.promise for violation in tried.violations}:
            best, plans = tried, iter(smaller(tried.plan))
    return best


def explain(outcome: Outcome, lines: int = 60) -> str:
    """Return a report of a failure: what it broke, how to repeat it, and the smallest one's transcript."""
    small = shrink(outcome)
    trace = Transcript()
    run(small.schedule, trace)
    shown = list(takewhile(lambda line: _time_of(line) <= small.violations[0].at_ms, trace.lines))
    seed = outcome.schedule.seed
    head = f"seed {seed}, {outcome.workers} workers, {outcome.partitions} partitions"
    return "\n".join(
        [
            f"{head}: {len(outcome.violations)} times a promise was broken",
            *(f"  {violation}" for violation in outcome.violations[:5]),
            f"Run it again: {outcome.schedule.command}",
            f"With {len(small.plan)} of its {len(outcome.plan)} faults:",
            *(f"  {fault}" for fault in small.plan),
            *(f"  {violation}" for violation in small.violations[:3]),
            *small.story.splitlines(),
            *shown[-lines:],
        ]
    )


def _time_of(line: str) -> int:
    first = line.split(maxsplit=1)[0]
    return int(first) if first.isdigit() else 0


def story(world: World) -> str:
    """Return a text with the document, locks and runners, for a failure's message."""
    document = world.server.membership
    lines = [f"document: {None if document is None else (document.generation, document.owners)}"]
    lines += [
        f"lock {p}: {lock.owner or 'nobody'}, epoch {lock.epoch}, committed {lock.checkpoint}, "
        f"{len(lock.waiting)} records wait"
        for p, lock in enumerate(world.server.partitions)
    ]
    for worker in world.workers:
        running = {p: r.epoch for p, r in worker.runners.items() if not r.ended}
        what = "gone" if not worker.alive else "finished" if worker.finished else "there"
        lines.append(f"{worker.owner or worker.name}: {what}, handles {running}")
    return "\n".join(lines)
