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


class Tally:
    """Says once, in a file, that the first records are there.

    The clock is the machine's: all its processes read the same.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.count = 0

    def add(self, records: int) -> None:
        """Count the records of one call."""
        if not self.count:
            text = msgspec.json.encode(Begun(time.monotonic(), records))
            made = self._path.with_suffix(".new")
            made.write_bytes(text)
            made.rename(self._path)
        self.count += records
