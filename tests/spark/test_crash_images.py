"""The tables equal the log from whatever a killed driver leaves on the disk (F35).

A start of Spark takes most of a life, so here many lives share one: driver and JVM are stopped at some
moment, what is on the disk then is copied, with the readers' positions in Redis, and all that comes
later is thrown away. That is what SIGKILL leaves. What only a real kill has, a JVM that lives on and a driver
that waits for it, is in ``test_driver_killed.py``.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.figures import record
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.test_driver_killed import (
    PIPELINES,
    assert_tables_equal_the_log,
    keep_busy,
    live_a_little,
    read_all,
    stage,
)

MINUTES = "STREAMWORKER_SOAK_MINUTES"
"""After so many it is content with fewer crashes, and says so."""


class Lives:
    """A driver that can be stopped, copied, and put back to where it was."""

    def __init__(self, folder: Path, acked: AckedLog, redis_url: str) -> None:
        self.folder, self._acked = folder, acked
        self._log = folder.with_suffix(".log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.lives", str(folder)],
            env={**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "STREAMWORKER_CONNECTIONS": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._hears("ready")

    def _hears(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word, self.said()

    def said(self) -> str:
        return self.folder.with_suffix(".log").read_text()[-3000:]

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def alive(self) -> bool:
        """Whether it runs; fails the test if it has ended by itself."""
        assert self._process.poll() is None, self.said()
        return True

    def crash(self) -> dict[str, str]:
        """Put everything where it is at this moment; returns how far each pipeline was."""
        image, readers = self.folder.with_suffix(".image"), self._acked.keys.readers
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            shutil.copytree(self.folder, image, symlinks=True)
            told = self._acked.redis.hgetall(readers)
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)
        self.tell("die")
        self._hears("dead")
        wait_for(self._is_gone, "the last tasks write no more", timeout_s=60)
        image.rename(self.folder)
        self._acked.redis.delete(readers)
        if told:
            self._acked.redis.hset(readers, mapping=told)
        return {name: stage(self.folder, name) for name in PIPELINES}

    def _is_gone(self) -> bool:
        """Remove what is on its disk; a task that was told to end may still write to it for a moment."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
        return not self.folder.exists()

    def end(self) -> int:
        """Let it end in order; returns its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
        return code

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def survive(crashes: int, acked: AckedLog, redis_url: str, folder: Path, spark: SparkSession) -> None:
    """Crash so often while the log grows, let the last life come to the end, and compare."""
    rng = random.Random(crashes)
    give_up_at = time.monotonic() + float(os.environ.get(MINUTES, "1e9")) * 60
    found: Counter[str] = Counter()
    done = 0
    lives = Lives(folder, acked, redis_url)
    try:
        while done < crashes and time.monotonic() < give_up_at:
            keep_busy(acked, folder, entries_a_batch=4)
            lives.tell("live")
            live_a_little(lives, folder, rng)
            stages = lives.crash()
            found.update(stages.values())
            found["mid-batch"] += set(stages.values()) != {"committed"}
            done += 1
            print(f"life {done}: {stages}", flush=True)
        acked.fill(0, [7])
        lives.tell("live")
        read_all(lives, acked, folder)
        lives.tell("die")
        code = lives.end()
    except BaseException:
        lives.kill()
        raise
    assert code == 0, lives.said()
    assert found["mid-batch"] > done // 2
    assert_tables_equal_the_log(acked, folder, spark)
    record(
        "F35",
        f"crash images{', in small' if crashes < 100 else ''}: what SIGKILL leaves, many lives in one JVM",
        times=done,
        target=f"each table equals the log{' after 100 kills' if crashes >= 100 else ''}",
        verdict="met" if done >= crashes else "missed",
        why=""
        if done >= crashes
        else f"no time for more in {os.environ[MINUTES]} minutes, on a busy machine",
        said=f"of two queries: {found['planned']} times planned or in the task, {found['written']} times "
        f"written and not committed, {found['committed']} times between batches; started again from each",
        seed=crashes,
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("crashes", [5, 100])
def test_whatever_a_killed_driver_leaves_the_next_one_goes_on_from_it(
    spark: SparkSession, acked: AckedLog, redis_url: str, tmp_path: Path, crashes: int
) -> None:
    """Appended rows are there once, and the replaced result is whole."""
    survive(crashes, acked, redis_url, tmp_path / "tables", spark)
