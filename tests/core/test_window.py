"""Records side by side: order by key, a bound on what runs, and a commit that leaves no gap."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.window import CallWindow
from streamworker.errors import InternalError
from tests.helpers import drawn

KEYS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))


@dataclass
class Observer:
    """Drives a window and keeps its own account of what should be so."""

    window: CallWindow
    concurrency: int
    size: int
    keys: list[str | None] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    abandoned: set[int] = field(default_factory=set)
    taken: int = 0

    def add(self, key: str | None) -> None:
        assert self.window.room == self.size - (len(self.keys) - self.taken)
        if self.window.room:
            assert self.window.add(key) == len(self.keys)
            self.keys.append(key)

    def may_start(self) -> set[int]:
        """Return all records that the rules allow to start."""
        may, waits = set[int](), set[str]()
        for index, key in enumerate(self.keys[: min(self.abandoned, default=len(self.keys))]):
            if index not in self.done:
                if key not in waits and index not in self.running and index not in self.paused:
                    may.add(index)
                waits |= {key} if key is not None else set()
        return may

    def start(self) -> bool:
        """Start one; it must be the earliest that may."""
        allowed = self.may_start()
        index = self.window.start()
        if len(self.running) >= self.concurrency or not allowed:
            assert index is None
            return False
        assert index == min(allowed)
        self.running.append(index)
        assert len(self.running) <= self.concurrency
        return True

    def end(self, which: int, how: str) -> None:
        if not self.running:
            return
        index = self.running.pop(which % len(self.running))
        getattr(self.window, how)(index)
        {"finish": self.done.add, "defer": self.paused.append, "abandon": self.abandoned.add}[how](index)

    def resume(self, which: int) -> None:
        if self.paused:
            self.window.again(self.paused.pop(which % len(self.paused)))

    def check_settled(self) -> None:
        """It is settled when nothing runs, may start, or pauses before a record that was abandoned."""
        bar = min(self.abandoned, default=len(self.keys))
        waits = any(index < bar for index in self.paused)
        assert self.window.is_settled == (not self.running and not self.may_start() and not waits)

    def take(self, limit: int) -> None:
        """Take what may be committed: a run of what is done, without a gap."""
        prefix = next((p for p in range(len(self.keys)) if p not in self.done), len(self.keys))
        count = self.window.take(limit)
        assert count == min(limit, prefix - self.taken)
        self.taken += count


STEPS = {"add": 6, "start": 6, "finish": 3, "defer": 2, "resume": 2, "take": 2, "abandon": 1}
"""What may happen, and how often it does beside the others."""


@drawn(200)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**32))
def test_the_rules_hold_whatever_happens(concurrency: int, size: int, seed: int) -> None:
    """Order in each key, so many at a time, the earliest first, no gap, no more than fit."""
    observer = Observer(CallWindow(concurrency=concurrency, size=size), concurrency, size)
    dice = Random(seed)
    for step in dice.choices([*STEPS], [*STEPS.values()], k=80):
        if step == "add":
            observer.add(dice.choice([None, "a", "b", "c"]))
        elif step == "start":
            observer.start()
        elif step == "resume":
            observer.resume(dice.randrange(10))
        elif step == "take":
            observer.take(dice.randrange(6))
        else:
            observer.end(dice.randrange(10), step)
        observer.check_settled()


@given(st.integers(1, 4), st.lists(KEYS, max_size=40), st.randoms(use_true_random=False))
def test_everything_is_done_in_the_end(concurrency: int, keys: list[str | None], rng: object) -> None:
    """Nothing is forgotten behind a key: whoever starts, ends and takes what may be gets it all."""
    observer = Observer(CallWindow(concurrency=concurrency, size=7), concurrency, 7)
    left = list(keys)
    while observer.taken < len(keys):
        while left and observer.window.room:
            observer.add(left.pop(0))
        while observer.start():
            pass
        observer.end(rng.randrange(9), "finish")  # type: ignore[attr-defined]
        observer.take(rng.randrange(3))  # type: ignore[attr-defined]
    assert observer.window.is_settled
    assert observer.window.room == 7


@given(st.integers(1, 4), st.lists(KEYS, min_size=1, max_size=20), st.lists(st.integers(0, 9), max_size=12))
def test_after_close_all_that_was_started_can_be_taken(
    concurrency: int, keys: list[str | None], ends: list[int]
) -> None:
    """Only the records before one that was started are started still, and then there is no gap."""
    observer = Observer(CallWindow(concurrency=concurrency, size=20), concurrency, 20)
    started = 0
    for key in keys:
        observer.add(key)
    for which in ends:
        while observer.start():
            pass
        observer.end(which, "finish")
    started = max([-1, *observer.running, *observer.done]) + 1
    observer.window.close()
    while not observer.window.is_settled:
        while (index := observer.window.start()) is not None:
            assert index < started
            observer.running.append(index)
        observer.end(0, "finish")
    observer.take(100)
    assert observer.taken == started


@pytest.mark.parametrize("ends", ["finish", "defer", "abandon", "again"])
def test_what_never_started_cannot_end(ends: str) -> None:
    """It would be a fault of ours, and says so."""
    window = CallWindow(concurrency=1, size=1)
    window.add(None)
    with pytest.raises(InternalError, match="index 0"):
        getattr(window, ends)(0)
    with pytest.raises(InternalError, match="full"):
        window.add(None)
