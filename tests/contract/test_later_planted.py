"""Random calls about scheduled records, some of which are repeated late; and mistakes in the scripts.

An observer knows what each call was answered and what came into the stream. Each planted mistake must show.
"""

import random
from collections import Counter

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.later import IdCall
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.clocked import ClockedBackend
from tests.contract.support import STREAM
from tests.planting import Plant, each_found_by, planted

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # the clock is a key of one server

START_MS, WINDOW_MS = 1_800_000_000_000, 50_000
SEEDS = 10
KNOWN_CHANGES = 2
"""The names of the last three calls that changed an id are kept."""


class Observer:
    """Makes random calls, and judges by their answers and the stream alone."""

    def __init__(self, backend: ClockedBackend, seed: int) -> None:
        self.backend, self.dice = backend, random.Random(seed)
        self.now_ms = START_MS
        self.calls = 0
        self.late: list[tuple[IdCall, int, int]] = []
        """Calls that arrive once more: each with its id, and the changes of that up to it."""
        self.changes: Counter[int] = Counter()
        self.promised: dict[bytes, int] = {}
        """When each record is due that was scheduled, by its value."""
        self.first: dict[int, bytes] = {}
        """The value that waits or was sent lately, by id."""
        self.cancelled: set[bytes] = set()
        self.sent: Counter[bytes] = Counter()
        self.last = ZERO
        """The id of the last entry that was read."""
        self.found: list[str] = []

    async def act(self) -> None:
        self.now_ms += self.dice.randint(0, 400)
        await self.backend.set_clock(self.now_ms)
        kind = self.dice.choice(("put", "put", "cancel", "move", "late"))
        number = self.dice.randrange(6)
        if kind == "move":
            await self.move()
        elif kind == "late" and self.late:
            call, number, changes = self.late.pop(self.dice.randrange(len(self.late)))
            if self.changes[number] - changes <= KNOWN_CHANGES:
                reply = await call.run(self.backend, MEMORY)
                if reply.code is not AppendCode.OK or reply.value == b"0":
                    self.found.append(f"a call that was done was answered {reply} when it came again")
        elif kind == "put":
            await self.put(number)
        elif kind == "cancel":
            await self.cancel(number)

    async def put(self, number: int) -> None:
        self.calls += 1
        value, due_ms = b"%d/%d" % (number, self.calls), self.now_ms + self.dice.randint(0, 3_000)
        call = later.schedule(
            STREAM, 0, f"id-{number}", f"call-{self.calls}", [b"v", value],
            due=("at", due_ms), named=("id", b"key"), replace=False, limit=0,
        )  # fmt: skip
        reply = await call.run(self.backend, MEMORY)
        if reply.code is AppendCode.OK:
            if number in self.first and self.first[number] not in self.cancelled:
                self.found.append(f"{value!r} was scheduled beside {self.first[number]!r}")
            self.first[number], self.promised[value] = value, due_ms
            self.changes[number] += 1
            if self.dice.random() < 0.5:
                self.late.append((call, number, self.changes[number]))

    async def cancel(self, number: int) -> None:
        self.calls += 1
        call = later.cancel(STREAM, 0, f"id-{number}", f"call-{self.calls}", window_ms=WINDOW_MS * 100)
        reply = await call.run(self.backend, MEMORY)
        if reply.value == b"1":
            value = self.first.get(number, b"nothing")
            if value in self.cancelled or value not in self.promised:
                self.found.append(f"{value!r} was cancelled once more by another call")
            self.cancelled.add(value)
            self.changes[number] += 1
            if self.dice.random() < 0.5:
                self.late.append((call, number, self.changes[number]))

    async def move(self) -> None:
        await later.move_due(self.backend, STREAM, [0], limit=0, window_ms=WINDOW_MS * 100)
        after = self.last.successor()
        entries = await streams.range_entries(self.backend, STREAM.events(0), after, None, 10_000)
        new = [entry.fields[b"v"] for entry in entries]
        self.last = entries[-1].id if entries else self.last
        self.sent.update(new)
        dues = [self.promised[value] for value in new]
        if dues != sorted(dues):
            self.found.append(f"{new} came out of order")
        self.found += [
            f"{value!r} came early" for value, due in zip(new, dues, strict=True) if due > self.now_ms
        ]

    async def judge(self) -> list[str]:
        await self.backend.set_clock(self.now_ms + 10_000)
        self.now_ms += 10_000
        await self.move()
        self.found += [f"{value!r} was sent {times} times" for value, times in self.sent.items() if times > 1]
        self.found += [f"{value!r} was cancelled, and sent" for value in self.cancelled & set(self.sent)]
        lost = set(self.promised) - self.cancelled - set(self.sent)
        self.found += [f"{value!r} was lost" for value in lost]
        return self.found


async def observed(backend: Backend, seed: int) -> list[str]:
    await backend.execute("FLUSHALL")
    observer = Observer(ClockedBackend(backend.server), seed)
    for _ in range(150):
        await observer.act()
    return await observer.judge()


async def test_random_calls_and_repeats_send_each_record_once_and_in_time(backend: Backend) -> None:
    for seed in range(SEEDS):
        assert await observed(backend, seed) == [], seed


@pytest.mark.full("draws ten runs for each mistake")
@each_found_by("random calls")
async def test_each_planted_mistake_shows(backend: Backend, plant: Plant) -> None:
    with planted(plant):
        for seed in range(SEEDS):
            if await observed(backend, seed):
                return
    pytest.fail("nobody noticed")
