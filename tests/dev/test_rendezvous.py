"""Which apps use the server of a `dev` that runs in their folder, and which files are trusted."""

import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streamworker import App
from streamworker.cli.root import app
from streamworker.dev.rendezvous import FILE, announced
from streamworker.variables import REDIS_URL_OVERRIDE, URL_VARIABLE

DEFAULT = "redis://localhost:6379/0"
CHOSEN = "redis://localhost:1/0"
GONE = 2**22 + 1
"""No process of Linux has this id."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a `dev` that has announced itself in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in (REDIS_URL_OVERRIDE, URL_VARIABLE):
        monkeypatch.setenv(name, "")  # It is taken away after the test.
    socket = tmp_path / "s"
    socket.touch()
    with announced(f"unix://:secret@{socket}?db=0"):
        written = FILE.read_bytes()
        assert FILE.stat().st_mode & 0o777 == 0o600, "it holds the password"
    FILE.touch(0o600)
    FILE.write_bytes(written)
    for name in (REDIS_URL_OVERRIDE, URL_VARIABLE):
        monkeypatch.delenv(name)
    return f"unix://:secret@{socket}?db=0"


def used(chosen: str | None = None) -> str:
    return App("shop", redis_url=chosen).settings.redis_url


def test_an_app_that_names_no_redis_uses_the_server_of_dev_and_says_so(url: str) -> None:
    """In one line, without the password."""
    with capture_logs() as said:
        assert used() == url
    here = {"process": os.getpid(), "folder": str(Path.cwd())}
    assert said == [{"event": "using_server_of_dev", "log_level": "warning", **here}]


def test_what_the_app_or_a_variable_names_comes_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what `dev` starts: there its server takes the place of both."""
    assert used(CHOSEN) == CHOSEN
    monkeypatch.setenv(URL_VARIABLE, CHOSEN)
    assert used() == CHOSEN
    monkeypatch.setenv(REDIS_URL_OVERRIDE, url)
    assert used(DEFAULT) == used() == url


@pytest.mark.parametrize(
    ("command", "variables", "is_used"),
    [
        pytest.param("doctor", {}, True, id="none is named"),
        pytest.param("doctor", {URL_VARIABLE: CHOSEN}, False, id="a variable names one"),
        pytest.param("doctor --help", {}, False, id="it prints its help"),
        pytest.param("dead list -h", {}, False, id="it prints the help of a part"),
    ],
)
def test_a_command_uses_the_server_of_dev_unless_a_variable_names_one(
    url: str, command: str, variables: dict[str, str], is_used: bool
) -> None:
    """As a program does; and it says so, unless it asks no server."""
    result = CliRunner().invoke(app, command.split(), env=variables)
    assert ("Using the server of `streamworker dev`" in result.stderr) == is_used
    assert (os.environ.get(REDIS_URL_OVERRIDE) == url) == is_used


@pytest.mark.parametrize(
    ("changed", "mode"),
    [
        pytest.param({"pid": GONE}, 0o600, id="its process has ended"),
        pytest.param({"url": "unix://:secret@/gone/s?db=0"}, 0o600, id="its socket is not there"),
        pytest.param({"url": "redis://:secret@db.example:6379/0"}, 0o600, id="it names another machine"),
        pytest.param({"url": 5}, 0o600, id="it holds something else"),
        pytest.param({}, 0o622, id="others may write to it"),
    ],
)
def test_a_file_that_is_old_or_may_be_anothers_is_ignored(
    url: str, changed: dict[str, object], mode: int
) -> None:
    """Nobody else may redirect the records of this user."""
    FILE.write_text(json.dumps({**json.loads(FILE.read_text("utf-8")), **changed}), "utf-8")
    FILE.chmod(mode)
    assert used() == DEFAULT
