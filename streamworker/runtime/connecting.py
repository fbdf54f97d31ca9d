"""Opens connections as the settings say."""

from streamworker.redisio.wire.client import Backend
from streamworker.settings import Settings


def connected(settings: Settings, name: str, connections: int) -> Backend:
    """Return a backend with a name in ``CLIENT LIST``; its first call connects."""
    return Backend.open(
        settings.redis_url,
        name=name,
        call_timeout_ms=settings.call_timeout_ms,
        connections=connections,
        allow_plaintext=settings.allow_plaintext,
        credentials=settings.credentials,
    )
