"""How safe commits and sends are made, as the settings say; asked of the server before anything runs."""

from typing import Any, cast

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio import health
from streamworker.redisio.client import Backend
from streamworker.redisio.durability import Durability, Mode, refusal, refusal_of_policy
from streamworker.redisio.info import ServerInfo
from streamworker.settings import Settings

PIPELINES = 2
"""Round trips that one sender or committer has under way: one at the server, one on its way there.
More would only split the groups."""

WAITING_PIPELINES = 4
"""The same where each stays for as long as a disk or a replica takes: what becomes ready meanwhile
would else wait for the end of two such waits, and now for a quarter of one. An app has connections for
all of them, so that one stream does not hold up another."""

_log = get_logger("streamworker.durability")


def durability_of(settings: Settings) -> Durability:
    """Return what is waited for behind commits and sends."""
    mode = cast(Mode, settings.durability)
    return Durability(mode, settings.durability_replicas, settings.durability_timeout_ms)


def pipelines_of(settings: Settings) -> int:
    """Return how many round trips of one kind may be under way."""
    return PIPELINES if settings.durability == "memory" else WAITING_PIPELINES


async def check_durability(backend: Backend, settings: Settings) -> None:
    """Ask the server, or each primary of a Cluster, whether it can wait as the settings say.

    Raises
    ------
    ConfigurationError
        If it is too old, writes no append-only file, would confirm too early, or does not let this user.
    BackendError
        Without an answer.
    """
    wanted = durability_of(settings)
    probe = Durability(wanted.mode, wanted.replicas, 1)
    if not probe.command:
        return
    for primary in await backend.primaries():
        try:
            await _check_one(primary, settings, wanted, probe)
        except BackendUnavailable:
            backend.look_again()  # It may have a successor, which only a call about a key would tell.
            raise


async def _check_one(backend: Backend, settings: Settings, wanted: Durability, probe: Durability) -> None:
    try:
        answer: Any = await backend.execute(*probe.command)
    except BackendError as error:
        answer = error
    if (refused := refusal(wanted, answer)) is not None:
        raise refused
    if wanted.mode == "aof" and not settings.appendfsync_always:
        policy = (await health.configuration(backend) or {}).get("appendfsync")
        if (refused := refusal_of_policy(policy, await _info(backend))) is not None:
            raise refused
    if wanted.mode == "replicas" and (missing := probe.shortfall(answer)):
        _log.warning("replicas_missing", found=missing, remedy="Until they are there nothing is confirmed.")


async def _info(backend: Backend) -> ServerInfo | None:
    try:
        return await backend.info()
    except BackendRefused:
        return None
