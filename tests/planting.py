"""Known mistakes, planted in the code: a check that has caught nothing is not trusted.

The files of ``tests/planted`` hold the mistakes, as text::

    in streamworker/declaring/table.py

    # a key of another partition is written
    found by test: tests/fundamentals/test_12_tables.py::test_a_key_of_another_partition_is_refused
    - (partition := partition_of(key, field)) != here:
    + (partition := partition_of(key, field)) is None:

The file after ``in`` is that of all mistakes below it. The text after ``-`` stands in it exactly once, and
the text after ``+`` takes its place; a mistake may have several of both. Each ``found by`` names a kind of
check, and after the colon what that check needs: ``each_found_by`` gives its mistakes to a test.

``planted`` makes a mistake in this process: the functions of a Python module get the code of the wrong text,
and the scripts of Redis the text that they have with it. ``pytest -p tests.planting --plant NAME`` runs tests
with a mistake. ``python -m tests.planting`` prints where each mistake, each promise and each fault is proven.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import CO_OPTIMIZED, isclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from streamworker.redisio import scripts
from streamworker.redisio.group.operations import SCRIPTS
from tests.chaos.rows import ROWS

ROOT = Path(__file__).parents[1]
LUA = "streamworker/redisio/lua/"


@dataclass(frozen=True, slots=True)
class Plant:
    """One mistake."""

    name: str
    file: str
    edits: list[tuple[str, str]]
    """Right texts and wrong texts."""
    found_by: dict[str, str]
    """Kinds of checks, and what each needs."""

    @property
    def wrong_text(self) -> str:
        """Return the text of the file with the mistake; raise ValueError if it does not fit the file."""
        text = (ROOT / self.file).read_text("utf-8")
        for right, wrong in self.edits:
            if (times := text.count(right)) != 1:
                raise ValueError(
                    f"The planted mistake {self.name!r} no longer fits {self.file}. Change its lines in "
                    f"tests/planted: this text stands there {times} times, and not once.\n{right}"
                )
            text = text.replace(right, wrong)
        return text


def read(text: str) -> Iterator[Plant]:
    """Read the mistakes of a file."""
    file = ""
    for block in text.split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("in "):
            file = lines.pop(0).removeprefix("in ")
        if lines:
            yield _plant(file, lines)


def _plant(file: str, lines: list[str]) -> Plant:
    name, found_by, before = "", dict[str, str](), ""
    edits: list[tuple[list[str], list[str]]] = []
    for line in lines:
        mark, text = line[:2], line[2:]
        if mark == "# ":
            name = text
        elif line.startswith("found by "):
            check, _, how = line.removeprefix("found by ").partition(": ")
            found_by[check] = how
        elif mark in ("- ", "+ "):
            if mark != before == "+ " or not edits:
                edits.append(([], []))
            edits[-1][mark == "+ "].append(text)
        else:
            raise ValueError(f"A line of the planted mistake {name!r} cannot be read: {line!r}")
        before = mark
    return Plant(name, file, [("\n".join(right), "\n".join(wrong)) for right, wrong in edits], found_by)


PLANTS = {
    plant.name: plant
    for path in sorted(Path(__file__).with_name("planted").glob("*.txt"))
    for plant in read(path.read_text("utf-8"))
}
"""All mistakes by name."""


def each_found_by(check: str) -> pytest.MarkDecorator:
    """Run a test with each ``plant`` that a kind of check finds."""
    found = {name: plant for name, plant in PLANTS.items() if check in plant.found_by}
    return pytest.mark.parametrize("plant", found.values(), ids=found)


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Make a mistake in this process, and take it back."""
    take_back = put_in(plant)
    try:
        yield
    finally:
        take_back()


def put_in(plant: Plant) -> Callable[[], None]:
    """Make a mistake in this process; return what takes it back."""
    if plant.file.startswith(LUA):
        changed = _changed_scripts(plant.file.removeprefix(LUA), plant.wrong_text)
    elif plant.file.endswith(".lua"):
        changed = _changed_store(Path(plant.file).name, plant.wrong_text)
    else:
        changed = _changed_functions(plant)
    if not changed:
        raise ValueError(f"The planted mistake {plant.name!r} changes no function and no script.")
    before = [(where, name, getattr(where, name)) for where, name, _ in changed]
    for change in changed:
        object.__setattr__(*change)

    def take_back() -> None:
        for each in before:
            object.__setattr__(*each)

    return take_back


def _changed_scripts(changed: str, text: str) -> list[tuple[Any, str, Any]]:
    """Return what a file of Lua changes in the scripts that consist of it: their text, and its digest."""
    true = scripts._read
    scripts._read = lambda name: text if f"{name}.lua" == changed else true(name)
    try:
        loaded = [(script, scripts.load(script.name)) for script in SCRIPTS]
    finally:
        scripts._read = true
    return [
        (script, name, getattr(new, name))
        for script, new in loaded
        if script.text != new.text
        for name in ("text", "sha")
    ]


def _changed_store(changed: str, text: str) -> list[tuple[Any, str, Any]]:
    """Return what a file of Lua changes in the simulator's store: its functions."""
    from tests.simulator.store import lua  # only here, since it takes a while

    texts = [text if name == changed else lua.read(name) for name in lua.SOURCES]
    return [(lua.LUA, name, new) for name, new in vars(lua.Lua(*texts)).items()]


def _changed_functions(plant: Plant) -> list[tuple[Any, str, Any]]:
    """Return the code of those functions of a module that a change of its text changes."""
    path = ROOT / plant.file
    module = import_module(plant.file.removesuffix(".py").replace("/", "."))
    old, new = (
        list(_codes(compile(text, path, "exec"))) for text in (path.read_text("utf-8"), plant.wrong_text)
    )
    changed = {before: after for before, after in zip(old, new, strict=True) if before != after}
    return [
        (function, "__code__", changed[function.__code__])
        for function in _functions(module, module.__name__)
        if function.__code__ in changed
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Return the code of functions and methods in the order of the text, without those within functions."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from [each] if each.co_flags & CO_OPTIMIZED else _codes(each)


def _functions(where: Any, module: str) -> Iterator[FunctionType]:
    """Return the functions of a module, and the methods of its classes."""
    for each in list(vars(where).values()):
        if isclass(each) and each.__module__ == module:
            yield from _functions(each, module)
        for name in ("__func__", "fget", "func", "__wrapped__"):
            each = getattr(each, name, each)  # What a property or a decorated function is made from.
        if isinstance(each, FunctionType) and each.__module__ == module:
            yield each


# -- tests that run with a mistake ---------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer to make a mistake, with ``-p tests.planting``."""
    parser.addoption("--plant", choices=PLANTS, help="a mistake of tests/planted, which the tests run with")


def pytest_configure(config: pytest.Config) -> None:
    """Make it."""
    if name := config.getoption("--plant"):
        put_in(PLANTS[name])


# -- the table -----------------------------------------------------------------------------------


def files_of_checks() -> dict[str, str]:
    """Return the file of tests that looks for the mistakes of each kind of check."""
    return {
        check: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for check in re.findall(r'^@each_found_by\("(.+?)"\)', path.read_text("utf-8"), re.MULTILINE)
    }


def homes() -> Iterator[tuple[str, str, list[str]]]:
    """Return where each mistake, each promise and each fault is proven."""
    files = files_of_checks()
    for plant in PLANTS.values():
        found_by = plant.found_by.items()
        tests = [how if check == "test" else f"{files[check]} ({check}: {how})" for check, how in found_by]
        yield plant.name, plant.file, tests
    guarantees = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    for promise, name, text in re.findall(r"^## (I\d+): (.+)\n((?:(?!## ).*\n)*)", guarantees, re.MULTILINE):
        tests = re.findall(r"Test: `(\w+)`", text)
        yield promise, name, [f"tests/test_guarantees.py::{test}" for test in tests]
    for fault, row in ROWS.items():
        yield fault, row.fault, list(row.tests)


def main() -> None:
    """Print the table; fail if one has no home."""
    table = list(homes())
    for name, where, tests in table:
        print(name, where, "; ".join(tests) or "NOWHERE", sep=" | ")
    print(f"{len(PLANTS)} planted mistakes, {len(table) - len(PLANTS)} promises and faults")
    sys.exit(any(not tests for _, _, tests in table))


if __name__ == "__main__":
    main()
