"""What is scheduled in a partition that is sealed moves to the one that follows, and is sent once.

Random programs schedule and cancel, move what waits step by step, stop between two steps, and arrive late.
Some are of an earlier release, which knows of no seal.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.later import digest_of
from streamworker.redisio.scripts import LEAVE_LATER, SEAL, TAKE_LATER
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.clocked import ClockedBackend
from tests.contract.support import STREAM
from tests.planting import Plant, each_found_by, planted

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # the clock is a key of one server

START_MS, WINDOW_MS = 1_800_000_000_000, 5_000
SEEDS = 10
OLD, NEW = 0, 1


class Growth:
    """Partition 0 is sealed, partition 1 follows; judges by answers and by what was sent."""

    def __init__(self, backend: ClockedBackend, seed: int) -> None:
        self.backend, self.dice = backend, random.Random(seed)
        self.now_ms, self.calls = START_MS, 0
        self.stands: dict[str, bytes] = {}
        """The value of each id that must be sent once, or was."""
        self.never: set[bytes] = set()
        """Values that were cancelled or replaced before they were sent."""
        self.held: list[tuple[int, list[Any]]] = []
        """What somebody has read in the sealed partition, and when."""

    async def act(self) -> None:
        self.now_ms += self.dice.choice((0, 50, 50, 400, 400, 4_000_000 * (self.dice.random() < 0.1)))
        await self.backend.set_clock(self.now_ms)
        steps = (self.put, self.cancel, self.read, self.take, self.remove, self.send, self.as_before)
        await self.dice.choice(steps)()

    async def as_before(self) -> None:
        """Schedule or cancel as a program that knows of no seal: what comes of it is sent once at most."""
        before = dict(self.stands), set(self.never)
        async with self.unnoted():
            name = await self.dice.choice((self.put, self.cancel))(OLD)
        self.stands, self.never = before
        self.stands.pop(name, None)

    @asynccontextmanager
    async def unnoted(self) -> AsyncIterator[None]:
        """Take away the note of the seal meanwhile: scripts of an earlier release do not read it."""
        note = await self.backend.execute("HGET", STREAM.counts(OLD), "sealed")
        await self.backend.execute("HDEL", STREAM.counts(OLD), "sealed")
        yield
        await self.backend.execute("HSET", STREAM.counts(OLD), "sealed", note)

    async def move(self, name: str) -> None:
        """Move an id first, as each program of this release does."""
        digest = digest_of(b"ann", name)
        left = await later.hand_on(self.backend, STREAM, OLD, lambda _: NEW, MEMORY, ids=[digest], most=0)
        assert left is not None

    async def put(self, partition: int = NEW) -> str:
        name, self.calls = f"i{self.dice.randrange(4)}", self.calls + 1
        value, replace = b"%d" % self.calls, self.dice.random() < 0.3
        if partition == NEW:
            await self.move(name)
        if await self.schedule(partition, name, value, self.dice.randint(0, 2_000), replace=replace):
            if replace and name in self.stands and self.stands[name] not in await self.sent():
                self.never.add(self.stands[name])
            self.stands[name] = value
        return name

    async def schedule(
        self, partition: int, name: str, value: bytes, after_ms: int, *, replace: bool = False
    ) -> bool:
        call = later.schedule(
            STREAM, partition, digest_of(b"ann", name), "c" + value.decode(), [b"v", value],
            due=("after", after_ms), named=(name, b"ann"), replace=replace, limit=0,
        )  # fmt: skip
        reply = await call.run(self.backend, MEMORY)
        assert reply.code in (AppendCode.OK, AppendCode.OTHER)
        return reply.code is AppendCode.OK

    async def cancel(self, partition: int = NEW) -> str:
        name, self.calls = f"i{self.dice.randrange(4)}", self.calls + 1
        if partition == NEW:
            await self.move(name)
        call = later.cancel(STREAM, partition, digest_of(b"ann", name), f"c{self.calls}", window_ms=WINDOW_MS)
        if (await call.run(self.backend, MEMORY)).value == b"1":
            self.never.add(self.stands.pop(name, b"of an old program"))
        return name

    async def read(self) -> None:
        call = LEAVE_LATER.at(STREAM, OLD, most=self.dice.choice((1, 200)), ids=[], moved=[])
        _, read_ms, _, *rows = await self.backend.run(LEAVE_LATER, call)
        self.held += [(int(read_ms), [*row]) for row in zip(rows[::3], rows[1::3], rows[2::3], strict=True)]

    async def take(self) -> None:
        """It may come late, and more than once."""
        if self.held:
            read_ms, (name, at, known) = self.dice.choice(self.held)
            call = TAKE_LATER.at(STREAM, NEW, id=name, at=at, known=known, read_ms=read_ms)
            await self.backend.run(TAKE_LATER, call)

    async def remove(self) -> None:
        """Only what has arrived is removed."""
        if self.held:
            read_ms, (name, at, known) = self.dice.choice(self.held)
            taken = TAKE_LATER.at(STREAM, NEW, id=name, at=at, known=known, read_ms=read_ms)
            if (await self.backend.run(TAKE_LATER, taken))[0] == b"OK":
                call = LEAVE_LATER.at(STREAM, OLD, most=0, ids=[], moved=[name, known])
                await self.backend.run(LEAVE_LATER, call)

    async def send(self) -> None:
        await later.move_due(self.backend, STREAM, [OLD, NEW], limit=0, window_ms=WINDOW_MS)

    async def sent(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for partition in OLD, NEW:
            entries = await streams.range_entries(self.backend, STREAM.events(partition), ZERO, None, 1_000)
            found.update(entry.fields[b"v"] for entry in entries)
        return found

    async def seal(self) -> None:
        assert (await self.backend.run(SEAL, SEAL.at(STREAM, OLD, map="1+1")))[0] == b"OK"

    async def finish(self) -> None:
        """A worker moves all that waits, and sends it when it is due."""
        for _ in range(3):
            await later.hand_on(self.backend, STREAM, OLD, lambda _: NEW, MEMORY)
            self.now_ms += 4_000_000
            await self.backend.set_clock(self.now_ms)
            await self.send()
        for _ in range(9):
            await self.take()

    async def faults(self) -> list[str]:
        sent = await self.sent()
        twice = [f"{value!r} was sent {count} times" for value, count in sent.items() if count > 1]
        lost = [f"{name}: {value!r} was not sent" for name, value in self.stands.items() if not sent[value]]
        return [
            *twice,
            *lost,
            *(f"{each!r} was sent though it was cancelled" for each in self.never & {*sent}),
        ]


async def story(backend: Backend, seed: int) -> list[str]:
    """Return what went wrong in one story."""
    await backend.execute("FLUSHDB")
    growth = Growth(ClockedBackend(backend.server), seed)
    for _ in range(growth.dice.randint(0, 12)):
        growth.now_ms += 300
        await growth.backend.set_clock(growth.now_ms)
        await growth.dice.choice((growth.put, growth.put, growth.cancel))(OLD)
        if growth.dice.random() < 0.3:
            await growth.send()
    await growth.backend.set_clock(growth.now_ms)
    await growth.seal()
    for _ in range(growth.dice.randint(0, 80)):
        await growth.act()
    await growth.finish()
    return await growth.faults()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_waits_when_its_partition_is_sealed_is_sent_once(backend: Backend, seed: int) -> None:
    """Whoever moves it, how often, and however late a step comes."""
    for each in range(5):
        assert await story(backend, 100 * seed + each) == []


async def test_a_partition_that_is_sealed_itself_takes_nothing(backend: Backend) -> None:
    """Somebody has an old map: what waits stays, and who moves it is told."""
    growth = Growth(ClockedBackend(backend.server), 0)
    await growth.backend.set_clock(START_MS)
    await growth.put(OLD)
    for partition in OLD, NEW:
        await growth.backend.run(SEAL, SEAL.at(STREAM, partition, map="1+1"))
    assert await later.hand_on(growth.backend, STREAM, OLD, lambda _: NEW, MEMORY) is None
    assert await later.hand_on(growth.backend, STREAM, OLD, lambda _: 2, MEMORY) == 0
    assert len(await later.waiting(growth.backend, STREAM, 2)) == 1


async def test_what_an_earlier_release_changes_between_two_steps_is_moved_as_well(backend: Backend) -> None:
    """Its record takes the place of the one that was moved, and a cancelled one is not sent."""
    for change in "replaced", "cancelled":
        await backend.execute("FLUSHDB")
        growth = Growth(ClockedBackend(backend.server), 0)
        await growth.backend.set_clock(START_MS)
        await growth.schedule(OLD, "i", b"1", after_ms=500)
        await growth.seal()
        await growth.read()
        await growth.take()
        async with growth.unnoted():
            if change == "replaced":
                await growth.schedule(OLD, "i", b"2", after_ms=500, replace=True)
            else:
                await later.cancel(STREAM, OLD, digest_of(b"ann", "i"), "c9", window_ms=WINDOW_MS).run(
                    growth.backend, MEMORY
                )
        await growth.remove()
        await growth.move("i")
        await growth.finish()
        assert await growth.sent() == ({b"2": 1} if change == "replaced" else {})


@pytest.mark.full("draws fifty stories for each mistake")
@each_found_by("stories of a seal")
async def test_each_planted_mistake_shows(backend: Backend, plant: Plant) -> None:
    with planted(plant):
        for seed in range(50):
            if await story(backend, seed):
                return
    pytest.fail("nobody noticed")
