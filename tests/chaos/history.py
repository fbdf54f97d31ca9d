"""The history of a run: what each process wrote down on local disk, read as one list of events.

Each process appends lines of JSON to a file of its own, never through the Redis that is tried. The
kernel has a line once it is written, so a process that is killed loses at most the line it is writing.
What an app's own code does (sending, handling) it writes with :class:`Recorder`; what a worker does
inside (commits, locks) it says in its log at level debug, which is read here too; faults are written by
whoever makes them.

Nothing of the project is imported here, since the checker reads histories with this module.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Fields = dict[str, Any]

LOGGED = {
    "commit_sent": "commit",
    "commit_answered": "commit",
    "lock_acquired": "lock",
    "lock_released": "lock",
    "membership_lost": "member",
}
"""Lines of a worker's log that are events of the history, and their kind."""

SPEAKS = ("warning", "error", "critical")


def monotonic_ms() -> float:
    """Return the clock that all processes of a machine share, and that nobody sets."""
    return time.monotonic() * 1000


class Recorder:
    """Writes one process's history."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: a line is the kernel's, or was not written at all.
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "at": round(monotonic_ms(), 1), "wall": round(time.time(), 3), **fields}
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """ms, by the monotonic clock of the machine."""
    kind: str
    """``send``, ``exec``, ``commit``, ``lock``, ``member``, ``fault`` or ``said``."""
    who: str
    """The file that it was written in, which is a process."""
    fields: Fields = field(compare=False)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)


def read_history(folder: Path) -> list[Event]:
    """Read all files of a folder, ordered by time: ``*.jsonl`` and the workers' ``*.log``."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        events += _recorded(path.stem, _objects(path))
    for path in sorted(folder.glob("*.log")):
        events += _logged(path.stem, _objects(path))
    return sorted(events, key=lambda event: event.at)


def _objects(path: Path) -> Iterator[Fields]:
    with path.open("rb") as file:
        for line in file:
            # The last line of a process that was killed may be half a line.
            if line.startswith(b"{") and line.endswith(b"}\n"):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def _recorded(who: str, objects: Iterable[Fields]) -> Iterator[Event]:
    for fields in objects:
        yield Event(fields.pop("at"), fields.pop("kind"), who, fields)


def _logged(who: str, objects: Iterable[Fields]) -> Iterator[Event]:
    """Turn a worker's log into events; lines without the monotonic clock are placed by their wall clock."""
    lines = list(objects)
    group_of = {line["member"]: line["processor"] for line in lines if line.get("event") == "joined"}
    ahead_ms = time.time() * 1000 - monotonic_ms()
    for fields in reversed(lines):
        if "at_ms" in fields:
            ahead_ms = _wall_ms(fields) - fields["at_ms"]
    for fields in lines:
        name = fields.get("event", "")
        if "at_ms" in fields:
            at = fields["at_ms"]
            ahead_ms = _wall_ms(fields) - at
        else:
            at = _wall_ms(fields) - ahead_ms
        if name in LOGGED:
            group = group_of.get(fields.get("owner"), "")
            yield Event(at, LOGGED[name], who, {**fields, "processor": group, "what": name.partition("_")[2]})
        elif fields.get("level") in SPEAKS:
            yield Event(at, "said", who, fields)


def _wall_ms(fields: Fields) -> float:
    try:
        return datetime.fromisoformat(fields["timestamp"]).timestamp() * 1000
    except (KeyError, ValueError):
        return 0.0
