"""What a measured process is told and what it tells, whoever's program it is."""

import os
import time
from pathlib import Path

import msgspec

VARIABLE = "STREAMWORKER_BENCH_TASK"


class Task(msgspec.Struct, kw_only=True):
    """What one process is to do in one run."""

    app: str
    mode: str
    group: str
    """Of this run alone."""
    keys: list[str]
    """Streams to read, for a program that knows Redis keys."""
    stream: str = "events"
    partitions: int = 1
    batch: int = 1000
    records: int = 0
    """How many to send, or to wait for; 0 where the measuring process knows."""
    per_s: int = 0
    """At what pace to send; 0 for as fast as can be."""
    begun_path: str = ""
    """Where it says that the first call has begun."""
    url: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that give it to a process."""
        return {
            VARIABLE: msgspec.json.encode(self).decode(),
            "STREAMWORKER_REDIS_URL": self.url,
            # What `streamworker dev` may have set would win.
            "STREAMWORKER_DEV_REDIS_URL": self.url,
        }


class Begun(msgspec.Struct):
    """The first call: when it was, and with how many records."""

    at_s: float
    records: int


def task_of_this_process() -> Task:
    """Return what this process is to do."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Task)


def tell(path: str, what: msgspec.Struct) -> None:
    """Write a file that is there at once or not at all."""
    made = Path(f"{path}.new")
    made.write_bytes(msgspec.json.encode(what))
    made.rename(path)


class Sent(msgspec.Struct):
    """What a sender reached."""

    per_s: float


class RowRates(msgspec.Struct):
    """What one process reached with rows: sending them, handling them, and both at once."""

    send_per_s: float
    handle_per_s: float
    both_per_s: float


class Delays(msgspec.Struct):
    """How late records were, from before the send to the handler."""

    p50_ms: float
    p99_ms: float


WARM_UP = 500
"""Records whose delay is not counted: connections are made, and code is loaded."""


FIRST = ".first"
"""End of the file's name that tells that the first record has arrived."""


class DelayTally:
    """Collects how late records were, and tells when it has all of them.

    Parameters
    ----------
    path
        Where it tells.
    records
        How many there will be.
    """

    def __init__(self, path: str, records: int) -> None:
        self._path = path
        self._left = records
        self._ns: list[int] = []

    def add(self, sent_ns: int) -> None:
        """Take one record that has just arrived."""
        if not self._ns:
            tell(self._path + FIRST, Begun(time.monotonic(), 1))
        self._ns.append(time.monotonic_ns() - sent_ns)
        self._left -= 1
        if self._left == 0:
            late = sorted(self._ns[min(WARM_UP, len(self._ns) // 2) :])
            p50, p99 = (late[min(len(late) - 1, len(late) * p // 100)] / 1e6 for p in (50, 99))
            tell(self._path, Delays(p50, p99))


class Pace:
    """Lets records go at an even pace, and late ones at once.

    Parameters
    ----------
    per_s
        How many in a second.
    """

    def __init__(self, per_s: int) -> None:
        self._step_s = 1 / per_s
        self._due_s = time.monotonic()

    def pause_s(self) -> float:
        """Return how long to wait before the next one; 0 where it is late."""
        self._due_s += self._step_s
        return max(0.0, self._due_s - time.monotonic())


class Tally:
    """Says once, in a file, that the first records are there.

    The clock is the machine's: all its processes read the same.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 0

    def add(self, records: int) -> None:
        """Count the records of one call."""
        if not self.count:
            tell(self._path, Begun(time.monotonic(), records))
        self.count += records
