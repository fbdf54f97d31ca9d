"""The fixtures ``worker``, ``streamworker_app`` and ``streamworker_options``, which pytest finds by itself.

And ``streamworker_real_server``: tests connect to no real server unless they ask for it, because the
environment of a developer may name one that others use.

pytest imports this module at each start in an environment that has streamworker, also for tests that have
nothing to do with it. So the build puts it at the top level of the wheel, and it imports streamworker only in
the fixtures: that takes 0.7 s of processor time. ``streamworker.runtime.connecting`` finds it by its name.
"""

from collections.abc import AsyncIterator
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
    if "anyio_backend" not in request.fixturenames or request.node.get_closest_marker("asyncio"):
        pytest.fail(
            "The fixture `worker` needs an `async def` test with the mark pytest.mark.anyio; in one of "
            "pytest-asyncio write `async with local_worker(app) as worker:` instead.",
            pytrace=False,
        )
    running: LocalWorker = request.getfixturevalue("_streamworker_running")
    return running


@pytest.fixture
async def _streamworker_running(
    streamworker_app: "App", streamworker_options: dict[str, Any]
) -> "AsyncIterator[LocalWorker]":
    from streamworker.testing import local_worker

    async with local_worker(streamworker_app, **streamworker_options) as running:
        yield running
