"""Records are sent later, once, by calls that may each be repeated, and a clock that the test sets."""

import pytest

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import ZERO
from streamworker.errors import BackendRefused
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.later import digest_of
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.clocked import ClockedBackend
from tests.contract.support import GROUP, STREAM, Group, Raw

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # the clock is a key of one server

START_MS = 1_800_000_000_000
WINDOW_MS = 86_400_000


class Shop:
    """A partition whose server is told the time."""

    def __init__(self, backend: ClockedBackend) -> None:
        self.backend = backend

    async def at(self, seconds: float) -> None:
        await self.backend.set_clock(START_MS + round(seconds * 1000))

    async def put(
        self,
        id: str,
        seconds: float,
        *,
        call: str = "",
        replace: bool = False,
        key: bytes = b"ann",
        limit: int = 0,
    ) -> tuple[AppendCode, float]:
        """Schedule a record, due so many seconds after the start; return when it is due."""
        reply = await later.schedule(
            STREAM,
            0,
            digest_of(key, id),
            call or f"call-{id}-{seconds}",
            [b"v", id.encode(), b"h.at", b"%g" % seconds],
            due=("at", START_MS + round(seconds * 1000)),
            named=(id, key),
            replace=replace,
            limit=limit,
        ).run(self.backend, MEMORY)
        return reply.code, (int(reply.value) - START_MS) / 1000 if reply.value else 0.0

    async def cancel(self, id: str, call: str = "cancel") -> bool:
        cancelled = later.cancel(STREAM, 0, digest_of(b"ann", id), call, window_ms=WINDOW_MS)
        reply = await cancelled.run(self.backend, MEMORY)
        assert reply.code is AppendCode.OK
        return reply.value == b"1"

    async def move(self, limit: int = 0, *, window_ms: int = WINDOW_MS) -> later.Moved:
        return (await later.move_due(self.backend, STREAM, [0], limit=limit, window_ms=window_ms))[0]

    async def sent(self) -> list[str]:
        entries = await streams.range_entries(self.backend, STREAM.events(0), ZERO, None, 1_000)
        return [entry.fields[b"v"].decode() for entry in entries]

    async def waiting(self) -> list[str]:
        return [each.id for each in await later.waiting(self.backend, STREAM, 0)]


@pytest.fixture
async def shop(backend: Backend) -> Shop:
    made = Shop(ClockedBackend(backend.server))
    await made.at(0)
    return made


async def test_a_record_is_kept_with_all_its_fields_and_its_name(shop: Shop) -> None:
    """Bytes of any kind, and what `later list` shows."""
    reply = await later.schedule(
        STREAM,
        0,
        "digest",
        "call",
        [b"v", b"\x00\n1,2 \xff", b"h.empty", b""],
        due=("after", 1_500),
        named=("ask\n7", "zoë".encode()),
        replace=False,
        limit=0,
    ).run(shop.backend, MEMORY)
    assert reply == AppendReply(AppendCode.OK, b"%d" % (START_MS + 1_500))
    fields = {b"v": b"\x00\n1,2 \xff", b"h.empty": b""}
    assert await later.waiting(shop.backend, STREAM, 0) == [
        later.Waiting(0, "ask\n7", "zoë", START_MS + 1_500, fields)
    ]
    await shop.at(2)
    await shop.move()
    (entry,) = await streams.range_entries(shop.backend, STREAM.events(0), ZERO, None, 9)
    assert dict(entry.fields) == fields


async def test_a_second_record_of_an_id_is_told_the_time_of_the_first(shop: Shop) -> None:
    """While that waits, and for the window after it was sent; then the id is free."""
    await shop.put("a", 10)
    assert await shop.put("a", 50) == (AppendCode.OTHER, 10)
    assert await shop.put("a", 10) == (AppendCode.OK, 10)  # a repeat of the first call
    await shop.at(10)
    await shop.move()
    assert await shop.put("a", 60) == (AppendCode.OTHER, 10)
    assert await shop.put("a", 10) == (AppendCode.OK, 10)
    await shop.at(10 + WINDOW_MS / 1000)
    assert await shop.put("a", 100_000) == (AppendCode.OK, 100_000)
    assert (await shop.sent(), await shop.waiting()) == (["a"], ["a"])


async def test_a_replacement_takes_the_place_of_one_that_waits_or_was_sent(shop: Shop) -> None:
    """So a reminder can be put off by each event, and begins anew after it was sent."""
    await shop.put("a", 10)
    assert await shop.put("a", 20, replace=True) == (AppendCode.OK, 20)
    await shop.at(15)
    assert (await shop.move()).records == 0
    await shop.at(20)
    assert (await shop.move()).records == 1
    assert await shop.put("a", 30, replace=True) == (AppendCode.OK, 30)
    await shop.at(30)
    assert (await shop.move()).records == 1
    assert await shop.sent() == ["a", "a"]


async def test_movers_side_by_side_send_each_record_once(shop: Shop) -> None:
    """In pieces of bounded size."""
    for number in range(later.MOVED_MAX + 50):
        await shop.put(f"{number:03}", number / 100)
    await shop.at(60)
    moved = [await shop.move() for _ in range(3)]
    assert [each.records for each in moved] == [later.MOVED_MAX, 50, 0]
    assert await shop.sent() == [f"{number:03}" for number in range(later.MOVED_MAX + 50)]


async def test_a_full_partition_holds_up_what_is_due_and_loses_nothing(shop: Shop) -> None:
    """The next call goes on where there was no room."""
    group = Group(shop.backend, STREAM, GROUP)
    await group.register()
    for number in range(3):
        await shop.put(f"r{number}", number)
    await shop.at(10)
    assert await shop.move(limit=2) == later.Moved(2, True, 0)
    assert await shop.move(limit=2) == later.Moved(0, True, 0)
    assert (await shop.move(limit=3)).records == 1
    assert await shop.sent() == ["r0", "r1", "r2"]


@pytest.mark.parametrize("after_s", [5, 600, 3_500])
async def test_a_call_that_is_repeated_after_a_short_window_sends_nothing_more(
    shop: Shop, after_s: float
) -> None:
    """Its answer was lost, and the id is free for other calls by now; both calls are known for an hour."""
    for number, call in enumerate(("first", "second"), 1):
        due = number * after_s
        assert await shop.put("a", due, call=call) == (AppendCode.OK, due)
        await shop.at(due)
        assert (await shop.move(window_ms=1_000)).records == 1
        await shop.at(due + 1.5)
        for known in ("first", "second")[:number]:
            assert (await shop.put("a", due + 2, call=known))[0] is AppendCode.OK
        await shop.at(due + 3)
        assert (await shop.move(window_ms=1_000)).records == 0
    assert await shop.sent() == ["a", "a"]


async def test_what_was_sent_or_cancelled_is_forgotten_after_the_window(shop: Shop) -> None:
    """By the same calls, in the same pieces: nothing is left behind."""
    await shop.put("a", 10)
    await shop.put("b", 10)
    await shop.cancel("b")
    await shop.at(10)
    assert (await shop.move()).next_ms == WINDOW_MS - 10_000
    await shop.at(10 + WINDOW_MS / 1000)
    assert await shop.move() == later.Moved(0, False, None)
    assert not await shop.backend.execute("EXISTS", STREAM.later(0), STREAM.delayed(0))


async def test_a_partition_knows_a_bounded_number_of_ids(shop: Shop) -> None:
    """Replacing one needs no room."""
    assert (await shop.put("a", 10, limit=2))[0] is AppendCode.OK
    assert (await shop.put("b", 10, limit=2))[0] is AppendCode.OK
    assert (await shop.put("c", 10, limit=2))[0] is AppendCode.FULL
    assert (await shop.put("a", 20, limit=2, replace=True)) == (AppendCode.OK, 20)


async def test_what_another_program_wrote_is_named_and_moves_nothing(shop: Shop, raw: Raw) -> None:
    """A record that is none stops its partition; an id without a record is dropped."""
    await shop.put("a", 10)
    raw.zadd(STREAM.later(0), {"nobody": 1})
    raw.zadd(STREAM.later(0), {"wrong": 2})
    raw.hset(STREAM.delayed(0), "wrong", "w call 2 no sizes")
    await shop.at(20)
    with pytest.raises(BackendRefused, match="delayed"):
        await shop.move()
    raw.hdel(STREAM.delayed(0), "wrong")
    assert (await shop.move()).records == 1
