"""The table of records that kill: in each cell some of them stand in a row, between innocent ones.

One worker at a time runs, and another one begins when it has died. A cell holds if each killer ends four
workers at most and is set aside, no innocent record is accused, and nothing waits at the end.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import redis

from streamworker import App
from streamworker.core.data.entries import EntryId
from streamworker.records.entries import Entries
from streamworker.redisio.group.requests import Request, make_request
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from tests.chaos.forked import Forge, Forked
from tests.chaos.killers_app import PROCESSOR, STREAM, Item, declare
from tests.chaos.times import CLAIM, FAST, LEASE
from tests.helpers import wait_for, whole_lines
from tests.stage.crew import Crew

PROTOCOLS = {"membership": FAST, "claim": CLAIM, "lease": LEASE}
POLICIES = ("dead letter", "halt")
DEATHS_MAX = 4
CELL_S = 600.0
SIDE_BY_SIDE = 5
"""Cells that run at a time; nearly all their time they wait until a dead worker is taken for dead."""
IN_FRONT, BEHIND = 2, 3
"""Innocent records before and after the killers."""

C = TypeVar("C")
R = TypeVar("R")


class Holds(Protocol):
    """A row of a table."""

    @property
    def holds(self) -> bool:
        """Whether it came out as it should."""


@dataclass(frozen=True)
class Cell:
    protocol: str
    mode: str
    killers: int
    policy: str = "dead letter"
    variant: str = ""
    """``static``: workers with a static id. ``retry``: an operator has the first one called again."""

    @property
    def name(self) -> str:
        words = (self.protocol, self.mode, self.killers, self.policy, self.variant)
        return "-".join(str(word).replace(" ", "") for word in words if word)

    @property
    def deadly(self) -> range:
        return range(IN_FRONT, IN_FRONT + self.killers)


@dataclass(frozen=True)
class Row:
    """What came out of a cell."""

    cell: Cell
    deaths: Sequence[int]
    """By killer."""
    accused: Sequence[int]
    """Innocent records that were set aside, or at which the partition halted."""
    letters: Sequence[int]
    uncalled: Sequence[int]
    """Innocent records that were never called."""
    lag: int
    code: int | None
    """How the last worker ended that was asked to; None if all died."""
    seconds: float

    @property
    def holds(self) -> bool:
        most = [DEATHS_MAX] * self.cell.killers
        if self.cell.variant == "retry":
            most[0] *= 2  # The count begins anew.
        return (
            all(deaths <= limit for deaths, limit in zip(self.deaths, most, strict=True))
            and sorted(self.letters) == list(self.cell.deadly)
            and not (self.accused or self.uncalled or self.lag or self.code)
        )

    def __str__(self) -> str:
        cell = self.cell
        return (
            f"{cell.protocol:<10} {cell.mode:<14} {cell.killers} {cell.policy:<11} {cell.variant:<6} "
            f"deaths {' '.join(map(str, self.deaths)):<7}  accused {len(self.accused)}  lag {self.lag}  "
            f"letters {len(self.letters)}  {self.seconds:4.0f} s  {'holds' if self.holds else 'FAILS'}"
        )


def cells(protocol: str, mode: str) -> list[Cell]:
    """Return the cells of a protocol and a mode."""
    found = [Cell(protocol, mode, n, policy) for n in range(1, 5) for policy in POLICIES]
    found.append(Cell(protocol, mode, 2, "halt", "retry"))
    if protocol == "membership":  # The others have no static ids.
        found += [Cell(protocol, mode, n, policy, "static") for n in (1, 2) for policy in POLICIES]
    return found


def run_all(them: Sequence[Cell], forge: Forge, url: str, folder: Path) -> list[Row]:
    """Run cells side by side, each to its end, or until more workers died than ever should."""
    return side_by_side(lambda cell: _Run(cell, forge, url, folder).row(), them)


def side_by_side(run_one: Callable[[C], R], them: Sequence[C]) -> list[R]:
    """Run cells of a table some at a time."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return list(pool.map(run_one, them))


def assert_all_hold(rows: Sequence[Holds]) -> None:
    """Print the rows of a table, and fail if one does not hold."""
    print(*rows, sep="\n")
    assert all(row.holds for row in rows), [row for row in rows if not row.holds]


class Lives(Crew):
    """The lives of a cell: one worker at a time runs, and another one begins when it has died."""

    def __init__(
        self, forge: Forge, url: str, name: str, protocol: str, variant: str, folder: Path, **environ: str
    ) -> None:
        self._name = name
        its = {
            **os.environ,
            **PROTOCOLS[protocol],
            "STREAMWORKER_REDIS_URL": url,
            "CELL": name,
            **({"STREAMWORKER_STATIC_ID": "seat-1"} if variant == "static" else {}),
            **environ,
        }
        super().__init__(forge, folder, its)
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """For how long it has run."""
        return time.monotonic() - self._began_s

    def send(self, declare: Callable[[Mapping[str, str]], tuple[App, Any]], items: Sequence[Any]) -> None:
        async def send() -> None:
            app, stream = declare(self.environ)
            async with app:
                await stream.send_many(items)

        asyncio.run(send())

    def until(self, is_over: Callable[[], bool], most: int, **environ: str) -> Forked | None:
        """Start workers until it is over, and return who lives then; None if so many have died before."""
        for life in range(most):
            # Each has a name of its own: the dead count as alive while one of their name is connected.
            self.hire(name := f"{self._name}-{life}", **environ)
            if self._survives(self.workers[name], is_over):
                return self.workers[name]
        return None

    @staticmethod
    def _survives(worker: Forked, is_over: Callable[[], bool]) -> bool:
        wait_for(lambda: not worker.running or is_over(), "a worker dies, or it is over", CELL_S)
        return worker.running


def end(worker: Forked | None) -> int | None:
    """Ask a worker to leave, and return its exit code."""
    if worker is None:
        return None
    worker.terminate()
    return worker.wait(CELL_S)


class _Run:
    def __init__(self, cell: Cell, forge: Forge, url: str, folder: Path) -> None:
        self.cell, self.url = cell, url
        self.calls = folder / f"{cell.name}.calls"
        is_single = cell.killers % 2 == 0 and not cell.mode.startswith("decode")
        self.lives = Lives(
            forge, url, cell.name, cell.protocol, cell.variant, folder,
            WORKER_APP="tests.chaos.killers_app",
            KILLERS_MODE=cell.mode,
            KILLERS_POLICY=cell.policy,
            KILLERS_SINGLE="yes" if is_single else "no",
            KILLERS_CALLS=str(self.calls),
        )  # fmt: skip
        self.keys = GroupKeys(cell.name, STREAM, PROCESSOR)
        self.client = redis.Redis.from_url(url)
        self.items = [Item(f"k{n}", n, n in cell.deadly) for n in range(IN_FRONT + cell.killers + BEHIND)]
        self.ids: list[EntryId] = []
        self.halted: list[int] = []

    def row(self) -> Row:
        self.lives.send(declare, self.items)
        stored = cast(list[Any], self.client.xrange(self.keys.events(0)))
        flat = [[name, [part for pair in fields.items() for part in pair]] for name, fields in stored]
        self.ids = [entry.id for entry in Entries.of(flat)]
        most = (DEATHS_MAX + 1) * self.cell.killers + DEATHS_MAX
        code = end(self.lives.until(self._is_done, most))
        calls = Counter(map(int, whole_lines(self.calls)))
        dead = cast(list[Any], self.client.xrange(self.keys.dead(0)))
        letters = [self.ids.index(EntryId.parse(fields[b"id"])) for _, fields in dead]
        return Row(
            self.cell,
            [calls[n] for n in self.cell.deadly],
            [n for n in {*letters, *self.halted} if n not in self.cell.deadly],
            letters,
            [item.n for item in self.items if not item.kills and not calls[item.n]],
            self._lag(),
            code,
            self.lives.seconds,
        )

    def _is_done(self) -> bool:
        if self.client.hget(self.keys.lock(0), "state") == b"halted":
            self._remove_what_halts()
            return False
        return not self._lag()

    def _lag(self) -> int:
        stored = self.client.hget(self.keys.lock(0), "checkpoint") or b"0-0"
        return sum(each > EntryId.parse(stored) for each in self.ids)

    def _remove_what_halts(self) -> None:
        """Do what an operator does: set the record aside, or have it called again first."""
        reason = cast(bytes, self.client.hget(self.keys.lock(0), "reason")).decode()
        n = next(n for n, each in enumerate(self.ids) if str(each) in reason)
        again = self.cell.variant == "retry" and not self.halted
        self.halted.append(n)
        asyncio.run(self._ask("retry" if again else "put", self.ids[n]))
        wait_for(self._is_obeyed, "the request is obeyed", CELL_S)

    def _is_obeyed(self) -> bool:
        ordered, obeyed = self.client.hmget(self.keys.lock(0), "ordered", "obeyed")
        return ordered == obeyed

    async def _ask(self, request: Request, record: EntryId) -> None:
        async with Backend.open(self.url, name="operator", call_timeout_ms=60_000) as backend:
            its = {"record": record} if request == "put" else {}
            await make_request(backend, self.keys, [0], request, who="ann", why="a test", **its)
