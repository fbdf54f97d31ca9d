"""Tables: state by key that is committed with the records it comes from, and read from anywhere."""

from datetime import date
from typing import Any
from uuid import UUID

import msgspec
import pytest

from streamworker import App, ConfigurationError, RecordError, Records, Retry
from streamworker.errors import ProcessingError
from streamworker.testing import local_worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


class Deposit(msgspec.Struct):
    account: str
    amount: int


class Total(msgspec.Struct):
    deposits: int = 0
    sum: int = 0


async def test_totals_count_each_record_once_though_calls_fail(redis_url: str) -> None:
    """What a call has set is forgotten if it fails; its records are read again with the value of before."""
    app = App("bank", redis_url=redis_url)
    deposits = app.stream("deposits", Deposit, key="account", partitions=2)
    totals = app.table("totals", Total)
    calls = 0

    @app.processor(deposits, batch=7, errors=Retry(attempts=5, backoff=0.001), tables=[totals])
    async def balances(batch: list[Deposit]) -> None:
        nonlocal calls
        calls += 1
        known = await totals.get_many({each.account for each in batch})
        for each in batch:
            total = known.setdefault(each.account, Total())
            total.deposits += 1
            total.sum += each.amount
        totals.set_many(known)
        if calls % 3 == 0:
            raise ConnectionError("after the change")

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send_many(Deposit(f"a{n % 20}", 10) for n in range(400))
        await worker.until_drained()
        assert await totals.get("a7") == Total(20, 200)
        assert await totals.get("nobody") is None
        assert await totals.count() == 20
        found = {key: total async for key, total in totals.scan()}

    assert calls > 50
    assert found == {f"a{n}": Total(20, 200) for n in range(20)}


@pytest.mark.parametrize("way", ["batch", "record", "stream"])
async def test_a_call_reads_what_it_has_written(redis_url: str, way: str) -> None:
    """And copies: what is changed in place, without being set, is lost. What was deleted is missing."""
    app = App("bank", redis_url=redis_url)
    deposits = app.stream("deposits", Deposit, key="account", partitions=1)
    sums = app.table("sums", list[int])
    seen: list[object] = []

    async def one(deposit: Deposit) -> None:
        before = await sums.get("ann") or []
        seen.append(list(before))
        if deposit.amount == 3:
            sums.delete("ann")
            assert await sums.get_many(["ann", "bob"]) == {}
        else:
            sums.set("ann", [*before, deposit.amount])
            copy = await sums.get("ann")
            assert copy == [*before, deposit.amount]
            copy.append(99)
            assert await sums.get("ann") == [*before, deposit.amount]
            sums.set("ann", [*before, deposit.amount])  # A copy that is changed and not set fails the call.

    if way == "batch":

        @app.processor(deposits, tables=[sums])
        async def batches(batch: list[Deposit]) -> None:
            for deposit in batch:
                await one(deposit)

    elif way == "record":

        @app.processor(deposits, tables=[sums])
        async def each(deposit: Deposit) -> None:
            await one(deposit)

    else:

        @app.processor(deposits, tables=[sums])
        async def all_of_them(records: Records[Deposit]) -> None:
            async for deposit in records:
                await one(deposit)

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send_many(Deposit("ann", n) for n in (1, 2, 3, 4))
        await worker.until_drained()
        assert seen == [[], [1], [1, 2], []]
        assert await sums.get("ann") == [4]


class Visit(msgspec.Struct):
    user: UUID
    page: int


async def test_a_key_of_several_parts_begins_with_the_key_of_the_stream(redis_url: str) -> None:
    """It is in the partition of its first part, and comes back with the types that it had."""
    app = App("site", redis_url=redis_url)
    visits = app.stream("visits", Visit, key="user", partitions=4)
    by_day = app.table("by_day", int, key=("user", "day", "page"))
    users = [UUID(int=n) for n in range(10)]
    day = date(2026, 11, 2)

    @app.processor(visits, tables=[by_day])
    async def count(batch: list[Visit]) -> None:
        known = await by_day.get_many((visit.user, day, visit.page) for visit in batch)
        for visit in batch:
            key = (visit.user, day, visit.page)
            known[key] = known.get(key, 0) + 1
        by_day.set_many(known)

    async with local_worker(app, url=redis_url) as worker:
        await visits.send_many(Visit(user, page) for user in users for page in (1, 2))
        await worker.until_drained()
        assert await by_day.get((users[3], day, 2)) == 1
        found = [key async for key, _ in by_day.scan()]

    assert sorted(found) == [(user, day, page) for user in users for page in (1, 2)]


async def test_a_key_of_another_partition_is_refused(redis_url: str) -> None:
    """Its value belongs to the owner of that partition: reads and writes of it fail the call."""
    app = App("bank", redis_url=redis_url)
    deposits = app.stream("deposits", Deposit, key="account", partitions=4)
    sums = app.table("sums", int)
    errors: list[str] = []

    @app.processor(deposits, tables=[sums])
    async def balances(deposit: Deposit) -> None:
        for wrong in (sums.get("bob"), sums.get(7)):  # type: ignore[arg-type]
            with pytest.raises(RecordError) as raised:
                await wrong
            errors.append(str(raised.value))
        with pytest.raises(RecordError):
            sums.set("bob", 1)
        with pytest.raises(RecordError) as raised:
            sums.set("ann", "much")  # type: ignore[arg-type]
        errors.append(str(raised.value))

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send(Deposit("ann", 5))
        await worker.until_drained()
        with pytest.raises(ConfigurationError, match="outside of a call of its processor 'balances'"):
            sums.set("ann", 1)
        assert await sums.count() == 0

    assert errors[0].startswith("The key 'bob' of table 'sums' belongs to partition ")
    assert errors[1] == "A key of table 'sums' is a int: 7. Its keys are of type str."
    assert errors[2] == "The value of 'ann' in table 'sums' is a str: 'much'. Its values are of type int."


async def test_what_nobody_touches_expires(redis_url: str) -> None:
    """To nobody's eyes after its ``ttl``, and from Redis although no record comes."""
    app = App("bank", redis_url=redis_url, trim_interval_ms=100)
    deposits = app.stream("deposits", Deposit, key="account", partitions=2)
    sums = app.table("sums", int, ttl=0.3)
    kept = app.table("kept", int)

    @app.processor(deposits, tables=[sums, kept])
    async def balances(deposit: Deposit) -> None:
        sums.set(deposit.account, deposit.amount)
        kept.set(deposit.account, deposit.amount)

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send_many(Deposit(f"a{n}", n) for n in range(50))
        await worker.until_drained()

        keys = [f"sw:{{bank.deposits.{partition}}}:table:sums" for partition in (0, 1)]

        async def gone() -> bool:
            left: int = await app.backend().execute("EXISTS", *keys)
            return left == 0

        await wait_for_async(gone, "all values have expired")
        assert await sums.get("a7") is None
        assert [each async for each in sums.scan()] == []
        assert await sums.count() == 0
        assert await kept.count() == 50


class Cents(msgspec.Struct):
    amount: str


async def test_a_value_that_a_new_version_cannot_read_waits_for_the_next_one(redis_url: str) -> None:
    """It is no fault of the record, which would else be a dead letter, as would all others of its key."""

    def version(kind: type[msgspec.Struct]) -> tuple[App, Any, Any, Any]:
        app = App("bank", redis_url=redis_url)
        deposits = app.stream("deposits", Deposit, key="account", partitions=1)
        totals = app.table("totals", kind)

        @app.processor(deposits, tables=[totals])
        async def add(deposit: Deposit) -> None:
            total = await totals.get(deposit.account) or kind(0)
            totals.set(deposit.account, msgspec.structs.replace(total))

        return app, deposits, totals, add

    app, deposits, totals, _ = version(Total)
    async with local_worker(app, url=redis_url) as worker:
        await deposits.send(Deposit("ann", 5))
        await worker.until_drained()
    app, deposits, totals, add = version(Cents)
    async with local_worker(app, url=redis_url) as worker:
        await deposits.send(Deposit("ann", 6))
        await worker.until(lambda now: now.processors["add"].retrying == 1)
        with pytest.raises(ProcessingError, match=r"holds no Cents for the key 'ann'.*another name"):
            await totals.get("ann")
        assert await worker.dead_letters(add) == []
    app, *_ = version(Total)
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
