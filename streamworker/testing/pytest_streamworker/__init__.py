"""The fixtures ``worker``, ``streamworker_app`` and ``streamworker_options``, which pytest finds by itself.

And ``streamworker_real_server``: tests connect to no real server unless they ask for it, because the
environment of a developer may name one that others use.

pytest imports this module at each start in an environment that has streamworker, also for tests that have
nothing to do with it. So the build puts it at the top level of the wheel, and it imports streamworker only in
the fixtures: that takes 0.7 s of processor time. ``streamworker.runtime.connecting`` finds it by its name.
"""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from streamworker import App
    from streamworker.testing import LocalWorker

OPTION = "streamworker_app"
REAL_SERVER = "streamworker_real_server"

real_servers = True
"""Whether tests may connect to a real server that they have not started or named themselves."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the path of the app, and whether real servers are allowed, from pytest's configuration."""
    parser.addini(OPTION, 'the app of the fixture `worker`, such as "shop:app"')
    parser.addini(REAL_SERVER, "whether tests may connect to the Redis of an app's settings", type="bool")


def pytest_configure(config: pytest.Config) -> None:
    """Forbid real servers from now on, unless the configuration allows them."""
    global real_servers  # noqa: PLW0603 - the plugin of this process
    real_servers = config.getini(REAL_SERVER)


@pytest.fixture
def streamworker_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this test connect to the Redis that the settings of an app name."""
    monkeypatch.setitem(globals(), "real_servers", True)


@pytest.fixture
def streamworker_app(pytestconfig: pytest.Config) -> "App":
    """The app that ``worker`` runs: the one that pytest's configuration names. Tests may override it."""
    from streamworker.importing import resolve_app

    path = pytestconfig.getini(OPTION)
    if not path:
        raise pytest.UsageError(
            f'No app is named. Write {OPTION} = "shop:app" in the configuration of pytest, '
            f"or a fixture {OPTION} that returns your app."
        )
    return resolve_app(path)


@pytest.fixture
def streamworker_options() -> dict[str, Any]:
    """What ``worker`` gives to ``local_worker``; tests override it: ``{"clock": "virtual"}``."""
    return {}


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> "LocalWorker":
    """A worker of the app in the event loop of the test, with a server in memory of its own."""
    marker = request.node.get_closest_marker("asyncio")
    if (marker is None) == ("anyio_backend" not in request.fixturenames):
        pytest.fail(
            "The fixture `worker` needs the event loop of an `async def` test that has either the mark "
            "pytest.mark.anyio or, with pytest-asyncio, pytest.mark.asyncio, and not both; "
            "asyncio_mode = auto gives each such test the latter.",
            pytrace=False,
        )
    scope = "anyio"
    if marker is not None:
        scope = marker.kwargs.get("loop_scope") or request.config.getini("asyncio_default_test_loop_scope")
    running: LocalWorker = request.getfixturevalue(f"_streamworker_{scope}")
    return running


def _hosted_by(fixture: Any) -> Any:
    """Return a fixture that runs a worker; ``fixture`` makes it, of pytest or of pytest-asyncio.

    The worker has a task of its own: pytest-asyncio begins a fixture in one task and ends it in another.
    """

    async def hosted(
        streamworker_app: "App", streamworker_options: dict[str, Any]
    ) -> "AsyncIterator[LocalWorker]":
        from streamworker.testing import local_worker

        ended = asyncio.Event()
        began: asyncio.Future[LocalWorker] = asyncio.get_running_loop().create_future()

        async def host() -> None:
            async with local_worker(streamworker_app, **streamworker_options) as running:
                began.set_result(running)
                await ended.wait()

        task = asyncio.create_task(host())
        either: list[asyncio.Future[Any]] = [task, began]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if began.done():
            yield began.result()
        ended.set()
        await task

    return fixture(hosted)


_streamworker_anyio = _hosted_by(pytest.fixture)
if find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    for _scope in ("function", "class", "module", "package", "session"):
        globals()[f"_streamworker_{_scope}"] = _hosted_by(pytest_asyncio.fixture(loop_scope=_scope))
