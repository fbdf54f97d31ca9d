"""What CI leaves out, in parts of at most ten minutes on two cores.

``make nightly`` runs all of them, and ``make nightly PART=storm`` one. Each ``.ci/run`` ends with one.
Nothing is kept between runs of CI, so the time of the commit chooses it: each part has the commits of four
hours, :data:`SLOT_S`. Landings lie three hours apart, so few slots pass without one. The number of commits
would not do: a landing adds any number of them, and by chance some part would wait for a week. Nor would the
clock: who tries a commit, or repeats a run, is to get the part that CI ran.

A soak test is in the part that has the beginning of its id; ``tests/test_nightly.py`` insists on exactly one.
A test that takes more than ten minutes is cut by its parameters, and they go to several parts.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import again

HERE = Path(__file__).parent.parent
CHOSEN = "NIGHTLY_PART"
"""Names the part to pytest, for which this module is a plugin then."""
TURN = "NIGHTLY_TURN"
"""Tells a test how many turns all parts had before, so that each turn may draw something else."""
SLOT_S = 4 * 60 * 60
LIMIT_S = 20 * 60
"""A part that takes longer has failed: it hangs, or has less than one core."""

KILLERS = (
    "tests/chaos/test_killers.py::"
    "test_of_records_that_kill_each_ends_four_workers_at_most_in_each_protocol_and_mode"
)
STORE = "tests/contract/test_store.py::test_the_store_replies_and_keeps_what_a_server_does"
SERVERS = ("valkey", "redis7")

PARTS: dict[str, tuple[str, ...]] = {
    "python-3.13": (),
    "contract": (
        *(f"tests/contract/test_{letter}" for letter in "acdfloprt"),
        *(f"{STORE}[{server}-thousand_{n}" for server in SERVERS for n in (1, 2)),
    ),
    "killers": (
        *(f"{KILLERS}[{beginning}" for beginning in ("membership", "lease-d")),
        "tests/chaos/test_others.py",
    ),
    "scripts": (
        *(f"tests/contract/test_{name}" for name in ("ends", "scripts", "seal", "snapshot", "statetables")),
        "tests/contract/test_store.py::test_each",
        *(f"{STORE}[{server}-thousand_0" for server in SERVERS),
    ),
    "faults": ("tests/chaos/test_rows_data.py", "tests/chaos/test_rows_network.py"),
    "faults-2": (
        *("tests/chaos/test_rows_server.py", "tests/chaos/test_rows_workers.py"),
        *("tests/chaos/test_cluster_kinds.py", "tests/chaos/test_archived.py"),
    ),
    "killers-2": (
        f"{KILLERS}[claim",
        *(f"{KILLERS}[lease-{letter}" for letter in "bckrs"),
        "tests/chaos/test_grown.py",
    ),
    "failovers": ("tests/durability/", "tests/cluster/", "tests/sentinel/"),
    "meddling": ("tests/contract/test_m",),
    "storm": (
        *("tests/chaos/test_soak.py::test_the_soak[whole", "tests/chaos/test_soak.py::test_the_soak_on"),
    ),
    "mistakes": (
        *("tests/chaos/test_soak.py::test_the_soak[half", "tests/chaos/test_soak.py::test_each"),
    ),
    "security": ("tests/security/",),
    "simulation": ("tests/archive/", "tests/simulation/"),
    "chains": ("tests/chains/", "tests/model/"),
    "machine": (
        *("tests/benchmarks/", "tests/deploy/", "tests/dev/", "tests/rebalance/", "tests/runtime/"),
    ),
    "spark": tuple(f"tests/spark/test_{name}" for name in ("b", "m", "pa", "s", "tr", "w")),
    "spark-killed": tuple(f"tests/spark/test_{name}" for name in ("c", "d", "k", "py")),
    "tutorials": tuple(f"tests/spark/test_{name}" for name in ("g", "i", "l", "o", "tu")),
    "wheel": ("tests/test_wheel.py", "tests/chaos/test_ends.py", "tests/chaos/test_windows.py"),
}  # fmt: skip
"""The beginnings of the ids of each part's tests. Their number has no factor in common with that of a day's
slots: otherwise the hours at which nobody works would always fall to the same parts."""

COMMANDS = {"python-3.13": ["make", "test-no-spark"]}
"""What is no soak test: all of ``make test`` that needs no Spark, on that version of Python."""


def parts_of(test: str) -> list[str]:
    """Return the parts in which a test is.

    >>> parts_of("tests/chaos/test_others.py::test_what_kills[claim]")
    ['killers']
    """
    return [name for name, beginnings in PARTS.items() if test.startswith(beginnings)]


def due(commit_s: int) -> str:
    """Return the part that a commit of some time is to run."""
    return list(PARTS)[commit_s // SLOT_S % len(PARTS)]


def turn(commit_s: int) -> int:
    """Return how many turns all parts had before a commit of some time."""
    return commit_s // SLOT_S // len(PARTS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other parts."""
    rest = [item for item in items if os.environ[CHOSEN] not in parts_of(item.nodeid)]
    config.hook.pytest_deselected(items=rest)
    items[:] = [item for item in items if item not in rest]


def main(names: Sequence[str]) -> int:
    """Run some parts, or all; say of each how long it took, and at last which have failed."""
    if list(names) == ["--due"]:
        print(due(_commit_s()))
        return 0
    if unknown := set(names) - {*PARTS}:
        print(f"There is no part {', '.join(sorted(unknown))}. There are: {' '.join(PARTS)}", file=sys.stderr)
        return 2
    failed, environ = [], {**os.environ, TURN: str(turn(_commit_s()))}
    for name in names or PARTS:
        print(f"--- nightly part {name}", flush=True)
        began_s = time.monotonic()
        code = 0
        for command in _commands(name):
            ran = subprocess.run(command, cwd=HERE, env={**environ, CHOSEN: name}, check=False).returncode
            code = code or (0 if ran == pytest.ExitCode.NO_TESTS_COLLECTED else ran)
        minutes, seconds = divmod(round(time.monotonic() - began_s), 60)
        why = f" ({LIMIT_S // 60} minutes at most)" if code == TIMED_OUT else ""
        print(
            f"--- nightly part {name} {'failed' if code else 'passed'} after {minutes}:{seconds:02}{why}",
            flush=True,
        )
        failed += [name] if code else []
    if failed:
        print(f"NIGHTLY FAILED: {' '.join(failed)} (again: make nightly PART={failed[0]})", flush=True)
    return 1 if failed else 0


TIMED_OUT = 124
"""The exit code of ``timeout``."""


def _commands(name: str) -> list[list[str]]:
    """Return what runs a part: what measures time by itself, and then the rest."""
    limit = ["timeout", "--foreground", "--signal=INT", "--kill-after=60", str(LIMIT_S)]
    if name in COMMANDS:
        return [[*limit, *COMMANDS[name]]]
    files = [path.relative_to(HERE).as_posix() for path in sorted(HERE.glob("tests/**/test_*.py"))]
    its = [file for file in files if file.startswith(tuple(each.partition("::")[0] for each in PARTS[name]))]
    module = "tests.again" if again.VARIABLE in os.environ else "pytest"
    tests = [*limit, sys.executable, "-m", module, "-p", "tests.nightly"]
    alone = [file for file in its if "mark.alone" in (HERE / file).read_text("utf-8")]
    rest = [*tests, "-m", "soak and not alone", "-n", "2", "--dist", "worksteal", *its]
    return [*([[*tests, "-m", "soak and alone", *alone]] if alone else []), rest]


def _commit_s() -> int:
    """Return the time of the commit, or now where there is no git."""
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return int(shown.stdout or time.time())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
