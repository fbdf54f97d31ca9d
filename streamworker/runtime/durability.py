"""The durability of commits and sends that the settings ask for, and a check that the server supports it."""

from contextlib import suppress
from typing import Any

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio.admin import health
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability, refusal, refusal_of_policy
from streamworker.settings import Settings

PIPELINES = 2
"""Round trips that one sender or committer has in flight: one at the server, one on the network. More would
only make each round trip smaller."""

WAITING_PIPELINES = 4
"""Round trips in flight if each waits for a disk or a replica. With two, new commits would wait for the end
of two such waits; with four they wait for a quarter of one. An app has connections for all of them, so that
one stream does not delay another."""

_log = get_logger("streamworker.durability")


def durability_of(settings: Settings) -> Durability:
    """Return the durability that commits and sends wait for."""
    return Durability(settings.durability, settings.durability_replicas, settings.durability_timeout_ms)


def pipelines_of(settings: Settings) -> int:
    """Return how many round trips of one kind may be in flight."""
    return PIPELINES if settings.durability == "memory" else WAITING_PIPELINES


async def check_durability(backend: Backend, settings: Settings) -> None:
    """Check that the server, or each primary of a Cluster, supports the durability of the settings.

    It refuses one that is too old, writes no append-only file, would confirm too early, or does not permit
    this user.
    """
    wanted = durability_of(settings)
    probe = Durability(wanted.mode, wanted.replicas, 1)
    if not probe.command:
        return
    for primary in await backend.server.primaries():
        try:
            await _check_one(Backend(primary), settings, wanted, probe)
        except BackendUnavailable:
            backend.server.failed(primary)  # It may have been replaced.
            raise


async def _check_one(backend: Backend, settings: Settings, wanted: Durability, probe: Durability) -> None:
    try:
        answer: Any = await backend.execute(*probe.command)
    except BackendError as error:
        answer = error
    if (refused := refusal(wanted, answer)) is not None:
        raise refused
    if wanted.mode == "aof" and not settings.appendfsync_always:
        policy, info = (await health.configuration(backend) or {}).get("appendfsync"), None
        with suppress(BackendRefused):
            info = await backend.info()
        if (refused := refusal_of_policy(policy, info)) is not None:
            raise refused
    if wanted.mode == "replicas" and (missing := probe.shortfall(answer)):
        _log.warning("replicas_missing", found=missing, remedy="Until they are there nothing is confirmed.")
