"""Heartbeats: how soon one that failed is sent again."""

import socket
import time

import pytest
from structlog.testing import capture_logs

from streamworker.core.pulse import BEAT_RETRIES
from streamworker.runtime.keeper import Keeper
from streamworker.settings import Settings
from tests.helpers import wait_for_async

INTERVAL_MS = 4_000


@pytest.mark.anyio
async def test_a_heartbeat_that_failed_is_sent_again_before_the_next_one_is_due() -> None:
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
        with capture_logs() as logs:
            keeper = Keeper(settings, "w1")
            started = time.monotonic()
            keeper.start()
            await wait_for_async(
                lambda: sum(log["event"] == "heartbeat_failed" for log in logs) >= 3, "the third failed"
            )
            took_ms = (time.monotonic() - started) * 1_000
            keeper.stop()
    assert 2 * INTERVAL_MS / BEAT_RETRIES <= took_ms < INTERVAL_MS
