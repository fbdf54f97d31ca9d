"""What ``doctor`` says of the setting ``durability``: what it adds to what the server promises."""

from typing import TYPE_CHECKING

from streamworker.cli.checks import Check
from streamworker.errors import BackendError, ConfigurationError

if TYPE_CHECKING:
    from streamworker.redisio.client import Backend
    from streamworker.redisio.info import ServerInfo
    from streamworker.settings import Settings

NAME = "durability"


async def durability_check(backend: "Backend", settings: "Settings") -> Check:
    """Check whether the server can do what the app asks, and say what then is left to lose.

    Raises
    ------
    BackendError
        If it does not answer.
    """
    from streamworker.runtime.durability import check_durability

    try:
        await check_durability(backend, settings)
    except ConfigurationError as error:
        return Check(NAME, "fail", error.message, error.remedy)
    except BackendError as error:
        return Check(NAME, "fail", error.message, error.remedy or "Try again.")
    return remains(settings, await backend.info())


def remains(settings: "Settings", info: "ServerInfo") -> Check:
    """Say what can be lost of what was confirmed, with a setting and a server.

    Parameters
    ----------
    settings
        Of the app.
    info
        What the server says of itself.
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
                f"one to another of the {info.replicas} may.",
            )
        case "replicas":
            return Check(NAME, "ok", "replicas: a failover loses nothing that was confirmed.")
    return Check(NAME, "ok", "memory: a send counts when Redis has it; see persistence for what is lost.")
