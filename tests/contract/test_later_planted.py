"""Random calls about scheduled records, some of which are repeated late; and mistakes in the scripts.

An observer knows what each call was answered and what came into the stream. Each planted mistake must show.
"""

import hashlib
import random
from collections import Counter

import pytest

from streamworker.core.data.entries import ZERO
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.later import IdCall
from streamworker.redisio.data.streams import AppendCode
from streamworker.redisio.scripts import LATER_CANCEL, LATER_MOVE, LATER_PUT, Script
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.clocked import ClockedBackend
from tests.contract.support import STREAM

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # the clock is a key of one server

START_MS, WINDOW_MS = 1_800_000_000_000, 50_000
KNOWN_CHANGES = 2
"""The names of the last three calls that changed an id are kept."""
KEPT = "keep_later(later, delayed, id, until_ms, 'c', with_call(call, calls), due, '', ends)"
PLANTS = {
    "a record is moved twice": (
        LATER_MOVE,
        "keep_later(later, delayed, id, until_ms, 's', calls, due, entry, ends)",
        "if tonumber(string.sub(entry, -1)) % 2 == 1 then redis.call('ZREM', later, id) end",
    ),
    "cancel says true after the move": (LATER_CANCEL, "if state ~= 'w' then", "if state == nil then"),
    "cancel leaves the record": (LATER_CANCEL, KEPT, ""),
    "a cancelled record is forgotten at once": (LATER_CANCEL, KEPT, "redis.call('HDEL', delayed, id)"),
    "a call is a duplicate of itself": (
        LATER_PUT,
        "if was_made(calls, call) then return known_already('OK') end",
        "",
    ),
    "a cancel that arrives once more takes back what came after it": (
        LATER_CANCEL,
        "if was_made(calls, call) then",
        "if state == 'c' and was_made(calls, call) then",
    ),
    "a second record takes the place of the first": (
        LATER_PUT,
        "if (state == 'w' or state == 's') and ARGV[5] ~= '1' then",
        "if state == 's' and ARGV[5] ~= '1' then",
    ),
    "a record is moved before it is due": (LATER_MOVE, "'-inf', text(now)", "'-inf', text(now + 3000)"),
    "records are moved in any order": (
        LATER_MOVE,
        "'ZRANGEBYSCORE', later, '-inf', text(now)",
        "'ZRANGEBYLEX', later, '-', '+'",
    ),
}


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
            self.cancelled.add(self.first[number])
            self.changes[number] += 1
            if self.dice.random() < 0.5:
                self.late.append((call, number, self.changes[number]))

    async def move(self) -> None:
        before = await self.sent()
        await later.move_due(self.backend, STREAM, [0], limit=0, window_ms=WINDOW_MS * 100)
        new = (await self.sent())[len(before) :]
        dues = [self.promised[value] for value in new]
        if dues != sorted(dues):
            self.found.append(f"{new} came out of order")
        self.found += [
            f"{value!r} came early" for value, due in zip(new, dues, strict=True) if due > self.now_ms
        ]

    async def sent(self) -> list[bytes]:
        entries = await streams.range_entries(self.backend, STREAM.events(0), ZERO, None, 10_000)
        return [entry.fields[b"v"] for entry in entries]

    async def judge(self) -> list[str]:
        await self.backend.set_clock(self.now_ms + 10_000)
        self.now_ms += 10_000
        await self.move()
        sent = Counter(await self.sent())
        self.found += [f"{value!r} was sent {times} times" for value, times in sent.items() if times > 1]
        self.found += [f"{value!r} was cancelled, and sent" for value in self.cancelled & set(sent)]
        lost = set(self.promised) - self.cancelled - set(sent)
        self.found += [f"{value!r} was lost" for value in lost]
        return self.found


async def observed(backend: Backend, seed: int) -> list[str]:
    await backend.execute("FLUSHALL")
    observer = Observer(ClockedBackend(backend._server), seed)
    for _ in range(150):
        await observer.act()
    return await observer.judge()


async def test_random_calls_and_repeats_send_each_record_once_and_in_time(backend: Backend) -> None:
    for seed in range(20):
        assert await observed(backend, seed) == [], seed


@pytest.mark.full("draws twenty runs for each mistake")
@pytest.mark.parametrize("mistake", PLANTS)
async def test_each_planted_mistake_shows(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    script, right, wrong = PLANTS[mistake]
    assert script.text.count(right) == 1
    text = script.text.replace(right, wrong)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    planted = Script(script.name, text, sha)
    name = next(name for name, each in vars(later).items() if each is script)
    monkeypatch.setattr(later, name, planted)
    monkeypatch.setattr(ClockedBackend, "_clocked", {})
    found = [each for seed in range(20) for each in await observed(backend, seed)]
    assert found, "nobody noticed"
    print(f"{mistake}: {found[0]}")
