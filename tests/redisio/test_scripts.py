"""The scripts as texts."""

import hashlib
import itertools
import re
from pathlib import Path

import pytest

import streamworker.redisio
from streamworker.errors import InternalError
from streamworker.redisio import scripts
from streamworker.redisio.group.operations import SCRIPTS
from streamworker.redisio.group.operations_lease import UPDATE
from streamworker.redisio.scripts import Names, Script

LUA = Path(streamworker.redisio.__file__).parent / "lua"


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
    functions = {*re.findall(r"^local function (\w+)", script.text, re.MULTILINE)}
    assert len(names) == len({*names, *functions}) - len(functions), "a name stands for one thing"


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
