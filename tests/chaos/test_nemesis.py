"""A fault does what it says, and leaves what it found: else a storm would be judged for its own mistakes.

Faults that only a Cluster has look by themselves whether they came about, and the soak asks that each does.
"""

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos import nemesis
from tests.chaos.cluster_kinds import CLUSTER_KINDS
from tests.chaos.nemesis import LOSSLESS, Field, Names, Nemesis, Poisoned, Slot, WrongType, is_over
from tests.helpers import LoggedProcess, wait_for
from tests.raw import records_in
from tests.stage.disturbed import FAKETIME, ChaosServer, Namespace

pytestmark = pytest.mark.full("some faults need root")

NAMES = Names("chaos", "events", "handled", 2)
ADDS = {Poisoned.name}
"""What adds entries, which stay."""
DELETES = {"membership corrupt", "membership deleted", "consumer group moved"}
"""What takes away what a group makes anew."""
ANSWER_S = 1.0
"""What takes longer counts as no answer; the slowest line takes 0.6 s."""


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """A server with what a group keeps in it, and two processes, one in a network of its own."""
    folder: Path = tmp_path_factory.mktemp("nemesis")

    def sleeper() -> LoggedProcess:
        """Start a process that does nothing, in the place of a worker."""
        return LoggedProcess(["sleep", "60"], cwd=folder, log_path=folder / "log", environ={})

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            ChaosServer(folder / "data", small_disk=True, clock=FAKETIME is not None)
        )
        network = Namespace(9)
        try:
            link = stack.enter_context(network)
        except (OSError, subprocess.CalledProcessError):
            link = None
        slots = [
            Slot("w0", sleeper, proxy=server.proxy(), link=link),
            Slot("p0", sleeper, proxy=server.proxy(), is_worker=False),
        ]
        for slot in slots:
            slot.begin()
        yield Field(server, slots, NAMES)
        for slot in slots:
            assert isinstance(slot.process, LoggedProcess)
            slot.process.end()


def fill(client: "redis.Redis") -> None:
    client.flushall()
    client.set(NAMES.members, '{"generation":1}')
    client.hset(NAMES.beats, "w0", "1")
    client.xadd(NAMES.control, {"kind": "x"})
    for partition in range(NAMES.partitions):
        client.xadd(NAMES.events(partition), {"v": "1"})
        client.xgroup_create(NAMES.events(partition), NAMES.group, "0")
        client.hset(NAMES.lock(partition), "owner", "w0")
        client.xadd(NAMES.acked(partition), {"rows": "1"})


def held(client: "redis.Redis") -> dict[bytes | str, object]:
    """Return all that the server holds, as it would be moved elsewhere."""
    return {key: client.dump(key) for key in sorted(client.keys("*"))}


class Scene:
    """What can be seen of the server, and of the lines to it.

    Its connections are made before the fault: to the server itself, and through each process's proxy.
    """

    def __init__(self, field: Field, stack: contextlib.ExitStack) -> None:
        assert isinstance(field.server, ChaosServer)
        self.server, self._stack = field.server, stack
        self.raw = self.connect(self.server.url)
        self._lines = {slot.name: self.connect(slot.proxy.url) for slot in field.slots if slot.proxy}
        self.sha = self.raw.script_load("return 1")
        self._probes = 0

    def connect(self, url: str) -> Any:
        client = redis.Redis.from_url(
            url, socket_timeout=ANSWER_S, retry=Retry(NoBackoff(), 0), single_connection_client=True
        )
        self._stack.enter_context(client)
        return client

    def asks(self, work: Callable[[], object]) -> str:
        """Return what comes of a call: ``answered``, ``no answer``, ``broken``, or what the server says."""
        try:
            work()
        except redis.TimeoutError:
            return "no answer"
        except redis.ConnectionError as error:
            return str(error) if "max number of clients" in str(error) else "broken"
        except redis.ResponseError as error:
            return str(error)
        return "answered"

    def pings(self) -> str:
        return self.asks(lambda: self.connect(self.server.url).ping())

    def done(self, command: str) -> int:
        return int(self.raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    def old(self, fault: Any, command: str = "echo", *words: object) -> tuple[str, int]:
        """Ask on the connection of before; returns what comes of it, and how often the server did it."""
        before = self.done(command.lower())
        client = self._lines[fault.slot.name]
        said = self.asks(lambda: client.execute_command(command, *(words or ("x",))))
        return said, self.done(command.lower()) - before

    def new(self, proxy: Any) -> tuple[str, int]:
        before = self.done("echo")
        said = self.asks(lambda: self.connect(proxy.url).echo("x"))
        return said, self.done("echo") - before

    def took_s(self, fault: Any, size: int = 1) -> float:
        """Return how long so many bytes take there and back, on the connection of before."""
        began_s = time.monotonic()
        assert self._lines[fault.slot.name].echo(b"x" * size)
        return time.monotonic() - began_s

    def writes(self) -> str:
        self._probes += 1
        return self.asks(lambda: self.raw.set(f"probe {self._probes}", b"x" * 200_000))

    def connects(self, times: int) -> str:
        """Make so many connections more; returns what is said of the first that fails."""
        said = [self.pings() for _ in range(times)]
        return next((each for each in said if each != "answered"), "answered")

    def ahead_s(self) -> float:
        seconds, micros = self.raw.time()
        return float(seconds) + float(micros) / 1e6 - time.time()

    def poisoned(self) -> bool:
        entries = [entry for p in range(NAMES.partitions) for entry in records_in(self.raw, NAMES.events(p))]
        return any(fields in Poisoned.POISON for _, fields in entries)


def ended_by(fault: Any, number: signal.Signals) -> bool:
    return bool(fault.slot.process.code == -number)


def is_stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def is_reached_from(link: Namespace) -> bool:
    """Whether packets pass between a network and ours: nobody listens there, so the answer is a refusal."""
    code = (
        "import errno, socket, sys; line = socket.socket(); line.settimeout(1); "
        f"sys.exit(line.connect_ex(({link.host!r}, 9)) != errno.ECONNREFUSED)"
    )
    command = ["ip", "netns", "exec", link.name, sys.executable, "-c", code]
    return subprocess.run(command, check=False).returncode == 0


LET_THROUGH, NOT_SENT, NOT_ANSWERED = ("answered", 1), ("no answer", 0), ("no answer", 1)

SHOWS: dict[type[Nemesis], Callable[[Any, Scene], bool]] = {
    nemesis.WorkerKilled: lambda f, s: ended_by(f, signal.SIGKILL),
    nemesis.WorkerStopped: lambda f, s: ended_by(f, signal.SIGTERM),
    nemesis.WorkerFrozen: lambda f, s: is_stopped(f.slot.process.pid),
    nemesis.WorkerFlaps: lambda f, s: ended_by(f, signal.SIGKILL),
    nemesis.ProducerKilled: lambda f, s: ended_by(f, signal.SIGKILL),
    nemesis.LineSlow: lambda f, s: f.proxy.delay_ms > 0 and s.took_s(f) >= 2 * f.proxy.delay_ms / 1000,
    nemesis.LineNarrow: lambda f, s: (
        f.proxy.bandwidth > 0 and s.took_s(f, 4_000) >= 2 * 4_000 / f.proxy.bandwidth
    ),
    nemesis.LineCut: lambda f, s: (
        not f.proxy.up.is_set() and not f.proxy.down.is_set() and s.old(f) == NOT_SENT
    ),
    nemesis.RequestsHeld: lambda f, s: f.proxy.down.is_set() and s.old(f) == NOT_SENT,
    nemesis.RepliesHeld: lambda f, s: f.proxy.up.is_set() and s.old(f) == NOT_ANSWERED,
    nemesis.RepliesLost: lambda f, s: s.old(f, "EVALSHA", s.sha, 0) == ("broken", 1) and f.proxy.lost > 0,
    nemesis.RepliesCut: lambda f, s: s.old(f) == ("broken", 1) and f.proxy.lost > 0,
    nemesis.ConnectionsReset: lambda f, s: s.old(f) == ("broken", 0) and s.new(f.proxy) == LET_THROUGH,
    nemesis.ConnectionsRefused: lambda f, s: s.old(f) == ("broken", 0) and s.new(f.proxy) == ("broken", 0),
    nemesis.ConnectionsStranded: lambda f, s: s.old(f) == NOT_SENT and s.new(f.proxy) == LET_THROUGH,
    nemesis.LinkDown: lambda f, s: not is_reached_from(f._link),
    nemesis.ServerKilled: lambda f, s: not s.server.running and s.pings() == "broken",
    nemesis.ServerFrozen: lambda f, s: is_stopped(s.server.pid) and s.pings() == "no answer",
    nemesis.ScriptBusy: lambda f, s: "busy running a script" in s.pings(),
    nemesis.MemoryFull: lambda f, s: "used memory" in s.writes(),
    nemesis.DiskFull: lambda f, s: "MISCONF" in s.writes(),
    nemesis.ClientsLimited: lambda f, s: "max number of clients" in s.connects(6),
    nemesis.ClientsKilled: lambda f, s: s.asks(s.raw.ping) == "broken" and s.pings() == "answered",
    nemesis.ScriptsFlushed: lambda f, s: s.raw.script_exists(s.sha) == [False],
    nemesis.ClockStepped: lambda f, s: abs(s.ahead_s() - f._seconds) < 0.1,
    nemesis.MembershipCorrupt: lambda f, s: s.raw.get(f.key) in f.WRONG,
    nemesis.MembershipGone: lambda f, s: not s.raw.exists(*map(NAMES.of_group, ("beats", *f.target.split()))),
    nemesis.WrongType: lambda f, s: s.raw.type(f.key) == b"string",
    nemesis.Poisoned: lambda f, s: s.poisoned(),
    nemesis.GroupMoved: lambda f, s: all(
        group["last-delivered-id"] != b"0-0" for group in s.raw.xinfo_groups(f.key)
    ),
}
"""How each kind can be seen while it goes on, and only then."""


@pytest.mark.parametrize("kind", LOSSLESS, ids=lambda kind: kind.name)
def test_a_fault_shows_and_leaves_a_server_that_takes_writes_and_holds_what_it_held(
    field: Field, kind: type[Nemesis]
) -> None:
    """And its processes run again."""
    shows = SHOWS[kind]
    if why := kind.missing(field):
        pytest.skip(f"{kind.name}: {why}")
    with field.server.client() as client:
        fill(client)
        before = held(client)
    fault = kind()
    assert fault.aim(field, random.Random(3), frozenset())
    assert fault.target and fault.takes
    with contextlib.ExitStack() as stack:
        scene = Scene(field, stack)
        assert not shows(fault, scene), "what is to show it shows without it, too"
        fault.begin()
        wait_for(lambda: shows(fault, scene), f"{kind.name} shows")
    wait_for(lambda: is_over(fault), f"{kind.name} is over")
    assert not fault.failure
    with field.server.client() as client:
        for key in client.keys("probe *"):
            client.delete(key)
        if kind.name not in ADDS | DELETES:
            assert held(client) == before
        assert client.set("written", "1")
        assert client.config_get("maxclients")["maxclients"] == "10000"
        assert abs(client.time()[0] - time.time()) < 5
    assert all(slot.running for slot in field.slots)


def test_each_kind_has_a_name_of_its_own() -> None:
    names = [kind.name for kind in (*LOSSLESS, *CLUSTER_KINDS)]
    assert len(set(names)) == len(names)


def test_what_a_group_has_put_right_meanwhile_is_left_as_it_is(field: Field) -> None:
    """Heartbeats of before the fault are not brought back over those of now."""
    beats, rng = NAMES.beats, random.Random(1)
    with field.server.client() as client:
        fill(client)
        fault = WrongType()
        while not (fault.aim(field, rng, frozenset()) and fault.key == beats):
            fault = WrongType()
        fault.begin()
        assert client.get(beats) == b"a string"
        client.delete(beats)
        client.hset(beats, "w1", "2")
        assert fault.end()
        assert client.hgetall(beats) == {b"w1": b"2"}
        assert not client.keys("*:aside")
