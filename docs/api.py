"""Renders docs/api.md, each argument and member of the public classes, from their docstrings."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from streamworker import App, Context, Processor, Records, Resource, Stream, Table
from streamworker.testing import FakeContext, LocalWorker, fake_context, local_worker

INTRODUCTION = """\
# Arguments and members

<!-- Made by `make docs` from the docstrings; edit those, not this. A test compares them. -->

This page lists each argument of the decorators and calls, and each member of what functions get. `help(App.processor)`
says the same, with examples and the errors that each raises."""

SECTIONS: list[tuple[str, Any]] = [
    ("App", App),
    ("Stream", Stream),
    ("Processor", Processor),
    ("Context", Context),
    ("Records", Records),
    ("Table", Table),
    ("Resource", Resource),
    ("local_worker", local_worker),
    ("LocalWorker", LocalWorker),
    ("fake_context", fake_context),
    ("FakeContext", FakeContext),
]

INSIDE = {"load", "producer", "backend", "written_by"}
"""Members for other parts of the package."""
PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w+\n-{3,}|\Z)", re.MULTILINE | re.DOTALL)


def render() -> str:
    """Return the text of docs/api.md."""
    return "\n".join([INTRODUCTION, *(line for name, of in SECTIONS for line in _section(name, of))]) + "\n"


def _section(name: str, of: Any) -> Iterator[str]:
    yield from ("", f"## {name}", "", _summary(of))
    is_class = inspect.isclass(of)
    yield from _parameters(of, name, of.__init__ if is_class else of, first=int(is_class))
    if not is_class:
        return
    members = {
        member: inspect.getattr_static(of, member)
        for kind in of.__mro__
        for member in vars(kind)
        if not member.startswith("_") and member not in INSIDE and (of is not FakeContext or kind is of)
    }
    plain, calls = [], []
    for member, value in members.items():
        function = inspect.unwrap(getattr(value, "func", value)) if not isinstance(value, property) else value
        if not inspect.getdoc(function) or not (isinstance(value, property) or callable(function)):
            continue
        (plain if isinstance(value, property) else calls).append((member, function))
    if plain:
        yield from ("", "| member | is |", "|---|---|")
        yield from (f"| `{member}` | {_cell(_summary(value))} |" for member, value in plain)
    for member, function in calls:
        yield from ("", f"### {name}.{member}", "", _summary(function))
        yield from _parameters(function, member, function, first=1)


def _summary(of: Any) -> str:
    """Return the first paragraph of a docstring, as Markdown."""
    return _markdown((inspect.getdoc(of) or "").split("\n\n")[0])


def _parameters(of: Any, name: str, function: Any, *, first: int) -> Iterator[str]:
    """Return the table of the arguments from the first that users give, with what the docstring says of each."""
    told: dict[str, str] = {}
    found = PARAMETERS.search(inspect.getdoc(of) or "")
    for names, text in re.findall(r"^(\S.*)\n((?: {4}.*\n?|\n)+)", found[1] if found else "", re.MULTILINE):
        for each in names.split(", "):
            told[each.lstrip("*")] = _cell(_markdown(text))
    rows = [
        (parameter, told.get(parameter.name, ""))
        for parameter in [*inspect.signature(function).parameters.values()][first:]
        if parameter.name != "function" and not parameter.name.startswith("_")
    ]
    if not rows or not (told or any(parameter.default is not parameter.empty for parameter, _ in rows)):
        return
    yield from ("", f"| argument of `{name}` | default | |", "|---|---|---|")
    for parameter, text in rows:
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        yield f"| `{parameter.name}` | {default} | {text} |"


def _markdown(text: str) -> str:
    """Return a docstring's text in one line, with the quotes of Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
