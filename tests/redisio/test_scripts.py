"""The scripts as texts."""

import ast
import hashlib
import itertools
import re
from pathlib import Path

import pytest

import streamworker.redisio
from streamworker.errors import InternalError
from streamworker.redisio import scripts
from streamworker.redisio.group import operations_claim, operations_lease
from streamworker.redisio.group.operations import SCRIPTS
from streamworker.redisio.group.operations_lease import UPDATE
from streamworker.redisio.scripts import Names, Script

LUA = Path(streamworker.redisio.__file__).parent / "lua"
TYPE = r"\((hash|stream|string|zset|any)"
"""How a head names the type of a key."""


def _body(script: Script) -> str:
    return (LUA / f"{script.name}.lua").read_text("utf-8")


def _all(names: Names) -> tuple[str, ...]:
    return names.plain + names.lists + names.rest


def test_every_file_is_a_script_that_is_loaded() -> None:
    """None is left behind, none is missing."""
    found = {path.relative_to(LUA).with_suffix("").as_posix() for path in LUA.glob("*/*.lua")}
    assert {name for name in found if not name.startswith("parts/")} == {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_sha_is_that_of_the_text_and_no_script_builds_an_error_reply(script: Script) -> None:
    """EVALSHA asks for what SCRIPT LOAD was given. A refusal of ours is a code; an error is the server's."""
    assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()
    assert "error_reply" not in script.text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_head_names_keys_arguments_and_replies(script: Script) -> None:
    """A stranger reads it there, and nobody counts: the names are those of the text and of the callers."""
    body = _body(script)
    head = "".join(itertools.takewhile(lambda line: line.startswith("--"), body.splitlines(keepends=True)))
    for word in (
        "-- KEYS  ",
        "reply ",
        *(["BADTYPE"] if re.search(r"wrong_type\(\w+, '", script.text) else []),
    ):
        assert word in head, word
    assert "-- ARGV  " in head or "ARGV" not in body
    assert not re.search(r"(KEYS|ARGV)\[\d|unpack\((KEYS|ARGV), \d", body)
    names = [*_all(script.keys), *_all(script.args)]
    functions = re.findall(r"^local function (\w+)", script.text, re.MULTILINE)
    assert len(names) == len({*names, *functions}) - len(functions), "a name stands for one thing"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_types_are_checked_before_anything_else(script: Script) -> None:
    """A script is not rolled back, so it must not fail at a key of another type half-way."""
    body = _body(script)
    checks_itself = body.replace("redis.call('EXISTS'", "")  # of any type
    if "wrong_type(" in body:
        assert checks_itself.index("wrong_type(") < checks_itself.index("redis.")
        return
    check = script.text.removesuffix(body).splitlines()[-2]
    checked = re.findall(r"(\w+), '(\w+)'", check) if check.startswith("local wrong = ") else []
    head = body.partition("-- KEYS")[2].partition("-- ARGV")[0].partition("-- reply")[0]
    named = re.findall(rf"(\w+) {TYPE}", head)
    assert named
    assert checked == [(name, kind) for name, kind in named if kind != "any"]


def test_lists_stand_behind_their_lengths_and_the_rest_behind_them() -> None:
    """As `_locals` tells the script where they are."""
    named = {"processed": (4, 9), "ended": (5,), "cleared": ()}
    keys, args = UPDATE.call(grab="g", allocation="a", control="c", owner="w1", **named)
    assert keys == ["g", "a", "c"]
    assert args == ["w1", 2, 4, 9, 1, 5, 0]
    assert scripts.STORE.call(hash="h", command="HSET", fields=("a", 1))[1] == ["HSET", "a", 1]


@pytest.mark.parametrize("named", [{}, {"lock": "l", "owner": "w1"}, {"lock": "l", "owner": "w1", "era": 5}])
def test_a_call_that_does_not_give_what_the_head_names_is_a_bug(named: dict[str, object]) -> None:
    with pytest.raises((InternalError, KeyError)):
        scripts.RELEASE.call(**named)


def test_all_callers_use_the_names_of_the_heads() -> None:
    """This reads the program, so that no call has to be made to find a wrong name."""
    known = {
        name: (each, {*_all(each.keys), *_all(each.args)})
        for module in (scripts, operations_claim, operations_lease)
        for name, each in vars(module).items()
        if isinstance(each, Script)
    }
    found = set()
    for path in LUA.parents[1].rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"[A-Z]\.(call|at)\(", text) else ():
            match node:
                case ast.Call(ast.Attribute(ast.Name(name), "call" | "at" as how)) if name in known:
                    script, takes = known[name]
                    gives = {each.arg for each in node.keywords}
                    where = f"{path}:{node.lineno}"
                    assert gives - {None} <= takes, where
                    needs = takes - set(script.keys.plain) if how == "at" else takes
                    assert None in gives or needs <= gives, where  # None is a mapping.
                    found.add(name)
    assert found == set(known)
