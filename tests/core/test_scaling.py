"""How many workers a group wants: what always holds, and a day with two bursts."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.scaling import FALL_MS, RATE_MS, Flow, Scale, flow_of, follow
from streamworker.core.snapshot import PartitionState
from tests.helpers import drawn
from tests.tui.groups import group

PARTITIONS = 16
STEP_S = 15


class Day:
    """A group whose workers do as much as they can, and an autoscaler that follows the wanted number."""

    def __init__(self, seed: int, *, can: float = 150, workers: int = 1, start_s: int = 45) -> None:
        self.rng = random.Random(seed)
        self.can, self.start_s = can, start_s
        self.now_s, self.workers, self.coming = 0, workers, list[tuple[int, int]]()
        self.arrived = self.committed = self.generation = 0
        self.scale = Scale()
        self.wanted: list[int] = []
        self.lags: list[int] = []

    def step(self, rate: float) -> None:
        """Let 15 seconds pass in which about so many records arrive in a second."""
        self.arrived += round(rate * STEP_S * self.rng.uniform(0.9, 1.1))
        able = round(self.workers * self.can * STEP_S * self.rng.uniform(0.95, 1.05))
        self.committed = min(self.arrived, self.committed + able)
        self.now_s += STEP_S
        lag = self.arrived - self.committed
        flow = Flow(
            self.now_s * 1_000, self.arrived, self.committed, lag, self.workers, self.generation, lag > 100
        )
        self.scale = follow(self.scale, flow, PARTITIONS)
        self.wanted.append(self.scale.desired)
        self.lags.append(lag)
        if not self.coming or self.coming[-1][1] != self.scale.desired:
            self.coming.append((self.now_s + self.start_s, self.scale.desired))
        for at_s, number in self.coming:
            if at_s <= self.now_s and number != self.workers:
                self.workers, self.generation = number, self.generation + 1
        self.coming = [each for each in self.coming if each[0] > self.now_s] or self.coming[-1:]


def turns(wanted: Iterable[int]) -> list[str]:
    """Return the directions in which a number went, without repeats."""
    found: list[str] = []
    for before, after in pairwise(wanted):
        way = "up" if after > before else "down"
        if after != before and found[-1:] != [way]:
            found.append(way)
    return found


def rates() -> Iterator[float]:
    """A day of records a second: a quiet one, with a burst at 9 and a steeper one at 18 o'clock."""
    for step in range(24 * 3_600 // STEP_S):
        hour = step * STEP_S / 3_600
        if 9 <= hour < 10.5:
            yield 200 + 1_300 * min(1.0, (hour - 9) * 4, (10.5 - hour) * 2)
        elif 18 <= hour < 18.75:
            yield 2_100
        else:
            yield 200


@pytest.mark.parametrize("seed", range(5))
def test_a_day_with_two_bursts_goes_up_and_down_once_for_each(seed: int) -> None:
    """The lag returns to near nothing, and in between nothing is changed; pytest -s shows the table."""
    day = Day(seed)
    for rate in rates():
        day.step(rate)
    # The first hour is that in which the group shows what a worker can do.
    hours = [day.wanted[at : at + 240] for at in range(0, len(day.wanted), 240)]
    lags = [day.lags[at : at + 240] for at in range(0, len(day.lags), 240)]
    print("hour  wanted  most lag  lag at the end")
    for hour, (wanted, lag) in enumerate(zip(hours, lags, strict=True)):
        print(f"{hour:4}  {min(wanted):2} - {max(wanted):2} {max(lag):8} {lag[-1]:8}")
    assert turns(day.wanted[240:]) == ["up", "down", "up", "down"]
    for begin, end in ((9, 12), (18, 20)):
        assert turns(day.wanted[begin * 240 : end * 240]) == ["up", "down"]
        assert day.lags[end * 240] < 600, "the lag has gone"
        assert max(day.wanted[begin * 240 : end * 240]) >= 10
    assert set(hours[8]) == set(hours[14]) == set(hours[22])
    assert all(wanted <= 3 for wanted in hours[14]), "few are enough in quiet hours"


def test_workers_that_were_never_busy_are_kept_for_their_rate_and_not_added_to() -> None:
    """Nobody knows what they could do; what they did is enough for as much again."""
    day = Day(1, workers=6)
    for _ in range(200):
        day.step(600)
    assert turns(day.wanted) in ([], ["down"])
    assert max(day.wanted) == 6


def test_lag_that_more_workers_do_not_help_is_not_counted() -> None:
    """Of halted, paused and retrying partitions."""
    now = group(partitions=4, workers=2, lag=50)
    states: tuple[PartitionState, ...] = ("halted", "paused", "retrying", "running")
    views = tuple(replace(now.partitions[p], state=state) for p, state in enumerate(states))
    flow = flow_of(replace(now, partitions=views))
    assert (flow.lag, flow.workers, flow.is_spread) == (50, 2, False)


def followed(flows: Iterable[tuple[int, int, int, int]], partitions: int) -> list[tuple[int, Scale]]:
    """Follow figures in which time and counts only grow."""
    scale, found = Scale(), []
    at_ms = arrived = committed = 0
    for passed, sent, done, workers in flows:
        at_ms, arrived = at_ms + passed, arrived + sent
        committed = min(arrived, committed + done)
        scale = follow(scale, Flow(at_ms, arrived, committed, arrived - committed, workers), partitions)
        found.append((at_ms, scale))
    return found


def spells(dice: random.Random) -> Iterator[tuple[int, int, int, int]]:
    """Return figures of a group in which load and workers stay as they are for a while, and then jump."""
    sent, done, workers = 500, 5_000, dice.randint(0, 40)
    for _ in range(120):
        if dice.random() < 0.3:
            sent, done = dice.choice([sent, 0, 500, 50_000]), dice.choice([done, 50, 5_000])
        if dice.random() < 0.1:
            workers = dice.randint(0, 40)
        yield dice.randint(0, 30_000), dice.randint(0, sent), dice.randint(0, done), workers


@drawn(200)
@given(st.integers(0, 2**32), st.integers(0, 64))
def test_at_most_the_partitions_are_wanted_and_fewer_only_if_fewer_were_enough_for_minutes(
    seed: int, partitions: int
) -> None:
    """So the number never falls before that time has passed since it rose. One is always wanted."""
    rose_ms, before = 0, 0
    for at_ms, scale in followed(spells(random.Random(seed)), partitions):
        assert 1 <= scale.desired <= max(1, partitions)
        if scale.desired > before:
            rose_ms = at_ms
        if scale.desired < before:
            assert at_ms - rose_ms >= FALL_MS - RATE_MS - 90_000
            assert all(enough <= scale.desired for _, enough in scale.enough)
        before = scale.desired


def test_a_group_that_is_deleted_begins_anew() -> None:
    known = followed([(15_000, 900, 900, 3)] * 9, 8)[-1][1]
    assert known.shown
    again = follow(known, Flow(150_000, 10, 0, 10, 2), 8)
    assert (again.desired, again.shown, len(again.flows)) == (2, 0.0, 1)
