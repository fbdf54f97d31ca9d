"""The table of what kills and is no record: timers, resources and middleware, while records flow.

One worker at a time runs, and another one begins at once when it has died. A cell holds if four workers die
at most, and then what kills is held back, the commands name it, no record is accused, and each is handled
once an operator has put it right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis

from streamworker.core.ownership.tries import DEATHS_MIN
from streamworker.redisio.group.risks import deaths_in
from tests.chaos.forked import Forge
from tests.chaos.killers import CELL_S, DEATHS_MAX, PROTOCOLS, Lives, end, side_by_side
from tests.chaos.others_app import KINDS, STREAM, Item, declare
from tests.helpers import wait_for, whole_lines

RECORDS = 30
SHOWN = "import os\nfrom tests.chaos.others_app import make_app\napp = make_app(os.environ)\n"
"""The module that commands are given."""


@dataclass(frozen=True)
class Cell:
    protocol: str
    kind: str
    variant: str = ""
    """``static``: workers with a static id."""

    @property
    def name(self) -> str:
        return "-".join((self.protocol, *self.kind.split(), self.variant)).rstrip("-")


@dataclass(frozen=True)
class Row:
    """What came out of a cell."""

    cell: Cell
    deaths: int
    letters: int
    accused: Sequence[str]
    """What locks say that accuses a record."""
    unnamed: Sequence[str]
    """Commands that do not say what is held back."""
    held_up: int
    """Records of the processor beside it that waited nevertheless."""
    lag: int
    code: int | None
    """How the last worker ended that was asked to; None if all died."""
    seconds: float

    @property
    def holds(self) -> bool:
        wrong = self.letters or self.accused or self.unnamed or self.held_up or self.lag or self.code != 0
        return DEATHS_MIN <= self.deaths <= DEATHS_MAX and not wrong

    def __str__(self) -> str:
        cell, unnamed = self.cell, " ".join(self.unnamed) or "none"
        return (
            f"{cell.protocol:<10} {cell.kind:<23} {cell.variant:<6} deaths {self.deaths}  "
            f"letters {self.letters}  accused {len(self.accused)}  unnamed by {unnamed}  "
            f"held up {self.held_up}  lag {self.lag}  {self.seconds:4.0f} s  "
            f"{'holds' if self.holds else 'FAILS'}"
        )


def cells() -> list[Cell]:
    """Return the table; only the membership protocol has static ids."""
    return [
        *(Cell(protocol, kind) for protocol in PROTOCOLS for kind in KINDS),
        *(Cell("membership", kind, "static") for kind in KINDS),
    ]


def run_all(them: Sequence[Cell], forge: Forge, url: str, folder: Path) -> list[Row]:
    """Run cells side by side."""
    return side_by_side(lambda cell: _Run(cell, forge, url, folder).row(), them)


class _Run:
    def __init__(self, cell: Cell, forge: Forge, url: str, folder: Path) -> None:
        self.cell, self.forge, self.folder = cell, forge, folder / cell.name
        self.folder.mkdir()
        (self.folder / "shown.py").write_text(SHOWN)
        self.what = KINDS[cell.kind]
        self.deaths = self.folder / "deaths"
        self.lives = Lives(
            forge, url, cell.name, cell.protocol, cell.variant, self.folder,
            WORKER_APP="tests.chaos.others_app",
            OTHERS_KIND=cell.kind,
            OTHERS_DEATHS=str(self.deaths),
            COLUMNS="400",
        )  # fmt: skip
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def row(self) -> Row:
        self.lives.send(declare, [Item(f"k{n}", n) for n in range(RECORDS)])
        worker = self.lives.until(self._is_held_back, DEATHS_MAX + DEATHS_MIN, OTHERS_KILLS="yes")
        unnamed, held_up = list[str](), 0
        accused = [lock.get("reason", "") or "deaths" for lock in self._locks() if _accuses(lock)]
        if worker is not None:
            unnamed = [each for each in self._commands() if not self._names(each)]
            held_up = 0 if self.cell.kind == "resource of a worker" else self._lag("two")
            self._put_right()
            wait_for(lambda: not (self._lag("one") or self._lag("two")), "all are handled", CELL_S)
        code = end(worker)
        letters = sum(self.client.xlen(key) for key in self._keys("dead:*"))
        lag = self._lag("one") + self._lag("two")
        deaths = len(whole_lines(self.deaths))
        return Row(self.cell, deaths, letters, accused, unnamed, held_up, lag, code, self.lives.seconds)

    def _is_held_back(self) -> bool:
        """Whether it is, and the records that may go on have done so."""
        its = [cast(dict[str, str], self.client.hgetall(key)) for key in self._keys("risks")]
        died = [
            deaths_in({f.encode(): v.encode() for f, v in each.items()}).get(self.what, 0) for each in its
        ]
        if max(died, default=0) < DEATHS_MIN:
            return False
        if self.cell.kind == "resource of a worker":
            return bool(self.lives.logged("start_delayed"))
        by_time = self.cell.kind.startswith(("timer", "end"))
        waits = ["one", "two"] if by_time else ["two"]
        return not any(self._lag(each) for each in waits)

    def _commands(self) -> list[str]:
        """Return those that show it; what the app's timers are about is no group that ``status`` shows."""
        timers = ["timers"] if self.cell.kind.startswith("timer") else []
        return ["doctor", *timers, *(["status"] if self.cell.kind != "timer of the app" else [])]

    def _names(self, command: str) -> bool:
        said = self._tells(command, "shown:app")
        return "held back: " in said and self.what.split()[1] in said

    def _put_right(self) -> None:
        self.deaths.with_suffix(".right").touch()
        timer = self.cell.kind.startswith("timer")
        self._tells(*(("timers", "run-now", "shown:sweep") if timer else ("retry", "shown:one")))

    def _tells(self, *arguments: str) -> str:
        log = self.folder / "-".join(each.replace(":", "-") for each in arguments)
        self.forge.run(arguments, cwd=self.folder, environ=self.lives.environ, log_path=log).wait(CELL_S)
        return log.read_text()

    def _keys(self, ending: str) -> list[str]:
        return cast(list[str], self.client.keys(f"sw:{{{self.cell.name}.*}}:{ending}"))

    def _locks(self, processor: str = "*") -> list[dict[str, str]]:
        keys = self.client.keys(f"sw:{{{self.cell.name}.{STREAM}.*}}:lock:{processor}")
        return [cast(dict[str, str], self.client.hgetall(key)) for key in cast(list[Any], keys)]

    def _lag(self, processor: str) -> int:
        return RECORDS - sum(int(lock.get("entries", 0)) for lock in self._locks(processor))


def _accuses(lock: Mapping[str, str]) -> bool:
    """Whether a lock counts more than one death against a record, or is halted for them.

    One death may count against the records of several partitions of the process, once each.
    """
    at, _, deaths = lock.get("deaths", "").partition(" ")
    counts = at == lock.get("checkpoint") and deaths not in ("", "0", "1")
    return counts or "call of this record" in lock.get("reason", "")
