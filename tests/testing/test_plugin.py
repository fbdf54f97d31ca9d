"""pytest finds the fixtures of the kit by itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.raw import opened

SHOP = """
import msgspec
from streamworker import App

app = App("shop")

class Order(msgspec.Struct):
    amount: int

orders = app.stream("orders", Order, partitions=2)

@app.processor(orders)
async def keep(order: Order) -> Order:
    return order
"""

WITHOUT = """
import sys

def test_pytest_has_not_imported_streamworker():
    assert "streamworker" not in sys.modules
"""

TESTS = {
    "test_named.py": """
import pytest
from shop import Order, app, keep, orders

pytestmark = pytest.mark.anyio

@pytest.mark.parametrize("run", [1, 2])
async def test_each_test_has_an_empty_server(worker, streamworker_app, run):
    assert streamworker_app is app
    await orders.send(Order(run))
    await worker.until_drained()
    assert await worker.rows(keep) == [{"amount": run}]
""",
    "test_overridden.py": """
import pytest
from streamworker import App
from shop import Order

pytestmark = pytest.mark.anyio

@pytest.fixture
def streamworker_app():
    app = App("other")
    stream = app.stream("orders", Order, partitions=1)

    @app.processor(stream)
    async def take(order: Order) -> None: ...

    return app

@pytest.fixture
def streamworker_options():
    return {"clock": "virtual", "name": "ours"}

async def test_fixtures_of_the_tests_come_first(worker, streamworker_app):
    await streamworker_app.registry.streams["orders"].send(Order(1))
    await worker.advance("1 hour")
    assert (await worker.snapshot()).processors["take"].committed == 1
    assert worker.name == "ours"
""",
    "test_asked.py": """
import pytest
from streamworker.testing import EmbeddedServer, local_worker
from shop import Order, app, orders

@pytest.mark.anyio
async def test_a_server_that_the_test_has_started():
    with EmbeddedServer() as server:
        async with local_worker(app, url=server.url) as worker:
            await orders.send(Order(1))
            await worker.until_drained()
""",
    "test_fails.py": """
import pytest
from shop import Order, orders

pytestmark = pytest.mark.anyio

async def test_that_fails(worker):
    await orders.send(Order(1))
    await worker.until_drained()
    assert not await worker.sent(orders)
""",
}

CONFTEST = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


OF_OTHERS = """
import pytest
import pytest_asyncio
from shop import Order, app, keep, orders
from streamworker.testing import local_worker

def test_that_is_sync(worker):
    pass

@pytest.mark.asyncio
async def test_of_pytest_asyncio(worker):
    pass

@pytest.mark.asyncio
async def test_that_does_as_it_is_told():
    async with local_worker(app) as worker:
        await orders.send(Order(1))
        await worker.until_drained()
        assert await worker.rows(keep) == [{"amount": 1}]

@pytest_asyncio.fixture(params=["real", "virtual"])
async def own(request):
    async with local_worker(app, clock=request.param) as worker:
        yield worker

@pytest.mark.asyncio
async def test_with_a_fixture_of_its_own(own):
    assert not await own.rows(keep)
    await orders.send(Order(1))
    await own.until_drained()
    assert await own.rows(keep) == [{"amount": 1}]
"""

BY_MISTAKE = """
import pytest
from shop import Order, app, orders

FIXTURES

def test_sync():
    orders.sync.send(Order(1))

@pytest.mark.anyio
async def test_async():
    await orders.send(Order(1))

@pytest.mark.anyio
async def test_worker():
    async with app.worker():
        pass
"""


def run(folder: Path, app: str, files: dict[str, str]) -> str:
    """Run some tests in a process of their own, as a user does, and return what pytest prints."""
    for name, text in {"shop.py": SHOP, "conftest.py": CONFTEST, **files}.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\n{app}\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sorted(files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.full("starts a pytest")
def test_tests_get_a_worker_of_the_app_that_the_configuration_or_a_fixture_names(tmp_path: Path) -> None:
    """Each test one of its own. A server that a test has started is asked for, so it needs no option.

    What a failing test prints holds what a worker logs in production, and not each step of the protocol.
    """
    printed = run(tmp_path, "streamworker_app = shop:app\npythonpath = .", TESTS)
    assert re.search(r"^1 failed, 4 passed in", printed, re.MULTILINE), printed
    assert "_ test_that_fails _" in printed and "worker_started" in printed
    assert "ChangeDocument" not in printed


def test_tests_without_a_worker_do_not_pay_for_it(tmp_path: Path) -> None:
    """Pytest loads the plugin for them, too."""
    printed = run(tmp_path, "", {"test_without.py": WITHOUT})
    assert re.search(r"^1 passed in", printed, re.MULTILINE), printed


@pytest.mark.full("starts a pytest")
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_test_that_another_plugin_runs_or_none_is_told_how_to_get_a_worker(
    mode: str, tmp_path: Path
) -> None:
    """A sync test has no event loop, and pytest-asyncio ends a fixture in another task than it began it."""
    options = f"streamworker_app = shop:app\npythonpath = .\nasyncio_mode = {mode}"
    printed = run(tmp_path, options, {"test_others.py": OF_OTHERS})
    assert "3 passed, 2 errors" in printed
    said = "The fixture `worker` needs an `async def` test with the mark pytest.mark.anyio; in one of "
    assert len(re.findall(f"^E? *{said}", printed, re.MULTILINE)) == 2, printed


@pytest.mark.full("starts a pytest")
@pytest.mark.parametrize("asks", ["", "option", "fixture"])
def test_no_test_reaches_a_real_server_by_mistake(
    asks: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name one that others use; the error says how to ask for it. Who asks for a worker
    and names no app is told how to.
    """
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", redis_url)
    fixtures = 'pytestmark = pytest.mark.usefixtures("streamworker_real_server")' if asks == "fixture" else ""
    options = "pythonpath = ." + ("\nstreamworker_real_server = true" if asks == "option" else "")
    files = {"test_mistake.py": BY_MISTAKE.replace("FIXTURES", fixtures)}
    printed = run(tmp_path, options, files | ({} if asks else {"test_named.py": TESTS["test_named.py"]}))
    with opened(redis_url) as raw:
        if asks:
            assert re.search(r"^3 passed in", printed, re.MULTILINE), printed
            assert raw.dbsize() > 0
        else:
            assert re.search(r"^3 failed, 2 errors in", printed, re.MULTILINE), printed
            assert "No app is named." in printed and 'streamworker_app = "shop:app"' in printed
            assert "`streamworker_real_server = true`" in printed and "the fixture `worker`" in printed
            assert raw.dbsize() == 0
