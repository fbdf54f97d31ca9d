"""A worker that starts while Redis is away waits for it, says so, and can be told to stop."""

import socket

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App
from streamworker.errors import AuthenticationFailed, BackendUnavailable
from streamworker.redisio.wire.failures import is_wrong_tls, translate
from streamworker.redisio.wire.link import Endpoint
from streamworker.runtime import telling
from streamworker.runtime.watch.health import Health
from streamworker.runtime.worker import Worker
from streamworker.testing import EmbeddedServer, local_worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    number: int


def shop(url: str) -> App:
    app = App("shop", redis_url=url)
    items = app.stream("items", Item, partitions=1)

    @app.processor(items)
    async def handle(item: Item) -> None: ...

    return app


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        found: int = held.getsockname()[1]
        return found


@pytest.mark.usefixtures("streamworker_real_server")
async def test_a_worker_that_starts_while_redis_is_away_joins_when_it_is_there(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the address at once; probes start no other process, and call it not ready."""
    monkeypatch.setattr(telling, "_told_s", {})
    health, server, left = Health(), EmbeddedServer(port=port), anyio.Event()
    worker = Worker(shop(server.url), health=health, waits=True)

    async def run() -> None:
        assert await worker.run()
        left.set()

    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await wait_for_async(lambda: bool(health.waits), "it waits")
            assert (health.live(), health.started()) == ("", "")
            assert health.ready() == "the worker starts, and Redis is away"
            with server:
                await wait_for_async(lambda: not health.ready(), "it has joined")
                worker.stop()
                await left.wait()
    [said] = [log for log in logs if log["event"] == "start_delayed"]
    assert said["log_level"] == "error" and f"Redis at 127.0.0.1:{port} cannot be reached" in said["error"]


@pytest.mark.usefixtures("streamworker_real_server")
async def test_a_worker_that_waits_at_its_start_leaves_when_it_is_told_to(port: int) -> None:
    """It has drained all that it had: nothing."""
    health, left = Health(), []
    worker = Worker(shop(f"redis://127.0.0.1:{port}"), health=health, waits=True)

    async def run() -> None:
        left.append(await worker.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await wait_for_async(lambda: bool(health.waits), "it waits")
        worker.stop()
    assert left == [True]


@pytest.mark.usefixtures("streamworker_real_server")
async def test_what_waiting_does_not_mend_ends_a_start_at_once(port: int) -> None:
    """A password that is wrong, and a certificate that nobody trusts."""
    with EmbeddedServer(port=port), pytest.raises(AuthenticationFailed):
        await Worker(shop(f"redis://ann:wrong@127.0.0.1:{port}"), waits=True).run()
    wrong = Endpoint("rediss://db1", "worker").refusal(OSError("CERTIFICATE_VERIFY_FAILED"))
    assert is_wrong_tls(wrong) and not is_wrong_tls(translate(OSError("Connection refused"), "db1:6379"))


@pytest.mark.usefixtures("streamworker_real_server")
async def test_a_worker_beside_a_block_raises_and_does_not_wait(port: int) -> None:
    """A test, or a web service that starts it, would stand still."""
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        async with local_worker(shop(f"redis://127.0.0.1:{port}"), url=f"redis://127.0.0.1:{port}"):
            pass
