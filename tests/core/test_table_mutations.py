"""Every line of every transition table is needed: whatever is changed in one, something fails.

A line is taken out or leads elsewhere, the changed table is put in the place of the right one, and a
fixed set of checks is run in this process: the unit tests of what reads the table, then some
schedules of the simulator. One of them must fail.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import streamworker.core
from streamworker.core import control
from streamworker.core.ownership.lifecycle import HANDLING, TRANSITIONS, State, Trigger
from streamworker.core.ownership.merging import merged
from streamworker.core.ownership.partitions import Ownership
from streamworker.core.protocols import registry
from streamworker.core.protocols.claim.protocol import ClaimCore
from streamworker.core.protocols.lease.events import LeaseChallenged, LeaseEnded
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.membership.joining import JoinWanted
from streamworker.core.protocols.membership.worker import WorkerCore
from tests.simulator.simulation import Schedule, run

CORE = Path(streamworker.core.__file__).parent
Check = Callable[[], None]
SEEDS = 6

OF_OWNERSHIP = ("ownership", "worker")
OF_PROTOCOLS = {
    "membership": ("worker", "worker_liveness", "static_members", "weighted"),
    "claim": ("claim",),
    "lease": ("lease",),
}


def unit_tests(name: str) -> Iterator[Check]:
    """Return the tests of ``tests/core/test_<name>.py`` as calls, each with all its parameters."""
    module = import_module(f"tests.core.test_{name}")
    for test in vars(module).values():
        if not inspect.isfunction(test) or not test.__name__.startswith("test_"):
            continue
        if not hasattr(test, "hypothesis"):
            for arguments in _parameters(test):
                yield lambda test=test, arguments=arguments: test(**arguments)  # type: ignore[misc]


def _parameters(test: FunctionType) -> Iterator[dict[str, Any]]:
    choices: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, values = mark.args
        listed = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
        rows = [value if len(listed) > 1 else (value,) for value in values]
        choices.append([dict(zip(listed, row, strict=True)) for row in rows])
    for chosen in product(*choices):
        yield {name: value for row in chosen for name, value in row.items()}


def schedules(protocol: str) -> Iterator[Check]:
    """Return some schedules of the simulator; each must break no promise."""

    def check(seed: int) -> None:
        outcome = run(Schedule(seed=seed, protocol=protocol, workers=3, partitions=6, minutes=0.3))
        assert not outcome.violations, outcome.violations

    for seed in range(SEEDS):
        yield lambda seed=seed: check(seed)  # type: ignore[misc]


MESSAGES: tuple[control.ControlMessage, ...] = (
    control.GroupChanged(7, "join", "w2", (4, 5)),
    control.PartitionsReleased((1, 2), "w1.a", 7),
    control.PartitionsAcquired((1, 2), "w1.a", 7),
    control.RequestMade("pause", (3,), (9,), "ann", "the mail server moves"),
    LeaseChallenged((3,), "w1.a", 7),
    LeaseEnded((3,), "w1.a", 7),
    JoinWanted("w3", '{"id":"w3.b"}'),
    control.StreamGrown("8+12", "ann"),
)


def there_and_back(message: control.ControlMessage) -> None:
    """Read a message as it was written; ``test_control`` does so with any, and not as fast."""
    assert registry.from_fields(message.fields()) == message


def checks(tests: Sequence[str], protocols: Sequence[str]) -> list[Check]:
    """Return the fixed set: unit tests first, since they are quicker."""
    found = [check for name in tests for check in unit_tests(name)]
    return found + [check for protocol in protocols for check in schedules(protocol)]


CHECKS = {
    "lifecycle": checks(OF_OWNERSHIP, ["membership"]),
    **{protocol: checks(tests, [protocol]) for protocol, tests in OF_PROTOCOLS.items()},
    "ownership": checks(OF_OWNERSHIP, ["membership"]),
    "merging": checks(["merging"], []),
    "control": [*unit_tests("control"), *(lambda each=each: there_and_back(each) for each in MESSAGES)],
}


def is_noticed(table: str) -> bool:
    """Run a table's checks until one fails."""
    known = CHECKS[table]
    for index, check in enumerate(known):
        try:
            check()
        except Exception:
            known.insert(0, known.pop(index))  # it will notice the next change as well, perhaps
            return True
        except pytest.fail.Exception:
            return True
    return False


@pytest.mark.parametrize("table", list(CHECKS))
def test_nothing_is_noticed_while_nothing_is_changed(table: str) -> None:
    """Else all that follows would show nothing."""
    assert not is_noticed(table)


# -- the table of a partition's life -----------------------------------------------------------

LINES = [(state, trigger) for state, row in TRANSITIONS.items() for trigger in row]


@pytest.mark.parametrize(("state", "trigger"), LINES)
def test_a_transition_that_is_missing_is_noticed(
    state: State, trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them happens."""
    monkeypatch.delitem(TRANSITIONS[state], trigger)
    assert is_noticed("lifecycle")


@pytest.mark.parametrize(("state", "trigger"), LINES)
@pytest.mark.parametrize("after", State)
def test_a_transition_that_leads_elsewhere_is_noticed(
    state: State, trigger: Trigger, after: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it leads."""
    if after is not TRANSITIONS[state][trigger]:
        monkeypatch.setitem(TRANSITIONS[state], trigger, after)
        assert is_noticed("lifecycle")


@pytest.mark.parametrize("state", [state for state in State if state is not State.IDLE])
def test_a_state_that_is_wrong_about_having_a_runner_is_noticed(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out where it belongs, or put in where it does not. An idle partition is not even kept."""
    monkeypatch.setattr("streamworker.core.ownership.partitions.HANDLING", HANDLING ^ {state})
    assert is_noticed("lifecycle")


# -- the table of control messages -------------------------------------------------------------


@pytest.mark.parametrize("kind", list(registry.MESSAGES))
def test_a_kind_of_message_that_is_missing_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is read."""
    monkeypatch.delitem(registry.MESSAGES, kind)
    assert is_noticed("control")


# -- which event leads to what -------------------------------------------------------------------

FUNCTIONS: dict[Callable[..., Any], str] = {
    WorkerCore._dispatch: "membership",
    ClaimCore._dispatch: "claim",
    LeaseCore._dispatch: "lease",
    LeaseCore._translated: "lease",
    Ownership.handle: "ownership",
    Ownership._answered: "ownership",
    merged: "merging",
}
"""Those that are one ``match`` from events to what is done, and whose checks they have."""


def test_no_match_of_the_core_is_forgotten() -> None:
    """A new one has to be listed above."""
    found = {
        (path.relative_to(CORE).with_suffix("").as_posix(), function.name)
        for path in CORE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef) and any(isinstance(n, ast.Match) for n in ast.walk(function))
    }
    listed = {
        (each.__module__.removeprefix("streamworker.core.").replace(".", "/"), each.__name__)
        for each in FUNCTIONS
    }
    assert found == listed


def tree_of(function: Callable[..., Any]) -> tuple[ast.Module, ast.Match]:
    """Return a function's source as a tree, and the one ``match`` in it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.Match))
    return tree, found


def code_of(function: Callable[..., Any], tree: ast.Module) -> CodeType:
    """Return what a changed source does, to be put in the place of what the function does."""
    space: dict[str, Any] = {}
    exec(compile(tree, f"<changed {function.__qualname__}>", "exec"), function.__globals__, space)
    changed = space[function.__name__]
    assert isinstance(changed, FunctionType)
    return changed.__code__


def arms() -> Iterator[Any]:
    """Return each function with the number of each of its arms."""
    for function in FUNCTIONS:
        for index, arm in enumerate(tree_of(function)[1].cases):
            name = f"{function.__qualname__}: {ast.unparse(arm.pattern)}"
            yield pytest.param(function, index, id=name)


ARMS = list(arms())


@pytest.mark.parametrize(("function", "index"), ARMS)
def test_an_arm_that_is_missing_is_noticed(
    function: Callable[..., Any], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of event means something."""
    tree, found = tree_of(function)
    del found.cases[index]
    monkeypatch.setattr(function, "__code__", code_of(function, tree))
    assert is_noticed(FUNCTIONS[function])


@pytest.mark.parametrize(("function", "index"), [arm for arm in ARMS if arm.values[1] > 0])
def test_two_arms_that_are_exchanged_are_noticed(
    function: Callable[..., Any], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done for the one kind is done for the other."""
    tree, found = tree_of(function)
    one, other = found.cases[index - 1 : index + 1]
    one.body, other.body = other.body, one.body
    monkeypatch.setattr(function, "__code__", code_of(function, tree))
    assert is_noticed(FUNCTIONS[function])
