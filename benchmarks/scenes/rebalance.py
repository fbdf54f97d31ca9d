"""Scene ``rebalance``: the cost of a join, a leave and a death of a worker, on the server of the bench."""

import functools
from collections.abc import Iterator, Sequence

from benchmarks.contest import Contest
from benchmarks.figures import Row
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.programs import BenchFailed
from benchmarks.rebalances.changes import Rebalances, Story, tell
from benchmarks.rebalances.facts import Change
from benchmarks.scenes.upkeep import within

WORKERS, PARTITIONS = 4, 64
"""A group that does not load two cores fully, so that the figures show the protocol."""
BALANCE_MS_MAX = {"join": 2_000.0, "leave": 2_000.0, "death": 5_000.0}
"""Longer for a death, since the other workers must first detect it."""
HANDOVER_MS_MAX = 100.0


async def rebalance(contest: Contest, *, workers: int = WORKERS, partitions: int = PARTITIONS) -> list[Row]:
    """Let one of three workers or more join, leave and die under a light load, in a new group for each round.

    The records and partitions of the contest are not used.
    """
    stories = []
    for run in range(contest.runs):
        at = f"run {run + 1} of {contest.runs}"
        contest.say(f"{at}: starting {workers + 1} workers")
        stories.append(
            await tell(
                Rebalances(contest.ground.url, name=contest.ground.name, partitions=partitions),
                workers=workers,
                count=False,
                say=functools.partial(_say, contest, at),
            )
        )
    return rows_of(stories)


def _say(contest: Contest, at: str, change: Change) -> None:
    contest.say(f"{at}: {change.what} done")


def rows_of(stories: Sequence[Story]) -> list[Row]:
    """Return the rows of the table for some rounds; refuse a round without a figure."""
    of_each = {what: [_change(story, what) for story in stories] for what in BALANCE_MS_MAX}
    return [row for what, changes in of_each.items() for row in _rows_of(what, changes)]


def _change(story: Story, what: str) -> Change:
    return next(change for change in story.changes if change.what == what)


def _rows_of(what: str, changes: Sequence[Change]) -> Iterator[Row]:
    group = f"{changes[0].partitions} partitions, {changes[0].workers} workers"
    title = f"{what} ({group})"
    balance = BenchFigures(what, "ms", _all(changes, "balance_ms"))
    yield within(f"rebalance-{what}", f"{title}: time to balance", balance, BALANCE_MS_MAX[what])
    moves = BenchFigures(what, "moves", _all(changes, "moves"))
    least = BenchFigures("the fewest", "moves", _all(changes, "least"))
    yield Row(f"rebalance-{what}-moves", f"{title}: moves", moves, least)
    for percent in (50, 99):
        figures = BenchFigures(what, "ms", _all(changes, f"handover_p{percent}_ms"))
        scene = f"rebalance-{what}-handover-p{percent}"
        yield within(scene, f"{title}: handover p{percent}", figures, HANDOVER_MS_MAX)
    # The server's clock has milliseconds, and a ratio to a pause of 0 ms is not defined.
    before = BenchFigures("before, any", "ms", tuple(max(1.0, ms) for ms in _all(changes, "pause_before_ms")))
    for kind, which in (("moved", "moved"), ("unmoved", "stayed")):
        pause = BenchFigures(what, "ms", _all(changes, f"pause_{kind}_ms"))
        words = f"{title}: longest pause of a partition that {which}"
        yield Row(f"rebalance-{what}-pause-{kind}", words, pause, before)


def _all(changes: Sequence[Change], field: str) -> tuple[float, ...]:
    values = [getattr(change, field) for change in changes]
    if None in values:
        raise BenchFailed(
            f"{changes[0].what}: a round has no {field}.",
            remedy="The machine may be too busy for the workers to share their partitions; run it again.",
        )
    return tuple(float(value) for value in values)
