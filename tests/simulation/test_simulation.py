"""Schedules of every protocol with all faults: what is promised holds, and a seed says everything."""

import os
from dataclasses import replace

import pytest

from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.errors import ConfigurationError
from tests.nightly import TURN
from tests.planting import PLANTS, planted
from tests.simulator.batch import run_many
from tests.simulator.faults import FaultKind, kinds_of
from tests.simulator.simulation import Outcome, Schedule, explain, run, shrink
from tests.simulator.transcript import Transcript

pytestmark = pytest.mark.timeout(600)
"""Schedules take seconds of a core, which a busy machine may give them late; this ends what hangs."""


def check(schedule: Schedule, count: int) -> list[Outcome]:
    """Run seeds from the schedule's on; explain those that broke a promise."""
    seeds = range(schedule.seed, schedule.seed + count)
    outcomes = list(run_many(schedule, seeds))
    failed = [outcome for outcome in outcomes if outcome.violations]
    assert not failed, "\n\n".join(explain(outcome) for outcome in failed[:2])
    return outcomes


SOAK = pytest.mark.soak
NIGHTLY = 1_000
"""Some minutes on two cores, each night others; `make simulate SCHEDULES=100000` takes hours."""
JUDGED = 110
"""In the thousands of the soak a move may have a cause that the simulator does not know."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 4, id="four"),
        # Each timeout is for a machine that is slow and busy: it ends what hangs, and judges nothing.
        pytest.param(
            4,
            46,
            id="fifty",
            marks=[pytest.mark.full("both cores for some seconds"), pytest.mark.timeout(900)],
        ),
        # Others at each turn of this part of `make nightly`.
        pytest.param(
            1_000_000 + NIGHTLY * int(os.environ.get(TURN, "0")),
            NIGHTLY,
            id="of_a_night",
            marks=[SOAK, pytest.mark.timeout(2_700)],
        ),
    ],
)
def test_membership_keeps_its_promises_through_all_faults_and_comes_to_rest_after_them(
    first: int, count: int
) -> None:
    """Sizes, the assignment and faults are drawn by the seed: up to 8 workers at the start, 64 partitions.

    No partition moves without a cause. A place that is not kept any more for a static member is one.
    """
    outcomes = check(Schedule(seed=first), count)
    if count <= JUDGED:
        assert [outcome.schedule.seed for outcome in outcomes if outcome.jumps] == []


@pytest.mark.slow
@pytest.mark.parametrize("protocol", sorted(set(PROTOCOLS) - {"membership"}))
@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 3, id="three"),
        pytest.param(
            3,
            7,
            id="ten",
            marks=[pytest.mark.full("runs seven schedules of each"), pytest.mark.timeout(600)],
        ),
        pytest.param(0, 100, id="hundred", marks=[SOAK, pytest.mark.timeout(900)]),
    ],
)
def test_other_protocols_lose_nothing_and_repeat_nothing(protocol: str, first: int, count: int) -> None:
    """All commits are fenced alike; how long the others take to come to rest is another matter."""
    check(Schedule(seed=first, protocol=protocol), count)


@pytest.mark.full("runs five schedules")
@pytest.mark.timeout(600)
def test_workers_that_only_come_and_go_do_nothing_twice() -> None:
    """No fault but joins and leaves, herds and flapping: no entry is handled twice, none is refused."""
    check(Schedule(seed=0, faults="churn"), 5)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_fault_alone_is_survived(kind: FaultKind) -> None:
    """So that a failure under all of them is not taken for one that needs them all."""
    check(Schedule(seed=0, faults=kind.value), 1)


def test_the_same_seed_gives_the_same_run() -> None:
    """Event for event: without that no failure could be looked into."""
    traces = [Transcript(quiet=False) for _ in range(2)]
    outcomes = [run(Schedule(seed=11), trace=trace) for trace in traces]
    assert outcomes[0] == outcomes[1]
    assert traces[0].lines == traces[1].lines
    assert len(traces[0].lines) > 100


def test_a_failure_comes_with_its_command_and_the_fewest_faults() -> None:
    """A mistake that needs one fault is shown with that fault, and the seed replays it."""
    base = Schedule(seed=0, workers=3, partitions=4, minutes=0.1, faults="kill,start,stop")
    schedules = (replace(base, seed=seed) for seed in range(20, 120))
    with planted(PLANTS["members are removed and their locks are not free"]):
        outcome = next(o for o in map(run, schedules) if o.violations)
        small = shrink(outcome)
        assert 1 <= len(small.plan) <= 3 <= len(outcome.plan)
        assert f"simulator --protocol membership --seed {outcome.schedule.seed} --" in explain(outcome)
        assert run(small.schedule).violations == small.violations


def test_a_fault_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    """Its groups and its kinds."""
    with pytest.raises(ConfigurationError, match="failover"):
        kinds_of("kill,meteor")
