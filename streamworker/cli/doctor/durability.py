"""The check of ``doctor`` for the setting ``durability``."""

from streamworker.cli.doctor.checks import Check
from streamworker.errors import BackendError, ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import ServerInfo
from streamworker.runtime.durability import check_durability
from streamworker.settings import Settings

NAME = "durability"


async def durability_check(backend: Backend, settings: Settings) -> Check:
    """Check whether the server supports the app's durability, and say which data can still be lost.

    Raises
    ------
    BackendError
        If the server does not answer.
    """
    try:
        await check_durability(backend, settings)
    except ConfigurationError as error:
        return Check(NAME, "fail", error.message, error.remedy)
    except BackendError as error:
        return Check(NAME, "fail", error.message, error.remedy or "Try again.")
    return remains(settings, await backend.info())


def remains(settings: Settings, info: ServerInfo) -> Check:
    """Say which confirmed data can be lost with these settings on this server.

    Parameters
    ----------
    settings
        Settings of the app.
    info
        The server's answer to INFO.
    """
    wanted = settings.durability_replicas
    match settings.durability:
        case "aof" if info.replicas:
            return Check(NAME, "ok", "aof: a crash loses nothing that was confirmed; a failover may.")
        case "aof":
            return Check(NAME, "ok", "aof: a crash loses nothing that was confirmed.")
        case "replicas" if info.replicas < wanted:
            return Check(
                NAME,
                "fail",
                f"replicas: nothing is confirmed before {wanted} have it, and {info.replicas} are connected.",
                "Connect a replica, or lower durability_replicas.",
            )
        case "replicas" if info.replicas > wanted:
            return Check(
                NAME,
                "ok",
                f"replicas: a failover to one of the {wanted} that had it loses nothing that was confirmed; "
                f"a failover to another of the {info.replicas} may.",
            )
        case "replicas":
            return Check(NAME, "ok", "replicas: a failover loses nothing that was confirmed.")
    return Check(
        NAME, "ok", "memory: a send is confirmed when Redis has it; persistence says what can be lost."
    )
