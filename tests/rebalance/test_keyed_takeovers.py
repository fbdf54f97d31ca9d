"""Calls that overlap, and a worker that goes: nothing lost, nothing out of order, little repeated."""

import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from streamworker.runtime.run.modes.keyed import WINDOW_MIN, WINDOW_PER_CALL
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
from tests.rebalance.scene import STEADY, Call, Scene

KEYS = 97
CONCURRENCY = 64
"""More than a partition has keys, so that records always wait for their key while later ones run."""
SENT = 4_000


class KeyedScene(Scene):
    def worker(self, name: str, *arguments: str, **environ: str) -> WorkerProcess:
        return super().worker(name, *arguments, CONCURRENCY=str(CONCURRENCY), **environ)

    def check_calls(self) -> None:
        """While a worker owned a partition, no key overlapped itself or went back."""
        by_owner: dict[tuple[int, int, int], list[Call]] = defaultdict(list)
        for call in self.calls():
            by_owner[call.partition, call.epoch, call.n[0] % KEYS].append(call)
        for calls in by_owner.values():
            for before, after in pairwise(calls):
                assert before.n < after.n and before.end <= after.start, (before, after)

    def check_that_one_partition_moved(self) -> None:
        """Two owners worked on one of the two, and one on the other."""
        assert len({(call.partition, call.epoch) for call in self.calls()}) == 3

    def check_log(self) -> None:
        """Each record once, and each partition in the order of its source."""
        self.check_acked_log()
        for rows in self.acked().values():
            numbers = [row["n"] for row in rows]
            assert numbers == sorted(numbers)

    def wait_until_under_way(self, calls: int) -> None:
        def ended() -> int:
            return sum(path.read_bytes().count(b"\n") for path in self.ledger.glob("*.jsonl"))

        wait_for(lambda: ended() >= calls, f"{calls} calls have ended")


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> KeyedScene:
    return KeyedScene(redis_url, spawn, tmp_path, 2)


@pytest.mark.parametrize("how", ["killed", "asked to leave"])
def test_what_a_worker_had_that_goes_is_in_the_log_once_and_in_order(scene: KeyedScene, how: str) -> None:
    """After a kill the next owner does again what was done behind a gap, and no more than the window holds.

    Who is asked to leave finishes what is in hand, and what lies before that: nothing is repeated.
    """
    # It kills itself at the end of a call, which is then not committed, however late this test looks.
    dies = {"DIES_AFTER": str(SENT // 10)} if how == "killed" else {}
    first, _ = scene.worker("first", **STEADY, **dies), scene.worker("second", **STEADY)
    scene.wait_for_owners({"first": 1, "second": 1})
    scene.send(SENT)
    # More is sent meanwhile: a busy machine may look when the first worker has done its part of the above.
    with scene.steady_load():
        scene.wait_until_under_way(SENT // 5)
        if not dies:
            first.terminate()
        assert first.wait() == (-signal.SIGKILL if dies else 0)
    scene.wait_until_drained()
    scene.check_log()
    scene.check_calls()
    executed = scene.executed()
    assert set(executed) == set(range(scene.sent))
    in_hand = max(WINDOW_MIN, WINDOW_PER_CALL * CONCURRENCY) + 2 * 500
    repeated = len(executed) - scene.sent
    assert 0 < repeated <= in_hand if how == "killed" else not repeated
    scene.check_that_one_partition_moved()
