"""Each recipe of docs/recipes does what its page says, on the real worker and a server in memory."""

import asyncio
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamworker.testing import MemoryServer, local_worker
from tests.blocks import save

pytestmark = pytest.mark.anyio
PAGES = sorted((Path(__file__).parent.parent / "docs" / "recipes").glob("*.md"))
SENT = re.compile(r"^echo '(.+)' \| streamworker send (\w+):(\w+) -$", re.MULTILINE)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a program of a recipe, as a reader who has saved them."""
    for page in PAGES:
        save(f"docs/recipes/{page.name}", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def test_a_record_that_a_reader_is_told_to_send_is_one_of_its_stream(saved: Callable[[str], Any]) -> None:
    """With the tag of its class, where the stream has several."""
    sent = [each for page in PAGES for each in SENT.findall(page.read_text("utf-8"))]
    assert sent
    for record, module, stream in sent:
        getattr(saved(module), stream).spec.record.decoder("json")({b"v": record.encode()})


def with_ttl(folder: Path, program: str, ttl: str) -> None:
    """Let a saved program keep values for a shorter time."""
    text = (folder / f"{program}.py").read_text("utf-8")
    shorter = re.sub(r'ttl="[^"]+"', f'ttl="{ttl}"', text)
    assert shorter != text
    (folder / f"{program}.py").write_text(shorter, "utf-8")


@pytest.mark.full("a minute of virtual time, and a death")
async def test_a_session_ends_after_silence_and_not_because_workers_were_away(
    saved: Callable[[str], Any], tmp_path: Path
) -> None:
    """Ann is seen while no worker lives; the end of her session passes meanwhile."""
    with_ttl(tmp_path, "visits", "20 seconds")
    visits = saved("visits")

    async def see(*users: str) -> None:
        for user in users:
            await visits.events.send(visits.Seen(user, "/"))

    async with local_worker(visits.app, clock="virtual") as first:
        await see("ann", "bob")
        await first.until_drained()
        await first.advance("15 seconds")
        await see("ann")
        await first.until_drained()
        await first.advance("8 seconds")
        assert [each.user for each in await first.sent(visits.ended)] == ["bob"]
        await first.kill()
        await see("ann")
        await asyncio.sleep(15)
        async with local_worker(visits.app, clock="virtual") as second:
            await second.until_drained()
            assert len(await second.sent(visits.ended)) == 1
            await second.advance("25 seconds")
            _, ann = await second.sent(visits.ended)
            assert (ann.user, ann.pages, await visits.sessions.get("ann")) == ("ann", 3, None)
            assert ann.seen - ann.began == pytest.approx(timedelta(seconds=23), abs=timedelta(seconds=1))


async def test_a_copy_of_a_payment_is_dropped_in_its_batch_and_after_it(saved: Callable[[str], Any]) -> None:
    """Numbers are those of an account."""
    payments = saved("payments")
    one, two, other = (payments.Payment(*each) for each in (("a", "1", 5), ("a", "2", 6), ("b", "1", 7)))
    async with local_worker(payments.app) as worker:
        await payments.incoming.send_many([one, two, one])
        await worker.until_drained()
        await payments.incoming.send_many([two, other, one, other])
        await worker.until_drained()
        assert sorted(await worker.sent(payments.unique), key=lambda each: each.cents) == [one, two, other]


async def test_a_slow_service_gets_no_more_calls_than_it_allows_and_no_visit_is_lost(
    saved: Callable[[str], Any],
) -> None:
    """It is away for the first call of each visit; one address is unknown, and one always fails."""
    places = saved("places")
    at: list[float] = []
    away = {f"/city/{number}" for number in range(60)}

    def handle(request: httpx.Request) -> httpx.Response:
        at.append(asyncio.get_running_loop().time())
        if request.url.path in away:
            away.remove(request.url.path)
            raise httpx.ReadTimeout("no answer")
        code = {"/city/nowhere": 404, "/city/broken": 500}.get(request.url.path, 200)
        return httpx.Response(code, text="Riga")

    async with (
        httpx.AsyncClient(base_url="https://geo.example", transport=httpx.MockTransport(handle)) as client,
        local_worker(places.app, resources=[places.service.override(client)], clock="virtual") as worker,
    ):
        addresses = ["nowhere", "broken", *map(str, range(60))]
        await places.visits.send_many(
            places.Visit(f"user-{n % 20}", each) for n, each in enumerate(addresses)
        )
        await worker.until_drained()
        assert [each.city for each in await worker.sent(places.located)] == ["Riga"] * 60
        letters = sorted((each.attempts, each.error) for each in await worker.dead_letters("locate"))
    assert [attempts for attempts, _ in letters] == [1, 5]
    assert "nowhere" in letters[0][1]
    assert "500" in letters[1][1]
    assert len(at) == 60 + 60 + 1 + 5
    assert min(later - sooner for sooner, later in zip(at, at[50:], strict=False)) > 0.99


async def test_an_order_is_ready_once_when_all_of_its_lines_are(saved: Callable[[str], Any]) -> None:
    """Lines of many orders go through the same partitions."""
    warehouse = saved("warehouse")
    articles = {f"order-{n}": [f"article-{n * m % 7}" for m in range(1, n + 1)] for n in range(1, 20)}
    async with local_worker(warehouse.app) as worker:
        await warehouse.orders.send_many(warehouse.Order(*each) for each in articles.items())
        await worker.until_drained()
        ready = await worker.sent(warehouse.ready)
        assert len(ready) == len(articles)
        assert {each.order: sorted(each.reserved) for each in ready} == {
            order: sorted(lines) for order, lines in articles.items()
        }
        assert await warehouse.progress.count() == 0


async def test_a_request_is_answered_in_the_call_that_asks_and_later(saved: Callable[[str], Any]) -> None:
    """Once, though it is asked for twice; one that fails and one that nobody handles have no answer."""
    quotes = saved("quotes")
    transport = httpx.ASGITransport(quotes.api)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        local_worker(quotes.app, clock="virtual") as worker,
    ):
        for quantity in (4, 5):
            asked = await client.put("/quotes/one", params={"quantity": quantity})
            assert (asked.status_code, asked.json()) == (200, {"price": 25.0})
        assert (await client.put("/quotes/two", params={"quantity": 0})).status_code == 404
        assert len(await worker.dead_letters("quote")) == 1
        await worker.kill()
        assert (await client.put("/quotes/three", params={"quantity": 1})).status_code == 202
        assert (await client.get("/quotes/one")).json() == {"price": 25.0}


async def test_a_late_reading_counts_in_its_hour(saved: Callable[[str], Any]) -> None:
    """One that is later than the table remembers is kept, and counts nowhere."""
    meters = saved("meters")
    now = datetime.now(UTC).replace(minute=0)
    late, too_late = now - timedelta(hours=9), now - timedelta(days=6, hours=1)
    async with local_worker(meters.app) as worker:
        for times in ([now, late], [now, too_late, late, now]):
            await meters.readings.send_many(meters.Reading("m", at, 0.5) for at in times)
            await worker.until_drained()
        newest = {each.hour: (each.kwh, each.readings) for each in await worker.sent(meters.changed)}
        assert newest == {f"{late:%Y-%m-%dT%H}": (1.0, 2), f"{now:%Y-%m-%dT%H}": (1.5, 3)}
        [letter] = await worker.dead_letters("add_up")
        assert "6 days late" in letter.error


async def test_an_hour_is_sent_once_when_it_is_over_though_nothing_more_comes(
    saved: Callable[[str], Any],
) -> None:
    """Not before what waits is counted, and without a reading that comes after it."""
    bills, meters = saved("bills"), saved("meters")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    before, over = hour - timedelta(hours=1), hour - timedelta(hours=9)
    closes = hour + bills.LATE
    async with local_worker(meters.app, processors=["collect"]) as worker:
        await meters.readings.send_many(meters.Reading("m", before, 0.5) for _ in range(3_000))
        await meters.readings.send_many(meters.Reading("m", at, 2.0) for at in (hour, over))
        await worker.run(bills.close, at=closes)
        name = f"{before:%Y-%m-%dT%H}"
        assert await worker.sent(bills.closed) == [meters.Hour("m", name, 1500.0, 3_000)]
        await worker.run(bills.close, at=closes + timedelta(minutes=59))
        assert len(await worker.sent(bills.closed)) == 1, "the next hour is open for a minute more"
        await worker.run(bills.close, at=closes + timedelta(hours=1))
        _, last = await worker.sent(bills.closed)
        assert (last.hour, last.kwh, await bills.still_open.count()) == (f"{hour:%Y-%m-%dT%H}", 2.0, 0)
        [letter] = await worker.dead_letters("collect")
        assert "its hour is closed" in letter.error


async def test_tenants_pass_one_that_sends_too_much(
    saved: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is above its limit waits apart, in order, and each job is handled once."""
    jobs = saved("jobs")
    monkeypatch.setattr(jobs, "A_MINUTE", 10)
    async with local_worker(jobs.app, processors=["route"]) as worker:
        await jobs.jobs.send_many(jobs.Job("loud", number) for number in range(300))
        await jobs.jobs.send_many(jobs.Job(tenant, 0) for tenant in ("ann", "bob"))
        await worker.until_drained()
        quick, bulk = await worker.sent(jobs.quick), await worker.sent(jobs.bulk)
    loud = [job.number for job in quick if job.tenant == "loud"]
    assert {job.tenant for job in quick} == {"loud", "ann", "bob"}
    assert 10 <= len(loud) <= 20, "it may have been two minutes"
    assert sorted(loud + [job.number for job in bulk]) == list(range(300))
    assert [job.number for job in bulk] == sorted(job.number for job in bulk)


async def test_two_halves_of_an_order_are_joined_once_whichever_comes_first(
    saved: Callable[[str], Any], tmp_path: Path
) -> None:
    """In one batch and in two; a half alone waits in the table, and is told in the end."""
    with_ttl(tmp_path, "join", "30 seconds")
    shop = saved("join")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.events.send_many([shop.Ordered("a", "assam"), shop.Paid("b", 7), shop.Paid("a", 5)])
        await worker.until_drained()
        await shop.events.send_many([shop.Ordered("b", "sencha"), shop.Paid("c", 9)])
        await worker.until_drained()
        ready = sorted(await worker.sent(shop.ready), key=lambda each: each.order)
        assert ready == [shop.Both("a", "assam", 5), shop.Both("b", "sencha", 7)]
        assert [value async for value in shop.halves.scan()] == [("c", shop.Both("c", "", 9))]
        await worker.advance("40 seconds")
        assert await worker.sent(shop.unpaired) == [shop.Both("c", "", 9)]


async def test_services_that_share_an_app_each_run_their_own_processors(
    saved: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two programs, which import what both install, and not what the other declares."""
    with MemoryServer() as server:
        mail = saved("mail")
        monkeypatch.delitem(sys.modules, "contracts")
        stats = saved("stats")
        assert mail.app is not stats.app
        async with local_worker(mail.app, url=server.url), local_worker(stats.app, url=server.url) as worker:
            await mail.orders.send_many([mail.Order("ann"), mail.Order("ann")])
            await worker.until_drained()
            assert await stats.seen.get("ann") == 2
            assert list((await worker.snapshot()).processors) == ["count"]
