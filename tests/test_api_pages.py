"""The reference, docs/api: each public name is on one page, and its docstring says all that is shown."""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import streamworker
import streamworker.metrics
import streamworker.testing
from streamworker import errors

SHOWN = re.compile(r"^::: ([\w.]+)\n((?: {4}.*\n)*)", re.MULTILINE)
PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w+\n-{3,}|\Z)", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^(\S.*)\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


class Shown(NamedTuple):
    """What a page shows: ``::: name``, with its options."""

    name: str
    options: str

    @property
    def thing(self) -> Any:
        module, _, name = self.name.rpartition(".")
        return getattr(import_module(module), name)

    @property
    def hidden(self) -> set[str]:
        """The members that its filters leave out."""
        return {
            name for names in re.findall(r"!\^\(?([\w|]+)\)?\$", self.options) for name in names.split("|")
        }

    def members(self) -> Iterator[tuple[str, Any]]:
        """Return the members that the page shows, with what has their docstrings."""
        if "members: false" in self.options or not inspect.isclass(self.thing):
            return
        chosen = re.search(r"\bmembers: \[(.*?)\]", self.options)
        for kind in self.thing.__mro__ if "inherited_members: true" in self.options else (self.thing,):
            members = {**fields(kind), **vars(kind)} if kind.__module__.startswith("streamworker") else {}
            for name, value in members.items():
                if chosen and name not in chosen[1].split(", "):
                    continue
                if not name.startswith("_") and name not in self.hidden:
                    yield name, fields(kind).get(name) or getattr(value, "__func__", value)


@cache
def fields(kind: type) -> dict[str, str | None]:
    """Return the attributes that a class or its ``__init__`` declares, each with the text below it."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    made = [each for each in body.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    blocks = [body.body, *(each.body for each in made)]
    found: dict[str, str | None] = {}
    for statement, below in (pair for block in blocks for pair in pairwise([*block, None])):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                pass
            case ast.Assign(targets=[ast.Attribute(attr=name)]):
                pass
            case _:
                continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
            case _:
                found.setdefault(name, None)
    return found


def told(thing: Any) -> dict[str, str]:
    """Return what a docstring says of each parameter."""
    found = PARAMETERS.search(inspect.getdoc(thing) or "")
    entries = ENTRY.findall(found[1] if found else "")
    return {name.lstrip("*"): text.strip() for names, text in entries for name in names.split(", ")}


def shown(page: str) -> Iterator[Shown]:
    """Return what a page shows; of a module all that it declares."""
    for name, options in SHOWN.findall(page + "\n"):
        if inspect.ismodule(thing := Shown(name, options).thing):
            yield from (
                Shown(f"{name}.{each}", "") for each, its in vars(thing).items() if is_declared(its, thing)
            )
        else:
            yield Shown(name, options)


def is_declared(thing: object, module: object) -> bool:
    """Whether a module declares a public class."""
    return inspect.isclass(thing) and sys.modules[thing.__module__] is module


PAGES = sorted((Path(__file__).parent.parent / "docs" / "api").glob("*.md"))
ALL = [each for page in PAGES for each in shown(page.read_text("utf-8"))]
PUBLIC = [
    *(f"streamworker.{name}" for name in streamworker.__all__ if not hasattr(errors, name)),
    *(f"streamworker.errors.{name}" for name, each in vars(errors).items() if is_declared(each, errors)),
    *(f"streamworker.testing.{name}" for name in streamworker.testing.__all__),
    "streamworker.metrics.measure",
]


def test_each_public_name_is_on_one_page() -> None:
    """And nothing is on two."""
    times = Counter(each.name for each in ALL)
    assert set(PUBLIC) - times.keys() == set(), "is on no page of docs/api"
    assert [name for name, count in times.items() if count > 1] == []


def lacking(shown: Shown) -> Iterator[str]:
    """Return what the docstrings of a name and of its members do not say."""
    thing = shown.thing
    calls = [(shown.name, thing)] if inspect.isclass(thing) or inspect.isfunction(thing) else []
    made = told(thing)
    for name, member in shown.members():
        text = member if isinstance(member, str) else inspect.getdoc(getattr(member, "func", member) or "")
        if "docs/" in (text or ""):
            yield f"{name}: names a file, which the site does not have"
        if member is None or not text:
            if name not in made:
                yield f"{name}: no docstring"
        elif inspect.isfunction(member):
            calls.append((name, member))
    for name, call in calls:
        if inspect.isclass(call) and "Parameters" not in (call.__doc__ or ""):
            continue  # Something else makes it.
        given = [*inspect.signature(call).parameters][call is not thing :]
        yield from (
            f"{name}: nothing about `{each}`"
            for each in given
            if not told(call).get(each) and each != "function" and not each.startswith("_")
        )


@pytest.mark.parametrize("shown", ALL, ids=[each.name for each in ALL])
def test_a_docstring_says_what_each_parameter_and_member_is(shown: Shown) -> None:
    """No cell of the reference is empty."""
    assert inspect.getdoc(shown.thing)
    assert list(lacking(shown)) == []


@pytest.mark.parametrize("name", [name for name in PUBLIC if not name.startswith("streamworker.errors.")])
def test_each_name_has_an_example_that_runs(name: str) -> None:
    """At itself or at one of its members; tests/test_docs.py runs it."""
    its = next(each for each in ALL if each.name == name)
    if callable(its.thing):
        texts = [inspect.getdoc(its.thing), *(inspect.getdoc(member) for _, member in its.members())]
        assert any(">>> " in (text or "") for text in texts)
