"""Brokers that a bench starts beside Redis, each with its data in a scratch folder, and ends."""

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contest import Contest
from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.programs import Bench, BenchFailed, Program
from benchmarks.measuring.task import SentRecords
from streamworker.dev.children import Child
from streamworker.dev.server import free_port
from streamworker.redisio.wire.client import Backend

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1
BEFORE_PATH = "/usr/lib/rabbitmq/bin"
"""Debian's ``rabbitmq-server`` on the PATH becomes the user ``rabbitmq``, who cannot write to the folder."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A server that is no Redis, and the measured program that uses its client library."""

    name: str
    program: str
    """The server. Its Debian package has the same name."""
    client: str
    """Module of the client library."""
    peer: str
    """Module of the measured program."""
    modes: tuple[str, ...]
    """What the client library has a form for."""
    ready: str
    """Pattern of the log of a server that takes connections; its group is the version."""
    files: str
    """Pattern of the files that hold the records."""
    prepare: Callable[[str, Path, int], tuple[list[str], Mapping[str, str]]]
    """Returns command and environment, given the path of the server, its folder and its port."""

    @property
    def path(self) -> str | None:
        """Return the path of the server; None if it is not installed."""
        return shutil.which(self.program, path=f"{BEFORE_PATH}:{os.environ.get('PATH', os.defpath)}")

    def is_there(self, contest: Contest) -> bool:
        """Return whether server and client are installed; if not, note what is left out without them."""
        if self.path is not None:
            return contest.has(self.client, self.name)
        remedy = f"Run: apt-get install {self.program}"
        contest.left_out.append(f"{self.name}: {self.program} is not installed. {remedy}")
        return False

    @asynccontextmanager
    async def started(self, folder: Path, backend: Backend) -> AsyncIterator["BrokerGround"]:
        """Start the server in a new folder, on a free port of this machine, and end it."""
        assert self.path is not None
        folder.mkdir()  # noqa: ASYNC240 - a local folder: takes microseconds
        port = free_port()
        command, environ = self.prepare(self.path, folder, port)
        log = folder / "log"
        child = Child(command, log_path=log, environ=environ, temporary=folder)
        try:
            limit_s = time.monotonic() + START_TIMEOUT_S
            while (found := re.search(self.ready, log.read_text("utf-8", "replace"))) is None:
                if not child.running or time.monotonic() > limit_s:
                    raise BenchFailed(
                        f"{self.name} has not started.", remedy=f"The end of its log:\n{child.log_tail()}"
                    )
                await asyncio.sleep(POLL_S)
            name, url = f"{self.name} {found[1]}", f"127.0.0.1:{port}"
            yield BrokerGround(backend=backend, url=url, name=name, broker=self, folder=folder)
        finally:
            await asyncio.to_thread(child.stop, STOP_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGround(BenchGround):
    """A running broker in the place of a server of Redis; ``name`` is its name and version."""

    broker: Broker
    folder: Path

    async def progress(self, keys: Sequence[str], group: str) -> list[object]:  # noqa: ARG002 - it has no keys
        """Return a value that changes while the broker writes."""
        times = list[object]()
        for file in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                times.append((file.name, file.stat().st_mtime_ns))
        return times

    async def per_s(self, mode: str, stream: str, records: int) -> SentRecords:
        """Let the measured program send all records to a stream, or handle all of it; return its rate."""
        program = Program(self.name, ("-m", self.broker.peer), mode, stream)
        async with Bench(self).started(program, [], records=records) as process:
            return await process.told(SentRecords)

    def stored_bytes(self) -> int:
        """Return the size of the files that hold the records."""
        return sum(file.stat().st_size for file in self.folder.rglob(self.broker.files))


def _rabbitmq(path: str, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    config = folder / "rabbitmq.conf"
    config.write_text(
        f"listeners.tcp = none\nstream.listeners.tcp.1 = 127.0.0.1:{port}\n"
        f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {port}\n",
        "utf-8",
    )
    environ = {
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "HOME": str(folder),  # Erlang writes its cookie there.
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS": "rabbitmq_stream",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    # Erlang would start an epmd that outlives it. This one is in the process group, and ends with it.
    script = 'epmd & until epmd -names; do sleep 0.1; done; exec "$0"'
    return ["/bin/sh", "-c", script, path], environ


def _nats(path: str, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return [path, "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)], {}


RABBITMQ = Broker(
    "RabbitMQ streams",
    program="rabbitmq-server",
    client="rstream",
    peer="benchmarks.peers.rabbitmq_streams",
    modes=("send", "record"),  # rstream has no handler that takes a batch.
    ready=r"Starting RabbitMQ ([\d.]+)[\s\S]*startup complete",
    files="stream/*/*.segment",
    prepare=_rabbitmq,
)
NATS = Broker(
    "NATS JetStream",
    program="nats-server",
    client="nats",
    peer="benchmarks.peers.nats_jetstream",
    modes=("send", "batch", "record"),
    ready=r"Version: +([\d.]+)[\s\S]*Server is ready",
    files="msgs/*.blk",
    prepare=_nats,
)
BROKERS = (RABBITMQ, NATS)
