"""The scripts as texts."""

import hashlib
import itertools
import re
from pathlib import Path

import pytest

import streamworker.redisio
from streamworker.redisio.group.protocols import SCRIPTS
from streamworker.redisio.scripts import Script

LUA = Path(streamworker.redisio.__file__).parent / "lua"
TYPE = r"\((hash|stream|string|zset|any)"
"""How a head names the type of a key."""


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
    """A stranger reads it there."""
    body = (LUA / f"{script.name}.lua").read_text("utf-8")
    head = "".join(itertools.takewhile(lambda line: line.startswith("--"), body.splitlines(keepends=True)))
    for word in ("KEYS  1 ", "reply ", *(["BADTYPE"] if "wrong_type({" in script.text else [])):
        assert word in head, word
    assert "ARGV  1 " in head or "ARGV" not in body
    keys = {int(n) for n in re.findall(r"KEYS\[(\d)\]", body)}
    assert all(re.search(rf"(KEYS| ) {n} \w+ {TYPE}\)", head) or n == 1 for n in keys)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_types_are_checked_before_anything_else(script: Script) -> None:
    """A script is not rolled back, so it must not fail at a key of another type half-way."""
    body = (LUA / f"{script.name}.lua").read_text("utf-8")
    checks_itself = body.replace("redis.call('EXISTS'", "")  # of any type
    if "wrong_type({" in body:
        assert checks_itself.index("wrong_type({") < checks_itself.index("redis.")
        return
    check = script.text.removesuffix(body).splitlines()[-2]
    types = re.findall(r"'(\w+)'", check) if check.startswith("local wrong = ") else ["any"]
    head = body.partition("-- KEYS")[2].partition("-- ARGV")[0].partition("-- reply")[0]
    named = re.findall(TYPE, head)
    assert named and (types == named or set(named) == {"any"})
