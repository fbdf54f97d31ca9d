"""Drawn schedules of one archived partition: archivers, readers, senders and trims, with faults of all kinds.

The archivers are the product's mode, the readers its fetcher and its reader of archives, and the server runs
the scripts that ship. Only what holds them is of this file: each call is a step of its own, and so is its
answer, and a schedule draws whose step comes next. So a zombie is one whose steps are not drawn for long, a
death is a coroutine that is closed, and a lost answer is an error in place of it. A failover restores what
the server held some time ago; a meddler deletes entries.

The promise is *chain = log*: no record is trimmed before it is archived; the chain has no gap, no double and
no record that was never sent; and each group handles each record once and in order, wherever it is read.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import anyio.to_thread
import msgspec

from streamworker import App, Archive
from streamworker.archive.chain import Chain, contents_of
from streamworker.archive.store import Found, Listed, Store
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import (
    ArchiveConflict,
    ArchiveError,
    ArchiveUnavailable,
    BackendError,
    BackendUnavailable,
)
from streamworker.log import get_logger
from streamworker.records.entries import Entries, as_stored, id_at, origin_at
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import WRITTEN, CommitCode, CommitRequest, commit_many
from streamworker.redisio.data.trimming import Keep, trim_many
from streamworker.redisio.group import archiving, locks
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import APPEND, COMMIT
from streamworker.runtime.read.buffer import ByteBudget, PartitionBuffer
from streamworker.runtime.read.cold import ColdReader
from streamworker.runtime.read.fetcher import Reads
from streamworker.runtime.run.commits import Work
from streamworker.runtime.run.modes import archive as mode
from streamworker.settings import Settings
from tests.simulator.server.backend import StoreBackend, _encoded

AFTER_MS, EVERY_MS = 100, 300
STEPS = 700
QUIET_STEPS = 4_000


class Order(msgspec.Struct):
    """What is sent."""

    n: int


class Stopped(Exception):
    """An owner that has lost its partition."""


class Turn:
    """A step of a coroutine ends here."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Objects(Store):
    """A store in memory whose answers, and whose puts, may be lost; its lists may be old."""

    def __init__(self, world: "World") -> None:
        self.url, self._world = "memory://objects", world
        self.held: dict[str, bytes] = {}
        self._old: list[str] = []

    def _away(self) -> None:
        if self._world.rarely("store away"):
            raise ArchiveUnavailable("The store did not answer.")

    def put_new(self, name: str, body: bytes) -> bool:
        self._away()
        is_new = name not in self.held
        if is_new:
            self.held[name] = body
        else:
            self._world.seen["puts refused"] += 1
        if self._world.rarely("answer of a put lost"):
            raise ArchiveUnavailable("The answer was lost.")
        return is_new

    def get(self, name: str) -> Found | None:
        self._away()
        return Found(self.held[name], {}) if name in self.held else None

    def tail(self, name: str) -> bytes | None:
        self._away()
        return self.held.get(name)

    def names(self, prefix: str, after: str = "") -> list[Listed]:
        self._away()
        if not self._world.rarely("old list"):
            self._old = sorted(self.held)
        found = (name for name in self._old if name.startswith(prefix) and name > after)
        return [Listed(name, len(self.held[name])) for name in found]


class Backend(StoreBackend):
    """A server each of whose calls is a step, and whose requests and replies may be lost."""

    def __init__(self, world: "World") -> None:
        super().__init__(lambda: world.clock_us)
        self.world = world
        self.on_commit: Callable[[EntryId], None] | None = None
        """Is told of a commit when the server does it."""
        self.server = SimpleNamespace(pause_max_ms=10, has_all_keys=True, map_version=0)

    async def run_many(self, *given: Any, **named: Any) -> Any:
        return await self._step(super().run_many, *given, **named)

    async def pipeline(self, *given: Any) -> Any:
        return await self._step(super().pipeline, *given)

    async def execute(self, *words: Any, **named: Any) -> Any:
        return await self._step(super().execute, *words, **named)

    async def _step(self, call: Callable[..., Coroutine[Any, Any, Any]], *given: Any, **named: Any) -> Any:
        await Turn()
        if self.world.rarely("request lost"):
            raise self._lost()
        reply = await call(*given, **named)
        if self.on_commit is not None and given[0] is COMMIT and reply[0][0] == b"OK":
            self.on_commit(EntryId.parse(reply[0][2]))
        await Turn()
        if self.world.rarely("reply lost"):
            raise self._lost()
        return reply

    @staticmethod
    def _lost() -> BackendError:
        return BackendUnavailable("No answer.", remedy="Try again.")


@dataclass
class Group:
    """A processor: what it has committed, by its checkpoint."""

    keys: GroupKeys
    done: list[tuple[EntryId, int]] = field(default_factory=list)


class Readings(Reads):
    """The product's reads, one at a time."""

    async def _read_for_ever(self) -> None: ...

    def _wake(self, buffer: PartitionBuffer, *, is_new: bool = False) -> None: ...

    async def bring(self, buffer: PartitionBuffer, dice: random.Random) -> None:
        """Make one read, of Redis or of the archive."""
        assert self.cold is not None
        if 0 in self._cold:
            await self._read_one(self.cold, buffer)
            return
        positions = {0: buffer.position}
        answer = await streams.read_each(self.backend, self.keys, positions, 4)
        entries = answer[0]
        if isinstance(entries, BackendError):
            raise entries
        if entries:
            self.put({0: buffer}, 4, await self.warm(positions, {0: entries}))
        elif dice.random() < 0.2 and await archiving.overtaken(self.backend, self.keys, positions):
            self._freeze(0)


class World:
    """One schedule."""

    def __init__(self, seed: int, options: Mapping[str, Any] | None = None, **stream: Any) -> None:
        self.dice = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.clock_us = 1_000_000_000
        self.quiet = True
        self.backend: Any = Backend(self)
        self.objects = Objects(self)
        app = App(f"shop{seed % 7}")
        size = self.dice.choice((60, 600, 10**6))
        its: dict[str, Any] = {"every": EVERY_MS / 1000, "after": AFTER_MS / 1000, "size": size}
        archive = Archive("memory://objects", **{**its, **(options or {})})
        self.stream = app.stream("orders", Order, archive=archive, partitions=1, **stream)
        self.spec = app.registry.archivers["orders"]
        self.archiver = GroupKeys(app.name, "orders", "archive")
        self.groups = [Group(GroupKeys(app.name, "orders", name)) for name in ("price", "late")]
        self.sent: dict[EntryId, set[int]] = {}
        """By id what was sent, in any history."""
        self.alive: list[tuple[EntryId, int]] = []
        """What the server has taken and not lost, in order."""
        self.deleted: set[EntryId] = set()
        self.kept: list[tuple[Any, int, int]] = []
        self.conflict = ""
        self.clock_went_back = False
        self.lost_ids: set[EntryId] = set()
        self.number = 0
        self.epochs = 0
        self.actors: list[tuple[str, Coroutine[Any, Any, None]]] = []

    def rarely(self, what: str, chance: float = 0.015) -> bool:
        """Draw whether a fault happens."""
        if self.quiet or self.dice.random() >= chance:
            return False
        self.seen[what] += 1
        return True

    # -- actors ----------------------------------------------------------------------------------

    async def acquire(self, keys: GroupKeys) -> tuple[str, Acquired]:
        """Take the partition from whoever has it."""
        self.epochs += 1
        owner = f"w{self.epochs}"
        access = Access(self.backend, keys, 0, lambda _: ())
        while True:
            try:
                ask = AcquireLocks((0,), owner, self.epochs, (owner,))
                reply = (await locks.acquire(access, ask)).replies.get(0)
                if isinstance(reply, Acquired):
                    return owner, reply
            except BackendError:
                pass
            await Turn()

    async def archive(self) -> None:
        """Archive as long as this owner lives."""
        owner, lock = await self.acquire(self.archiver)
        commits = _Commits(self, owner, lock)
        intake = SimpleNamespace(
            buffer=SimpleNamespace(close=lambda: None),
            wait_may_start=_always,
            wait_draining=_turn,
            pause=_turn,
            naming=None,
            activity=SimpleNamespace(retries=_nothing, recovers=_nothing, rests=_nothing),
            commits=commits,
        )
        invoker = SimpleNamespace(spec=self.spec, state=None, owned=SimpleNamespace(log=get_logger("test")))
        try:
            halted = await mode.ArchiveMode(invoker, intake, self.dice).run()
        except Stopped:
            return
        self.seen["conflicts"] += 1
        self.conflict = halted

    async def handle(self, group: Group) -> None:
        """Handle records as one owner of a group."""
        owner, lock = await self.acquire(group.keys)
        link: Any = Backend(self)
        link.store = self.backend.store
        reads = Readings(
            link, group.keys, Settings(), ByteBudget(10**6), rng=self.dice, cold=ColdReader(self.stream.spec)
        )
        buffer, checkpoint = reads.add(0, lock.checkpoint), lock.checkpoint
        while True:
            try:
                await reads.bring(buffer, self.dice)
            except (ArchiveError, BackendError) as error:
                if isinstance(error, ArchiveConflict):
                    self.seen["reader found no chain"] += 1
            if buffer.waiting:
                entries = buffer.take(self.dice.randint(1, 6), 10**6)
                if not await self._commit(group, reads, owner, lock.epoch, checkpoint, buffer, entries):
                    return
                checkpoint = id_at(entries, -1)
            await Turn()

    async def _commit(
        self,
        group: Group,
        reads: Reads,
        owner: str,
        epoch: int,
        previous: EntryId,
        buffer: PartitionBuffer,
        entries: Any,
    ) -> bool:
        new, count = id_at(entries, -1), len(entries)
        request = CommitRequest(0, owner, epoch, previous, new, count, reads=buffer.reads_up_to(new))
        request.last, request.trim = as_stored(*origin_at(entries, -1)), self.dice.random() < 0.5
        numbers = [(each.id, msgspec.json.decode(each.fields[b"v"])["n"]) for each in entries]
        link: Any = reads.backend
        link.on_commit = lambda _: group.done.extend(numbers)
        while True:
            (reply,) = await commit_many(link, group.keys, [request])
            self.seen[f"commit {reply.code.name}"] += 1
            if reply.code in WRITTEN:
                buffer.release(len(entries), sum(each.size for each in entries))
                return True
            if reply.code is not CommitCode.UNKNOWN:
                return False
            await Turn()

    def checkpoint_of(self, keys: GroupKeys) -> EntryId:
        """Return what the server has now."""
        found = self.backend.store.field(keys.lock(0).encode(), b"checkpoint")
        return EntryId.parse(found) if found else ZERO

    async def trim(self) -> None:
        """Trim as the maintenance does."""
        while True:
            for _ in range(20):
                await Turn()
            ms = self.dice.choice((None, 0, 200))
            with suppress(BackendError):
                await trim_many(self.backend, self.archiver, {0: 0}, partial(_kept, ms))

    # -- what happens at once --------------------------------------------------------------------

    def send(self) -> None:
        """Let the server take some records."""
        args = [b"%d" % self.dice.choice((1, 1, 2, 5, 9))]
        records = []
        for _ in range(int(args[0])):
            self.number += 1
            records.append(msgspec.json.encode(Order(self.number)))
        append = streams.Append(0, "p", self.number, 0, records, since=self._since, pack="json")
        keys, words = streams.append_call(self.archiver, append)
        before = self.ids()
        reply = self.backend.evaluate(APPEND, _encoded(keys), _encoded(words))
        if reply[0] != b"OK":
            return
        self._since = self.number
        self.seen["sent"] += len(records)
        new = sorted(self.ids() - before)
        for each, number in zip(new, range(self.number - len(records) + 1, self.number + 1), strict=True):
            self.sent.setdefault(each, set()).add(number)
            self.alive.append((each, number))

    _since = 0

    def entries(self) -> Entries:
        """Return what the server has now."""
        return Entries.of(self.backend.command("XRANGE", self.archiver.events(0), "-", "+"))

    def ids(self) -> set[EntryId]:
        """Return the ids of the records that the server has now."""
        entries = self.entries()
        return {entries.id_at(index) for index in range(len(entries))}

    def delete(self) -> None:
        """Delete an entry, as another program does."""
        found = self.backend.command("XRANGE", self.archiver.events(0), "-", "+")
        if found:
            text, flat = self.dice.choice(found)
            gone = Entries.of([(text, flat)])
            self.deleted |= {gone.id_at(index) for index in range(len(gone))}
            self.backend.store.call("XDEL", self.archiver.events(0).encode(), text)
            self.seen["deleted"] += 1

    def keep(self) -> None:
        """Remember what a replica has."""
        self.kept.append((self.backend.store.snapshot(), len(self.alive), self._since))

    def fail_over(self) -> None:
        """Let a replica take over that lacks what came last."""
        back = self.dice.randrange(min(3, len(self.kept)))
        del self.kept[len(self.kept) - back :]
        snapshot, length, since = self.kept[-1]
        self.backend.store.restore(snapshot)
        self.lost_ids |= {each for each, _ in self.alive[length:]}
        del self.alive[length:]
        self._since = since
        if self.dice.random() < 0.3:
            self.clock_us -= self.dice.choice((5_000, 60_000, 250_000))
            self.clock_went_back = True
        for group in self.groups:
            at = self.checkpoint_of(group.keys)
            group.done = [each for each in group.done if each[0] <= at]
        self.seen["failovers"] += 1

    # -- the schedule ----------------------------------------------------------------------------

    def begin(self, what: str) -> None:
        """Let an actor begin."""
        if what == "archive":
            actor = self.archive()
        elif what == "trim":
            actor = self.trim()
        else:
            actor = self.handle(next(group for group in self.groups if group.keys.group == what))
        self.actors.append((what, actor))

    def step(self, index: int) -> None:
        """Let an actor do its next step."""
        try:
            self.actors[index][1].send(None)
        except StopIteration:
            del self.actors[index]

    def run(self) -> str:
        """Run the schedule; return what it broke, or nothing."""
        for keys in (self.archiver, self.groups[0].keys):
            _finish(streams.register(self.backend, keys, Placement(1), "earliest"))
        self.keep()
        self.quiet = False
        for what in ("archive", "price", "trim"):
            self.begin(what)
        for at in range(STEPS):
            self._draw(at)
        self.quiet = True
        for _, actor in self.actors:
            actor.close()
        self.actors.clear()
        for what in ("archive", "price", "late", "trim"):
            self.begin(what)
        for _ in range(QUIET_STEPS):
            self.clock_us += 1_000
            if self.actors:
                self.step(self.dice.randrange(len(self.actors)))
            names = {what for what, _ in self.actors}
            for what in {"price", "late", "archive"} - names:
                if what != "archive" or not self.conflict:
                    self.begin(what)
        for _, actor in self.actors:
            actor.close()
        return self.judge()

    def _draw(self, at: int) -> None:
        dice = self.dice
        self.clock_us += dice.choice((100, 1_000, 3_000, 3_000))
        match dice.random():
            case chance if chance < 0.12:
                self.send()
            case chance if chance < 0.14:
                self.keep()
            case chance if chance < 0.145 and at > 100:
                self.fail_over()
            case chance if chance < 0.15:
                self.delete()
            case chance if chance < 0.16 and at > 50 and self.actors:
                index = dice.randrange(len(self.actors))
                what, actor = self.actors[index]
                if dice.random() < 0.5:
                    actor.close()
                    del self.actors[index]
                    self.seen["deaths"] += 1
                self.begin(what)  # The other one becomes a zombie.
            case chance if chance < 0.165 and at > 200:
                self.begin(dice.choice(("late", "archive")))
            case _ if self.actors:
                self.step(dice.randrange(len(self.actors)))

    # -- the promise -----------------------------------------------------------------------------

    def judge(self) -> str:
        """Return what is broken, or nothing."""
        chain, links = Chain(self.objects, 0), []
        archived: list[tuple[EntryId, int]] = []
        at = ZERO
        for segment in chain.segments():
            footer = chain.footer(segment.after)
            assert footer is not None
            links.append(footer)
            if segment.after != at or footer.after != at:
                return f"the chain goes from {at} to {segment.after}"
            at = footer.last
        try:
            for excerpt in chain.read(ZERO):
                for its, payload in contents_of(excerpt.table).items():
                    assert isinstance(payload, bytes)
                    archived.append((its, msgspec.json.decode(payload)["n"]))
        except ArchiveConflict as error:
            return str(error)
        ids = [its for its, _ in archived]
        if ids != sorted(set(ids)):
            return "the chain has a record twice or out of order"
        if wrong := [each for each in archived if each[1] not in self.sent.get(each[0], ())]:
            return f"the chain has what was never sent: {wrong[0]}"
        if links and sum(each.records for each in links) != len(archived):
            return "the footers count other records than there are"
        if self.checkpoint_of(self.archiver) > at:
            return "the checkpoint is above the chain"
        # A failover may bring back what another program had deleted before it was archived.
        is_back = any(f"record {each} of" in self.conflict for each in self.deleted)
        if self.conflict and not (is_back or self.lost_ids & set(ids) or self.clock_went_back):
            return f"a conflict without a reason: {self.conflict}"
        self.seen["archived"] += len(archived)
        return self._judge_groups(dict(archived), at)

    def _judge_groups(self, archived: dict[EntryId, int], end: EntryId) -> str:
        here = self.ids()
        for its, number in self.alive:
            if its not in here and its not in self.deleted and archived.get(its) != number:
                return f"record {its} was trimmed before it was archived"
            if its in here and its <= end and its not in archived and not self.conflict:
                return f"the archive lacks {its}, and goes up to {end}"
        if self.conflict:
            return ""
        for group in self.groups:
            ids = [its for its, _ in group.done]
            if ids != sorted(set(ids)):
                return f"{group.keys.group} has a record twice or out of order"
            done = set(group.done)
            lacks = [each for each in self.alive if each not in done and each[0] not in self.deleted]
            if lacks:
                which = f"{len(lacks)} of {len(self.alive)} records, the first {lacks[0]}"
                return f"{group.keys.group} lacks {which}"
        return ""


class _Commits:
    """The commits of an archiver."""

    def __init__(self, world: World, owner: str, lock: Acquired) -> None:
        self.observer = self.spans = None
        self._world = world
        self.committed = SimpleNamespace(checkpoint=lock.checkpoint, entries=lock.entries)
        self.start = SimpleNamespace(partition=0, owner=owner, lock=SimpleNamespace(epoch=lock.epoch))
        self.committer = SimpleNamespace(backend=world.backend, keys=world.archiver)

    async def submit(self, work: Work) -> None:
        assert work.archived is not None
        new, records = work.archived
        committed, lock = self.committed, self.start.lock
        request = CommitRequest(
            0, self.start.owner, lock.epoch, committed.checkpoint, new, records, is_archived=True
        )
        while True:
            (reply,) = await commit_many(self._world.backend, self._world.archiver, [request])
            if reply.code in WRITTEN:
                self.committed = SimpleNamespace(checkpoint=new, entries=committed.entries + records)
                return
            if reply.code is not CommitCode.UNKNOWN:
                raise Stopped
            await Turn()

    async def flush(self) -> None: ...


def _kept(ms: int | None, _: int) -> Keep:
    return Keep(events_ms=ms)


async def _always() -> bool:
    await Turn()
    return True


async def _turn(_: float) -> bool:
    await Turn()
    return True


def _nothing(*_: Any) -> None: ...


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        pass


@asynccontextmanager
async def _no_turn() -> AsyncIterator[None]:
    yield


@contextmanager
def _without_loop(world: World) -> Iterator[None]:
    """Let what would run in a thread be two steps, and all stores be that of the schedule."""

    async def run_sync(call: Callable[..., Any], *given: Any, abandon_on_cancel: bool = False) -> Any:
        del abandon_on_cancel
        await Turn()
        done = call(*given)
        await Turn()
        return done

    def store_at(_: str) -> Store:
        return world.objects

    with (
        patch.object(anyio.to_thread, "run_sync", run_sync),
        patch.object(mode, "store_at", store_at),
        patch.object(mode, "turn", _no_turn),
        patch.object(mode, "_known", {}),
        patch("streamworker.runtime.read.cold.store_at", store_at),
    ):
        yield


def violation(seed: int) -> tuple[str, Counter[str]]:
    """Run one schedule; return what it broke, or nothing, and how often each thing happened."""
    world = World(seed)
    with _without_loop(world):
        return world.run(), world.seen


def quiet_segments(world: World, age_ms: int) -> int:
    """Let an archiver work without faults beside records of some age; return how many segments it puts."""
    world.quiet = True
    with _without_loop(world):
        _finish(streams.register(world.backend, world.archiver, Placement(1), "earliest"))
        world.send()
        world.clock_us += age_ms * 1000
        world.begin("archive")
        for _ in range(200):
            world.step(0)
        world.actors.pop()[1].close()
    return len(Chain(world.objects, 0).segments())


def at_a_rate(world: World, ms: int) -> tuple[list[int], int]:
    """Send some records each 10 ms beside an archiver without faults.

    The result is how many records each segment has, and how many were not archived at most.
    """
    world.quiet, most = True, 0
    with _without_loop(world):
        _finish(streams.register(world.backend, world.archiver, Placement(1), "earliest"))
        world.begin("archive")
        world.begin("trim")
        for _ in range(ms // 10):
            world.clock_us += 10_000
            world.send()
            end = world.checkpoint_of(world.archiver)
            most = max(most, sum(each > end for each, _ in world.alive[-500:]))
            for _ in range(15):
                world.step(0)
                world.step(1)
        for _, actor in world.actors:
            actor.close()
    chain = Chain(world.objects, 0)
    footers = [chain.footer(each.after) for each in chain.segments()]
    return [each.records for each in footers if each is not None], most
