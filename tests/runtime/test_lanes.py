"""Two appends of a partition are under way, and no record overtakes another, is lost or is there twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from streamworker.core.data.placement import Placement
from streamworker.errors import BackendRefused, ProducerError, StreamFull
from streamworker.redisio.scripts import APPEND, SEND_ONCE
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.send import lanes as lanes_module
from streamworker.runtime.send import named
from streamworker.runtime.send.producer import LEADS
from tests.chaos.proxy import Proxy, proxied
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import records_in
from tests.runtime.workbench import Bench, Order, bench, full_memory

pytestmark = pytest.mark.anyio

ORDERS = [Order(n) for n in range(1_000)]


async def test_the_rest_of_a_list_is_sent_while_its_head_is_appended(redis_url: str) -> None:
    """Redis has two parts of a list before any answer has come back: two appends are under way."""
    single = {"single_entries": True}  # An entry of many takes Redis too little time for that to pay.
    async with proxied(redis_url) as proxy, bench(proxy.url, run=False, stream=single) as desk:
        await desk.producer.send(Order(-1))
        await desk.producer.send_many(ORDERS)  # Which makes the second connection.
        proxy.hold(up=False)
        sending = asyncio.create_task(desk.producer.send_many(ORDERS))
        with redis.Redis.from_url(redis_url) as direct:
            key = desk.stream_keys.events(0)
            await wait_for_async(
                lambda: len(records_in(direct, key)) == 1_001 + sum(LEADS), "both appends were done"
            )
        assert not sending.done()
        proxy.let_pass()
        assert await sending == 1_000
        assert await desk.numbers() == [*range(-1, 1_000), *range(1_000)]


async def test_an_append_whose_predecessor_found_no_room_goes_back_behind_it(redis_url: str) -> None:
    """The second would have fitted; it waits for the first, and both go when there is room."""
    async with bench(redis_url, run=False, stream={"records_max": 1_200, "single_entries": True}) as desk:
        await desk.acquire(0, "w1")
        await desk.producer.send_many([Order(n) for n in range(-900, 0)])
        head = asyncio.create_task(desk.producer.send_many(ORDERS[:400]))
        await asyncio.sleep(0)
        tail = asyncio.create_task(desk.producer.send_many(ORDERS[400:500]))
        await wait_for_async(lambda: _length(desk, 1_200), "there is no more room")
        assert await desk.numbers() == list(range(-900, 300))
        await desk.backend.execute("XTRIM", desk.stream_keys.events(0), "MAXLEN", 200)
        assert (await head, await tail) == (400, 100)
        assert await desk.numbers() == list(range(100, 500))


async def _length(desk: Bench, wanted: int) -> bool:
    return bool(await desk.backend.execute("XLEN", desk.stream_keys.events(0)) == wanted)


async def test_those_who_do_not_wait_are_told_of_a_full_partition(redis_url: str) -> None:
    """Of two appends under way the first is refused: its sender is told, and so is the second's."""
    async with bench(redis_url, run=False, stream={"records_max": 100}) as desk:
        await desk.acquire(0, "w1")
        await desk.producer.send_many([Order(n) for n in range(100)])
        sends = [desk.producer.send_many(ORDERS[:500], on_full="raise") for _ in range(2)]
        first, second = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(first, StreamFull) and isinstance(second, StreamFull)
        await desk.backend.execute("DEL", desk.stream_keys.events(0))
        await desk.producer.send(Order(7))
        assert await desk.numbers() == [7]


async def test_senders_of_both_appends_are_told_that_memory_is_full_and_later_ones_go_in(
    redis_url: str,
) -> None:
    """The second is refused as its own, and not for having followed the first."""
    async with bench(redis_url, run=False) as desk:
        await desk.producer.send(Order(-1))
        with full_memory(redis_url):
            sends = [desk.producer.send_many(ORDERS[:500]), desk.producer.send_many(ORDERS[500:])]
            told = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(each, BackendRefused) and "out of memory" in str(each) for each in told)
        assert await desk.producer.send_many(ORDERS) == 1_000
        assert await desk.numbers() == list(range(-1, 1_000))


async def test_what_follows_an_append_that_may_still_come_stays_what_it_is(redis_url: str) -> None:
    """Both are on their way when Redis refuses their repeats; then both come, or the first alone."""
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, call_timeout_ms=200, stream={"single_entries": True}) as desk,
    ):
        await desk.producer.send_many([Order(-1)])
        await desk.producer.send_many(ORDERS)  # Which makes the second connection.
        proxy.strand()
        with full_memory(redis_url):  # Of which what is on its way does not hear.
            first = asyncio.create_task(desk.producer.send_many(ORDERS[:300]))
            await asyncio.sleep(0)  # It is under way before the second is there to go with it.
            second = asyncio.create_task(desk.producer.send_many(ORDERS[300:600]))
            for each in (first, second):
                with pytest.raises(ProducerError, match="may or may not"):
                    await each
        proxy.let_pass()
        with redis.Redis.from_url(redis_url) as direct:
            key = desk.stream_keys.events(0)
            await wait_for_async(
                lambda: len(records_in(direct, key)) in (1_301, 1_601), "what was late has come"
            )
        assert await desk.producer.send_many([Order(5)]) == 1
        later = await desk.numbers()
        assert later[1_001:] in ([*range(300), 5], [*range(600), 5])


async def test_a_partition_that_filled_up_during_an_outage_holds_up_no_other(redis_url: str) -> None:
    """Two appends of it are repeated for as long as it is full, and take nobody's place meanwhile."""
    full, free = "k4", "k0"
    assert [Placement(2).partition_of(key.encode()) for key in (full, free)] == [0, 1]
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, call_timeout_ms=200, partitions=2, stream={"records_max": 1_000}) as desk,
    ):
        await desk.producer.send_many([Order(n, full) for n in range(1_000)])
        await desk.producer.send(Order(0, free))
        waiting = [asyncio.create_task(desk.producer.send(Order(n, full))) for n in range(1_500)]
        await asyncio.sleep(0.1)
        proxy.hold()
        await asyncio.sleep(0.7)
        proxy.heal()
        proxy.reset()
        for n in range(3):
            await desk.producer.send(Order(n, free), timeout=10)
            await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_does_not_wait_is_told_of_a_full_partition_after_a_try_without_an_answer(
    redis_url: str,
) -> None:
    """The first try may still arrive, so what is known is told; of the next send nothing is written."""
    async with _filled_up(redis_url) as (desk, proxy):
        sending = asyncio.create_task(desk.producer.send(Order(1), on_full="raise"))
        with pytest.raises(ProducerError, match=r"then refused: .* limit of 10 .* may or may not") as caught:
            await asyncio.wait_for(sending, PATIENCE_S)
        assert type(caught.value) is ProducerError
        assert "streamworker lag" in caught.value.remedy
        with pytest.raises(StreamFull):
            await asyncio.wait_for(desk.producer.send(Order(2), on_full="raise"), PATIENCE_S)
        proxy.let_pass()
        assert await desk.numbers() == [0] + [9] * 9


async def test_who_waits_in_vain_for_room_learns_that_there_was_none(redis_url: str) -> None:
    """Not that Redis gave no answer: it did. Who stands behind and does not wait is told at once."""
    async with _filled_up(redis_url) as (desk, _):
        first = asyncio.create_task(desk.producer.send(Order(1), timeout=4))
        await wait_for_async(lambda: desk.producer._lanes._lanes[0].in_flight, "the first is under way")
        with pytest.raises(StreamFull):
            await asyncio.wait_for(desk.producer.send(Order(2), on_full="raise"), PATIENCE_S)
        assert not first.done()
        with pytest.raises(ProducerError, match=r"then refused: .* limit of 10 .* may or may not"):
            await first
        assert await desk.numbers() == [0] + [9] * 9


async def test_a_timeout_that_ends_during_a_try_at_a_full_partition_waits_for_its_answer(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer tells that nothing was written. Without it the sender would know less than it can."""
    monkeypatch.setattr(lanes_module, "FULL_ANSWER_MS", 30_000)  # A busy machine lets it pass late.
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, stream={"records_max": 1}) as desk,
    ):
        await desk.acquire(0, "w1")
        await desk.producer.send(Order(0))
        sending = asyncio.create_task(desk.producer.send(Order(1), timeout=1))
        await wait_for_async(lambda: desk.producer._lanes._lanes[0].pauses, "it found no room")
        proxy.hold(up=False)
        done, _ = await asyncio.wait([sending], timeout=1.2)
        assert not done
        proxy.let_pass()
        with pytest.raises(StreamFull):
            await sending
        assert await desk.numbers() == [0]


@asynccontextmanager
async def _filled_up(redis_url: str) -> AsyncIterator[tuple[Bench, Proxy]]:
    """Give a producer whose next try will have no answer, at a partition that others have filled."""
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, stream={"records_max": 10}, call_timeout_ms=1_000) as desk,
    ):
        await desk.acquire(0, "w1")
        await desk.producer.send(Order(0))
        proxy.strand()
        with redis.Redis.from_url(redis_url) as direct:
            for _ in range(9):
                direct.xadd(desk.stream_keys.events(0), {"v": b'{"number":9,"customer":"ann"}'})
        yield desk, proxy


async def test_an_answer_from_before_a_failover_confirms_nothing_after_it(redis_url: str) -> None:
    """The first append's answer was lost, the second's was not; then Redis goes back behind both."""
    async with proxied(redis_url) as proxy, bench(proxy.url, run=False) as desk:
        await desk.producer.send_many([Order(-1)])
        await desk.producer.send_many(ORDERS)  # Which makes the second connection.
        key = desk.stream_keys.events(0)
        with redis.Redis.from_url(redis_url) as direct:
            (number,) = direct.keys("*producer*")
            for _ in range(10):
                known, length = direct.get(number), len(records_in(direct, key))
                proxy.only_after, proxy.lose = b"EVALSHA", 1
                first = asyncio.create_task(desk.producer.send_many(ORDERS[:300]))
                await asyncio.sleep(0)
                second = asyncio.create_task(desk.producer.send_many(ORDERS[300:600]))
                while len(records_in(direct, key)) < length + 600:
                    await asyncio.sleep(0)
                proxy.hold(down=False)
                await asyncio.sleep(0.05)  # For the second's answer to come.
                if not first.done():
                    break
                proxy.heal()  # It had been repeated already.
            assert not first.done() and not second.done()
            last = records_in(direct, key)[length - 1][0].decode()
            for entry, _ in direct.xrange(key, f"({last}"):
                direct.xdel(key, entry)
            direct.set(number, known)
            proxy.heal()
            assert (await first, await second) == (300, 300)
            assert len(records_in(direct, key)) == length + 600
        assert (await desk.numbers())[-600:] == list(range(600))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("id", [None, "an-id"])
async def test_a_send_that_redis_may_have_forgotten_is_not_written_twice(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, before: int, id: str | None
) -> None:
    """Its answers are lost for over an hour, after which Redis forgets it, and its sender is told."""
    stream = {"id_window_ms": 60_000}
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, call_timeout_ms=200, stream=stream) as desk,
    ):
        await desk.producer._lanes.declaration.make()
        await desk.producer.send_many(ORDERS[:before])
        key = desk.stream_keys.events(0)
        with redis.Redis.from_url(redis_url) as direct:
            for script in (APPEND, SEND_ONCE):
                direct.script_load(script.text)
            proxy.hold(up=False)
            sending = asyncio.create_task(desk.producer.send(Order(7), id=id))
            await wait_for_async(lambda: len(records_in(direct, key)) == before + 1, "it is written")
            await asyncio.sleep(0.3)  # For a try without an answer to end.
            for module in (lanes_module, named):
                monkeypatch.setattr(module, "monotonic_s", lambda: monotonic_s() + 4_000)
            direct.delete(*direct.keys("*producer*"), *direct.keys("*seen*"))
            proxy.reset()  # The answers that are held are lost.
            proxy.heal()
            with pytest.raises(ProducerError, match="may have forgotten"):
                await sending
            await desk.producer.send(Order(8))
        assert await desk.numbers() == [*range(before), 7, 8]
        assert await desk.producer.verify() == []


async def test_a_send_whose_answers_are_lost_for_an_hour_is_confirmed_if_redis_has_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try lets Redis remember it for a further hour."""
    async with proxied(redis_url) as proxy, bench(proxy.url, run=False, call_timeout_ms=200) as desk:
        await desk.producer._lanes.declaration.make()
        key = desk.stream_keys.events(0)
        with redis.Redis.from_url(redis_url) as direct:
            for script in (APPEND, SEND_ONCE):
                direct.script_load(script.text)
            proxy.hold(up=False)
            sending = asyncio.create_task(desk.producer.send(Order(7)))
            await wait_for_async(lambda: len(records_in(direct, key)) == 1, "it is written")
            await asyncio.sleep(0.3)  # For a try without an answer to end.
            monkeypatch.setattr(lanes_module, "monotonic_s", lambda: monotonic_s() + 4_000)
            proxy.heal()
            sent = await sending
            assert str(sent.entry_id).encode() == records_in(direct, key)[0][0]


async def test_an_append_that_is_faster_than_the_one_before_it_goes_again_behind_it(redis_url: str) -> None:
    """A small one behind a large one overtakes it on its way, is refused, and goes again at once."""
    large, small = [Order(n, "x" * 200_000) for n in range(5)], [Order(n) for n in range(200)]
    async with bench(redis_url, run=False) as desk:
        await desk.producer.send_many(ORDERS * 2)
        for _ in range(5):
            first = asyncio.create_task(desk.producer.send_many(large))
            await asyncio.sleep(0)
            await desk.producer.send_many(small)
            assert first.done()
            await first
        found = (await desk.numbers())[2_000:]
        assert found == [*range(5), *range(200)] * 5


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full("a further seed")) for n in (2, 3))]
)
async def test_whatever_the_network_does_each_record_is_there_once_in_its_order(
    redis_url: str, seed: int
) -> None:
    """Answers are lost, connections break, and tries arrive long after they were given up."""
    rng = random.Random(seed)
    async with (
        proxied(redis_url) as proxy,
        bench(proxy.url, run=False, call_timeout_ms=100, partitions=2) as desk,
    ):
        await desk.producer.send(Order(-1))
        ended = asyncio.Event()
        vandal = asyncio.create_task(_disturb(proxy, rng, ended))
        sent = 0
        senders: list[range] = []
        try:
            for _ in range(40):
                count = rng.choice((1, 150, 900, 2_500))
                cut = sent + rng.randrange(count + 1)
                senders += [range(sent, cut), range(cut, sent + count)]
                orders = [[Order(n, f"c{n % 5}") for n in mine] for mine in senders[-2:]]
                await asyncio.gather(*(desk.producer.send_many(each) for each in orders))
                sent += count
        finally:
            ended.set()
            await vandal
            proxy.heal()
        await asyncio.sleep(0.3)  # For what was held back to arrive.
        with redis.Redis.from_url(redis_url) as direct:
            decode = desk.stream.record.decoder("json")
            entries = [records_in(direct, desk.stream_keys.events(partition)) for partition in range(2)]
            found = [[decode(fields).number for _, fields in each] for each in entries]
        assert sorted(n for each in found for n in each) == list(range(-1, sent))
        for each in found:
            for mine in senders:
                assert (of_one := [n for n in each if n in mine]) == sorted(of_one)
        assert desk.producer.lost == ()


async def _disturb(proxy: Proxy, rng: random.Random, ended: asyncio.Event) -> None:
    """Do something to appends every few milliseconds; connections may be made between."""
    proxy.only_after = b"EVALSHA"
    while not ended.is_set():
        what = rng.randrange(4)
        if what == 0:
            proxy.lose = rng.randrange(1, 3)
        elif what == 1:
            proxy.cut = 1
        elif what == 2:
            proxy.reset()
        else:
            proxy.strand()
        await asyncio.sleep(0.02 + rng.random() * 0.15)
        proxy.lose = proxy.cut = 0
        proxy.let_pass()
        await asyncio.sleep(rng.random() * 0.03)
