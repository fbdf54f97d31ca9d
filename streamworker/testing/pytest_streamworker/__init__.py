"""The fixtures ``worker``, ``streamworker_app`` and ``streamworker_options``, which pytest finds by itself.

pytest imports this module at each start in an environment that has streamworker, also for tests that have
nothing to do with it. So the build puts it at the top level of the wheel, and it imports streamworker only in
the fixtures: that takes 0.7 s of processor time.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from streamworker import App
    from streamworker.testing import LocalWorker

OPTION = "streamworker_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the path of the app from pytest's configuration."""
    parser.addini(OPTION, 'the app of the fixture `worker`, such as "shop:app"')


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
async def worker(
    streamworker_app: "App", streamworker_options: dict[str, Any]
) -> "AsyncIterator[LocalWorker]":
    """A worker of the app, with a server in memory that belongs to this test."""
    from streamworker.testing import local_worker

    async with local_worker(streamworker_app, **streamworker_options) as running:
        yield running
