"""Heartbeats: how soon one that failed is sent again, and one that a silent peer waits for."""

import socket
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamworker import App
from streamworker.core.ownership.pulse import BEAT_RETRIES
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.events import HeartbeatDone
from streamworker.errors import BackendError
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.watch.keeper import Deliver, Keeper
from streamworker.settings import Settings
from streamworker.testing import local_worker
from tests.chaos.proxy import proxied
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.runtime.workbench import Order

INTERVAL_MS = 4_000
KEYS = GroupKeys("shop", "orders", "price")


def pricing(url: str, **settings: Any) -> App:
    """Return an app with one processor, which does nothing."""
    app = App("shop", redis_url=url, **settings)

    @app.processor(app.stream("orders", Order, partitions=2))
    async def price(order: Order) -> None: ...

    return app


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What heartbeats failed with, each of them, told or not."""
    failed, seen = Keeper._failed, list[str]()

    def note(keeper: Keeper, error: BackendError) -> None:
        seen.append(str(error))
        failed(keeper, error)

    monkeypatch.setattr(Keeper, "_failed", note)
    return seen


@pytest.mark.anyio
async def test_a_heartbeat_that_failed_is_sent_again_before_the_next_one_is_due(failures: list[str]) -> None:
    """A connection that breaks at the wrong moment does not use up all the patience of the peers."""
    with socket.socket() as closed:  # bound and not listening: connections are refused at once
        closed.bind(("127.0.0.1", 0))
        settings = Settings(
            redis_url=f"redis://127.0.0.1:{closed.getsockname()[1]}",
            heartbeat_interval_ms=INTERVAL_MS,
            dead_after_ms=2 * INTERVAL_MS,
            session_timeout_ms=10 * INTERVAL_MS,
            slow_after_ms=20 * INTERVAL_MS,
        )
        keeper = Keeper(settings, "w1")
        started = time.monotonic()
        keeper.start()
        await wait_for_async(lambda: len(failures) >= 3, "the third failed")
        took_ms = (time.monotonic() - started) * 1_000
        keeper.stop()
    assert 2 * INTERVAL_MS / BEAT_RETRIES <= took_ms < INTERVAL_MS


@pytest.mark.anyio
async def test_heartbeats_that_fail_are_told_once_and_when_they_are_answered_again(
    redis_url: str, failures: list[str]
) -> None:
    """However often they are tried meanwhile: four times an interval, by each worker."""
    async with proxied(redis_url) as proxy:
        settings = Settings(redis_url=proxy.url, heartbeat_interval_ms=100, call_timeout_ms=100)
        with capture_logs() as logs:
            keeper = Keeper(settings, "w1")
            keeper.start()
            keeper.keep(KEYS, "a.1", lambda _: None)
            proxy.hold()
            await wait_for_async(lambda: len(failures) >= 5, "the fifth failed")
            proxy.let_pass()
            await wait_for_async(
                lambda: any(log["event"] == "heartbeats_answered" for log in logs), "they are answered"
            )
            keeper.stop()
    told = [log["event"] for log in logs if log["event"].startswith("heartbeat")]
    # On a busy machine the next one may fail again, within its 100 ms, and is told anew.
    assert told[: told.index("heartbeats_answered") + 1] == ["heartbeat_failed", "heartbeats_answered"]


@pytest.mark.anyio
async def test_a_key_that_is_written_over_is_named_once_and_ends_no_heartbeat(redis_url: str) -> None:
    """That of the heartbeats is repaired by the first one, and that of the loads is left alone."""
    group = Membership.empty(2, "range").with_member(Member("a.1", "a", "host", 1, 1))
    beats: list[HeartbeatDone] = []
    settings = Settings(redis_url=redis_url, heartbeat_interval_ms=100)
    with opened(redis_url) as raw, capture_logs() as logs:
        raw.set(KEYS.members, group.document())
        raw.hset(KEYS.beats, "a.1", "5|6|run|0")
        raw.rpush(KEYS.loads, "mine")
        keeper = Keeper(settings, "w1")
        keeper.start()
        keeper.keep(KEYS, "a.1", beats.append)
        await wait_for_async(lambda: len(beats) > 5, "some heartbeats")
        raw.set(KEYS.beats, "mine")
        until = len(beats)
        await wait_for_async(lambda: len(beats) > until + 5, "some more")
        raw.delete(KEYS.loads)
        until = len(beats)
        await wait_for_async(lambda: len(beats) > until + 5, "some more")
        keeper.stop()
        kept = raw.get(KEYS.damaged)
    said = [(log["event"], log["key"]) for log in logs if "key" in log]
    assert [each for each in said if each[1] == KEYS.loads] == [
        ("key_of_another_type", KEYS.loads),
        ("key_right_again", KEYS.loads),
    ]
    assert ("heartbeats_mended", KEYS.beats) in said
    assert kept == b"mine"
    assert not any(beat.lost for beat in beats)


@pytest.mark.anyio
async def test_a_heartbeat_that_is_heard_of_after_the_end_of_its_group_starts_nothing(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way from the keeper's thread, and is of another server than the one before."""
    kept: list[tuple[str, Deliver]] = []
    keep = Keeper.keep

    def keep_and_note(keeper: Keeper, keys: GroupKeys, member: str, deliver: Deliver) -> None:
        kept.append((member, deliver))
        keep(keeper, keys, member, deliver)

    monkeypatch.setattr(Keeper, "keep", keep_and_note)
    app = pricing(redis_url)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url):
            await wait_for_async(lambda: raw.hlen(KEYS.beats), "it has joined")
    ((member, deliver),) = kept
    deliver(HeartbeatDone(member, False, 1, 0, "this server", {}))
    deliver(HeartbeatDone(member, False, 1, 0, "another server", {}))
