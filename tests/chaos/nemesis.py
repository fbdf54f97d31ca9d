"""Faults, each with a beginning and an end: what a soak mixes and what a test of one fault uses alone.

A fault is aimed (``aim`` picks a target by a random generator and names what it takes hold of, so that no
two faults pull at one thing), begun and ended. None of these may cost anything that was confirmed.

    field = Field(server, slots, names)
    fault = WorkerKilled()
    if fault.aim(field, rng, taken=frozenset()):
        fault.begin()
        ...
        while not fault.end():
            time.sleep(0.05)
"""

import contextlib
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import redis

from streamworker.redisio.keys import GroupKeys
from tests.chaos.proxy import Lines, Proxy
from tests.helpers import Process
from tests.stage.disturbed import FAKETIME, NEEDS_ROOT, ChaosServer, Namespace
from tests.stage.nodes import ChaosCluster

"""A process that can be hurt."""


@dataclass(eq=False)
class Slot:
    """The place of a process, which is started there again after each end."""

    name: str
    start: Callable[[], Process]
    proxy: Proxy | Lines | None = None
    """What lies between it and the server."""
    process: Process | None = None
    is_worker: bool = True
    link: Namespace | None = None
    """What the process has for a network, if it is one of its own."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.code is None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; one that has just ended gets none."""
        if self.process is not None:
            self.process.signal(number)

    def begin(self) -> None:
        self.process = self.start()


@dataclass(frozen=True)
class Names(GroupKeys):
    """The keys of the group that is hurt."""

    partitions: int


@dataclass(eq=False)
class Field:
    """Where faults happen."""

    server: ChaosServer | ChaosCluster
    slots: Sequence[Slot]
    names: Names
    note: Callable[..., None] = lambda *_, **__: None
    """Writes an event of the history: what a fault added that must be found again."""

    def workers(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.is_worker and slot.running]


class Nemesis(ABC):
    """One kind of fault; an instance is one fault."""

    name: ClassVar[str]
    """What reports call it."""
    loses: ClassVar[bool] = False
    """Whether it may cost something of what was confirmed, as a failover may."""
    lasts_s: ClassVar[tuple[float, float]] = (0.5, 3.0)
    """How long it may take."""

    def __init_subclass__(cls, *, name: str = "", lasts_s: tuple[float, float] | None = None) -> None:
        cls.name, cls.lasts_s = name, lasts_s or cls.lasts_s

    def __init__(self) -> None:
        self.field: Field
        self.rng: random.Random
        self.target = ""
        """What it was aimed at."""
        self.takes: frozenset[str] = frozenset()
        """What it takes hold of."""
        self.taken: frozenset[str] = frozenset()
        """What other faults have hold of."""
        self.partitions: Sequence[int] = ()
        """Those that may lose something by it."""
        self.failure = ""
        """Why it did not come about, or not whole; empty if it did. Final once it is over."""

    @classmethod
    def missing(cls, field: Field) -> str:
        """Return what this machine lacks for it; empty if nothing."""
        return ""

    def aim(self, field: Field, rng: random.Random, taken: frozenset[str]) -> bool:
        """Choose a target; False if there is none at the moment."""
        self.field, self.rng, self.taken = field, rng, taken
        found = self.choose()
        if found is None:
            return False
        self.target, self.takes = found
        return not self.takes & taken

    @abstractmethod
    def choose(self) -> tuple[str, frozenset[str]] | None:
        """Return a target and what it takes hold of."""

    @abstractmethod
    def begin(self) -> None:
        """Do it."""

    def end(self) -> bool:
        """Undo it; False if that has to be tried again in a moment."""
        return True


def is_over(fault: Nemesis) -> bool:
    """End a fault; whether it is over. What the server does not answer is tried again."""
    with contextlib.suppress(redis.RedisError):
        return fault.end()
    return False


# -- processes -------------------------------------------------------------------------------------


class _OfProcess(Nemesis):
    """A fault of one process, a worker's, which a signal begins; it is started again once it has ended."""

    slot: Slot
    is_of_worker: ClassVar[bool] = True
    begins_with: ClassVar[signal.Signals] = signal.SIGKILL

    def choose(self) -> tuple[str, frozenset[str]] | None:
        slots = self.field.slots
        found = [slot for slot in slots if slot.is_worker is self.is_of_worker and slot.running]
        if not found:
            return None
        self.slot = self.rng.choice(found)
        return self.slot.name, frozenset({f"process {self.slot.name}"})

    def begin(self) -> None:
        self.slot.send(self.begins_with)

    def end(self) -> bool:
        if self.slot.running:
            return False
        self.slot.begin()
        return True


class WorkerKilled(_OfProcess, name="worker killed", lasts_s=(0.0, 2.0)):
    """SIGKILL, and started again after a while."""


class WorkerStopped(_OfProcess, name="worker asked to leave", lasts_s=(0.2, 2.0)):
    """SIGTERM: it drains and leaves; and started again."""

    begins_with = signal.SIGTERM


class WorkerFrozen(_OfProcess, name="worker frozen", lasts_s=(0.5, 6.0)):
    """SIGSTOP for longer than it takes to be thought dead, and SIGCONT: a zombie."""

    begins_with = signal.SIGSTOP

    def end(self) -> bool:
        self.slot.send(signal.SIGCONT)
        return True


class WorkerFlaps(_OfProcess, name="worker flaps", lasts_s=(2.0, 5.0)):
    """It comes and goes, and comes and goes: killed again as soon as it has begun."""

    def begin(self) -> None:
        self._left = self.rng.randint(1, 3)
        super().begin()

    def end(self) -> bool:
        if not super().end():
            return False
        if not self._left:
            return True
        self._left -= 1
        time.sleep(self.rng.uniform(0.0, 0.3))
        self.slot.send(signal.SIGKILL if self.rng.random() < 0.5 else signal.SIGTERM)
        return False


class ProducerKilled(_OfProcess, name="producer killed", lasts_s=(0.0, 1.0)):
    """SIGKILL of a producer, and another one in its place: what was under way may come late."""

    is_of_worker = False

    @classmethod
    def missing(cls, field: Field) -> str:
        return "" if any(not slot.is_worker for slot in field.slots) else "there are no producers"


# -- the network -----------------------------------------------------------------------------------


class _OfLine(Nemesis):
    """A fault of the line between one process and the server."""

    slot: Slot
    proxy: Proxy | Lines

    def choose(self) -> tuple[str, frozenset[str]] | None:
        found = [slot for slot in self.field.slots if slot.proxy is not None]
        if not found:
            return None
        self.slot = self.rng.choice(found)
        assert self.slot.proxy is not None
        self.proxy = self.slot.proxy.part(self.rng)
        return self.slot.name, frozenset({f"line {self.slot.name}"})

    def tell(self, what: Callable[..., Any], **options: Any) -> None:
        self.field.server.proxies.tell(what, **options)

    def end(self) -> bool:
        self.tell(self.proxy.heal)
        return True


class LineSlow(_OfLine, name="line slow"):
    """Bytes take 20 to 300 ms, each way."""

    def begin(self) -> None:
        self.proxy.disturb(delay_ms=self.rng.choice((20, 80, 150, 300)))


class LineNarrow(_OfLine, name="line narrow"):
    """20 to 200 kB a second, each way."""

    def begin(self) -> None:
        self.proxy.disturb(bandwidth=self.rng.choice((20_000, 50_000, 200_000)))


class LineCut(_OfLine, name="line cut", lasts_s=(0.3, 5.0)):
    """Nothing passes, either way; it comes late."""

    ways: ClassVar[Mapping[str, bool]] = {}

    def begin(self) -> None:
        self.tell(self.proxy.hold, **self.ways)


class RequestsHeld(LineCut, name="requests held back"):
    """No request passes: they come late, some of them after their sender has given up."""

    ways: ClassVar[Mapping[str, bool]] = {"up": True, "down": False}


class RepliesHeld(LineCut, name="replies held back"):
    """Requests are done, and their replies come late or to nobody."""

    ways: ClassVar[Mapping[str, bool]] = {"up": False, "down": True}


class RepliesLost(_OfLine, name="replies lost"):
    """Scripts are done, and their replies are lost with their connections."""

    def begin(self) -> None:
        self.proxy.disturb(only_after=b"EVALSHA", lose=self.rng.randint(1, 6))


class RepliesCut(_OfLine, name="replies cut"):
    """Replies end in mid-frame."""

    def begin(self) -> None:
        self.proxy.disturb(cut=self.rng.randint(1, 4))


class ConnectionsReset(_OfLine, name="connections reset", lasts_s=(0.0, 0.2)):
    """All connections of a process are reset at once."""

    def begin(self) -> None:
        self.tell(self.proxy.reset)


class ConnectionsRefused(_OfLine, name="connections refused", lasts_s=(0.3, 4.0)):
    """All connections of a process are reset, and it can make no other."""

    def begin(self) -> None:
        self.proxy.disturb(refuse=True)
        self.tell(self.proxy.reset)


class LinkDown(Nemesis, name="link down", lasts_s=(0.3, 6.0)):
    """The network link of a worker is down: its packets are lost."""

    @classmethod
    def missing(cls, field: Field) -> str:
        return "" if any(slot.link for slot in field.slots) else "no network namespace can be made here"

    def choose(self) -> tuple[str, frozenset[str]] | None:
        slot = self.rng.choice([slot for slot in self.field.slots if slot.link])
        assert slot.link is not None
        self._link = slot.link
        return slot.name, frozenset({f"line {slot.name}"})

    def begin(self) -> None:
        self._link.cut()

    def end(self) -> bool:
        self._link.mend()
        return True


class ConnectionsStranded(_OfLine, name="connections stranded", lasts_s=(0.5, 5.0)):
    """All connections of a process stand still, and new ones do not: what is on the way comes late."""

    def begin(self) -> None:
        self.tell(self.proxy.strand)


# -- the server ------------------------------------------------------------------------------------


class _OfServer(Nemesis):
    """A fault of the server; on a Cluster of one primary."""

    server: ChaosServer

    def choose(self) -> tuple[str, frozenset[str]] | None:
        found = self.field.server.any_server(self.rng, self.taken, self.fits)
        if found is None:
            return None
        self.server = found
        return found.name, frozenset({found.holds})

    def fits(self, server: ChaosServer) -> bool:
        return True


class ServerKilled(_OfServer, name="server killed", lasts_s=(0.0, 2.0)):
    """SIGKILL, and started with its append-only file."""

    def begin(self) -> None:
        self.server.kill()

    def end(self) -> bool:
        self.server.start()
        return True


class ServerFrozen(_OfServer, name="server frozen", lasts_s=(0.3, 5.0)):
    """SIGSTOP and SIGCONT."""

    def begin(self) -> None:
        self.server.pause()

    def end(self) -> bool:
        self.server.resume()
        return True


class ScriptBusy(_OfServer, name="server busy", lasts_s=(0.3, 2.5)):
    """A script of somebody else's takes long: the server serves nobody, or answers BUSY."""

    ROUNDS = 10**10
    """Half a minute on a fast machine; it is ended before."""

    def begin(self) -> None:
        self._client = redis.Redis.from_url(self.server.url, socket_timeout=0.05)
        self.server.config("busy-reply-threshold", 200)
        self.failure = "the script was done at once"
        try:
            # Redis stops its clock while a script runs, so it counts rounds: for longer than anybody waits.
            self._client.eval("for i = 1, tonumber(ARGV[1]) do end return 1", 0, self.ROUNDS)
        except redis.TimeoutError:
            self.failure = ""

    def end(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.server.client(0.5) as client:
            client.script_kill()
        try:
            self.server.config("busy-reply-threshold", 5_000)
        except redis.RedisError:
            return False
        self._client.close()
        return True


class MemoryFull(_OfServer, name="memory full", lasts_s=(0.5, 4.0)):
    """``maxmemory`` just above what is used."""

    def begin(self) -> None:
        self.server.fill_memory(self.rng.choice((0, 4_096, 65_536)))

    def end(self) -> bool:
        self.server.free_memory()
        return True


class DiskFull(_OfServer, name="disk full", lasts_s=(0.5, 3.0)):
    """No room for the append-only file: every write is refused."""

    @classmethod
    def missing(cls, field: Field) -> str:
        if isinstance(field.server, ChaosCluster):
            return "a node that cannot write down what it knows of the Cluster ends by itself"
        return "" if field.server.has_small_disk else NEEDS_ROOT

    def begin(self) -> None:
        self.server.fill_disk()

    def end(self) -> bool:
        self.server.free_disk()
        return True


class ClientsLimited(_OfServer, name="clients limited", lasts_s=(0.5, 3.0)):
    """``maxclients`` just above the connections there are, and these are closed."""

    def begin(self) -> None:
        self.server.limit_clients(self.rng.randint(1, 4))
        with contextlib.suppress(redis.RedisError), self.server.client() as client:
            found = [row for row in client.client_list() if row["name"]]
            for row in self.rng.sample(found, len(found) // 3):
                client.client_kill_filter(_id=row["id"])

    def end(self) -> bool:
        self.server.free_clients()
        return True


class ClientsKilled(_OfServer, name="clients killed", lasts_s=(0.0, 0.1)):
    """``CLIENT KILL`` of every connection."""

    def begin(self) -> None:
        with self.server.client() as client:
            if not client.client_kill_filter(_type="normal", skipme=True):
                self.failure = "nobody was connected"


class ScriptsFlushed(_OfServer, name="scripts flushed", lasts_s=(0.1, 0.5)):
    """``SCRIPT FLUSH``, a few times."""

    def begin(self) -> None:
        self._left = self.rng.randint(0, 4)
        self._flush()

    def end(self) -> bool:
        if self._left <= 0:
            return True
        self._flush()
        self._left -= 1
        return False

    def _flush(self) -> None:
        with self.server.client() as client:
            client.script_flush()


class ClockStepped(_OfServer, name="clock stepped", lasts_s=(0.5, 4.0)):
    """The server's wall clock goes forward or back, and comes right again."""

    @classmethod
    def missing(cls, field: Field) -> str:
        if field.server.clock is not None:
            return ""
        return "libfaketime is not installed" if FAKETIME is None else "the server's clock cannot be set"

    def fits(self, server: ChaosServer) -> bool:
        return server.clock is not None

    def choose(self) -> tuple[str, frozenset[str]] | None:
        self._seconds = self.rng.choice((-600, -30, -2, -0.2, 0.2, 2, 30, 600))
        found = super().choose()
        return found and (f"{found[0]} {self._seconds:+} s", found[1])

    def begin(self) -> None:
        assert self.server.clock is not None
        self.server.clock.step(self._seconds)

    def end(self) -> bool:
        assert self.server.clock is not None
        self.server.clock.step(0)
        return True


# -- what lies in the server -----------------------------------------------------------------------

NOT_THERE = "what it was to take away was not there"


class _OfData(_OfServer, lasts_s=(0.1, 2.0)):
    """A fault of what the server holds, while the server is well; on a Cluster the one that has the key."""

    key: str

    def choose(self) -> tuple[str, frozenset[str]] | None:
        self.key = self.pick()
        found = self.field.server.server_of(self.key)
        if found is None:
            return None
        self.server = found
        return self.key, frozenset({found.holds})

    def pick(self) -> str:
        """Pick the key that it is about; others that are hurt with it have its slot."""
        return self.field.names.members

    def partition(self) -> int:
        return self.rng.randrange(self.field.names.partitions)


class MembershipCorrupt(_OfData, name="membership corrupt"):
    """The membership document is overwritten with what is none; its group puts that right."""

    WRONG = (
        b"", b"{", b"[]", b"null", b'{"generation": "x"}', b'{"generation": 1, "members": 3}',
        b"\xff\xfe\x00", b'{"members": [{}, {}]}', b'{"generation":9}', b"9" * 5_000, b"[" * 5_000,
    )  # fmt: skip

    def begin(self) -> None:
        with self.server.client() as client:
            client.set(self.key, self.rng.choice(self.WRONG))


class MembershipGone(_OfData, name="membership deleted"):
    """The heartbeats are deleted; or the membership document too, or the control stream, or all.

    A document that is deleted without the heartbeats leaves theirs behind, which hurts nobody.
    """

    def begin(self) -> None:
        what = self.rng.choice((("beats",), ("beats", "members"), ("beats", "members", "control")))
        self.target = " ".join(what)
        with self.server.client() as client:
            if not client.delete(*(self.field.names.of_group(each) for each in what)):
                self.failure = NOT_THERE


class WrongType(_OfData, name="wrong type", lasts_s=(0.3, 3.0)):
    """A key of ours holds another type for a while, and is then as it was, or as its group made it since."""

    PUT_BACK = """
    local kind = redis.call('TYPE', KEYS[1]).ok
    if kind ~= 'none' and kind ~= ARGV[1] then return redis.call('DEL', KEYS[2]) end
    redis.call('DEL', KEYS[1])
    if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) end
    """
    """Heartbeats of before would bring back those of members that have left since."""

    def pick(self) -> str:
        names, partition = self.field.names, self.partition()
        keys = [names.lock(partition), names.acked(partition), names.dead(partition)]
        return self.rng.choice([*keys, names.events(partition), names.beats, names.control])

    def begin(self) -> None:
        self._aside = f"{self.key}:aside"
        with self.server.client() as client, client.pipeline(transaction=True) as pipe:
            if client.exists(self.key):
                pipe.rename(self.key, self._aside)
            pipe.set(self.key, "a string")
            pipe.execute()

    def end(self) -> bool:
        with self.server.client() as client:
            client.eval(self.PUT_BACK, 2, self.key, self._aside, "string")
        return True


class Poisoned(_OfData, name="poison entries", lasts_s=(0.0, 0.1)):
    """Entries that are no records are among the others."""

    POISON: ClassVar[tuple[dict[bytes, bytes], ...]] = (
        {b"v": b"{"},
        {b"v": b""},
        {b"v": b"[1, 2, 3]"},
        {b"v": b"\xff\xfe\xfd"},
        {b"v": b'{"producer": 1}'},
        {b"other": b"field"},
        {b"v": b'{"producer":"p","key":"k","seq":"no number"}'},
        {b"v": b'{"key":"k","n":' + b"9" * 5_000 + b"}"},
        {b"v": b"[" * 100_000},
    )

    def pick(self) -> str:
        self._chosen = self.partition()
        return self.field.names.events(self._chosen)

    def begin(self) -> None:
        with self.server.client() as client:
            for _ in range(self.rng.randint(1, 5)):
                partition = self.partition()
                if self.field.server.server_of(self.field.names.events(partition)) is not self.server:
                    partition = self._chosen  # A Cluster has it elsewhere; none is left out.
                entry_id = client.xadd(self.field.names.events(partition), self.rng.choice(self.POISON))
                self.field.note("poison", partition=partition, id=entry_id.decode())


class GroupMoved(_OfData, name="consumer group moved"):
    """The consumer group of a partition, which only shows who has read what, is moved or removed."""

    def pick(self) -> str:
        return self.field.names.events(self.partition())

    def begin(self) -> None:
        with self.server.client() as client:
            if self.rng.random() < 0.3:
                if not client.xgroup_destroy(self.key, self.field.names.group):
                    self.failure = NOT_THERE
                return
            try:
                client.xgroup_setid(self.key, self.field.names.group, "$")
            except redis.ResponseError:
                self.failure = NOT_THERE


LOSSLESS: tuple[type[Nemesis], ...] = (
    WorkerKilled, WorkerStopped, WorkerFrozen, WorkerFlaps, ProducerKilled,
    LineSlow, LineNarrow, LineCut, RequestsHeld, RepliesHeld, RepliesLost, RepliesCut,
    ConnectionsReset, ConnectionsRefused, ConnectionsStranded, LinkDown,
    ServerKilled, ServerFrozen, ScriptBusy, MemoryFull, DiskFull, ClientsLimited, ClientsKilled,
    ScriptsFlushed, ClockStepped, MembershipCorrupt, MembershipGone, WrongType, Poisoned,
    GroupMoved,
)  # fmt: skip
"""Faults that may cost nothing that was confirmed. What loses data is shown by rows F9, F10 and F34."""
