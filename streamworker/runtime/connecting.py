"""Opens connections as the settings say."""

import sys

from streamworker.errors import ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.release import release
from streamworker.settings import Settings

asked_for: set[str] = set()
"""The URLs of servers that a test has started or named itself."""


def connected(
    settings: Settings, name: str, connections: int, *, call_timeout_ms: int | None = None
) -> Backend:
    """Return a backend with a name in ``CLIENT LIST``, which ends with this release; its first call connects.

    ``call_timeout_ms`` is for calls with large replies; None is that of the settings.

    Raises
    ------
    ConfigurationError
        If a test would connect to a real server, and has not asked for it.
    """
    plugin = sys.modules.get("pytest_streamworker")
    url = settings.redis_url
    allowed = getattr(plugin, "real_servers", True)
    if not (allowed or url in asked_for or url.startswith("memory:")):
        raise ConfigurationError(
            "A test would connect to a real server: the Redis that the settings of the app name.",
            remedy="Use the fixture `worker` or local_worker(app), which have a server in memory. Or ask for "
            "the real one: by the fixture `streamworker_real_server`, or for all tests by "
            "`streamworker_real_server = true` in the configuration of pytest.",
        )
    return Backend.open(
        settings.redis_url,
        name=f"{name}:{release()}",
        call_timeout_ms=call_timeout_ms or settings.call_timeout_ms,
        connections=connections,
        allow_plaintext=settings.allow_plaintext,
        credentials=settings.credentials,
    )
