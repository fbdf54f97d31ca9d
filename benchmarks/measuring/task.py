"""What the bench and a measured process share: its task, its records, and the results that it writes."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import anyio
import msgspec

VARIABLE = "STREAMWORKER_BENCH_TASK"


class Task(msgspec.Struct, kw_only=True):
    """The task of one process in one run."""

    app: str
    mode: str
    group: str
    """Group that only this run uses."""
    keys: list[str]
    """Keys of the streams, for programs that use Redis directly."""
    stream: str = "events"
    partitions: int = 1
    batch: int = 1000
    records: int = 0
    """Number of records to send or to wait for; 0 if only the bench needs it."""
    per_s: int = 0
    """Rate of sends; 0 for as fast as possible."""
    begun_path: str = ""
    """File that the process writes at its first call, or with its result."""
    url: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables that pass the task to a process."""
        return {
            VARIABLE: msgspec.json.encode(self).decode(),
            "STREAMWORKER_REDIS_URL": self.url,
            # A value that `streamworker dev` has set would take precedence.
            "STREAMWORKER_DEV_REDIS_URL": self.url,
        }


class Begun(msgspec.Struct):
    """Time and number of records of the first call."""

    at_s: float
    records: int


class BenchEvent(msgspec.Struct):
    """One record.

    >>> msgspec.json.encode(BenchEvent(1, "k1", 1.5))
    b'{"number":1,"key":"k1","amount":1.5,"sent_ns":0}'
    """

    number: int
    key: str
    amount: float
    sent_ns: int = 0
    """Time of the send by the machine's monotonic clock; 0 unless latency is measured."""


KEYS = 1000
"""Number of keys of the records."""


def events(count: int, *, first: int = 0) -> Iterator[BenchEvent]:
    """Make records whose keys take turns."""
    return (BenchEvent(n, f"customer-{n % KEYS}", n * 0.25) for n in range(first, first + count))


def payloads(count: int, *, first: int = 0) -> Iterator[bytes]:
    """Make records as they are stored in Redis."""
    return map(msgspec.json.Encoder().encode, events(count, first=first))


def task_of_this_process() -> Task:
    """Return the task of this process."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Task)


def run_task(main: Callable[[Task], Awaitable[None]]) -> None:
    """Do the task of this process, on uvloop where it is installed, as a worker does."""
    backend_options = {"use_uvloop": find_spec("uvloop") is not None}
    anyio.run(main, task_of_this_process(), backend_options=backend_options)


def tell(path: str, what: msgspec.Struct) -> None:
    """Write a file atomically."""
    made = Path(f"{path}.new")
    made.write_bytes(msgspec.json.encode(what))
    made.rename(path)


class SentRecords(msgspec.Struct):
    """The rate of a sender."""

    per_s: float


class RowRates(msgspec.Struct):
    """The rates of one process: sending rows, handling rows, and both at once."""

    send_per_s: float
    handle_per_s: float
    both_per_s: float


class Delays(msgspec.Struct):
    """Percentiles of the time from before a send to the handler."""

    p50_ms: float
    p99_ms: float


WARM_UP = 500
"""First records, whose delay is not counted: the processes open connections and load code."""


FIRST = ".first"
"""Suffix of the file that reports the arrival of the first record."""


class DelayTally:
    """Collects the delays of records, and writes their percentiles to a file after the last record."""

    def __init__(self, path: str, records: int) -> None:
        self._path = path
        self._left = records
        self._ns: list[int] = []

    def add(self, sent_ns: int) -> None:
        """Add the delay of a record that has just arrived."""
        if not self._ns:
            tell(self._path + FIRST, Begun(time.monotonic(), 1))
        self._ns.append(time.monotonic_ns() - sent_ns)
        self._left -= 1
        if self._left == 0:
            late = sorted(self._ns[min(WARM_UP, len(self._ns) // 2) :])
            p50, p99 = (late[min(len(late) - 1, len(late) * p // 100)] / 1e6 for p in (50, 99))
            tell(self._path, Delays(p50, p99))


class Pace:
    """A steady rate of sends, in records a second; late records are sent at once."""

    def __init__(self, per_s: int) -> None:
        self._step_s = 1 / per_s
        self._due_s = time.monotonic()

    def pause_s(self) -> float:
        """Return the seconds until the next send is due; 0 if it is late."""
        self._due_s += self._step_s
        return max(0.0, self._due_s - time.monotonic())


class Tally:
    """Counts records, and writes a file at the first call.

    The time in the file is from the machine's monotonic clock, which all its processes share.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 0

    def add(self, records: int) -> None:
        """Count the records of one call."""
        if not self.count:
            tell(self._path, Begun(time.monotonic(), records))
        self.count += records
