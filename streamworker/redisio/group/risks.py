"""What a worker runs beside records, named while it runs: a name that a dead owner left is a death in it."""

from collections.abc import Mapping
from typing import Literal

from streamworker.core.ownership.risks import Risk
from streamworker.errors import BackendRefused
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import RISK, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of

_DIED = b"died"


async def step(
    backend: Backend, keys: GroupKeys, risk: Risk, owner: str, to: Literal["begin", "end"], most: int = 0
) -> tuple[bool, int]:
    """Name a risk before it is taken, or take the name back; return whether that is done, and its deaths.

    It is not named if more workers than ``most`` have died in it. The call may be repeated.
    """
    call = RISK.at(keys, what=risk.what, place=risk.place, owner=owner, step=to, most=most)
    code, deaths = checked(await backend.run(RISK, call))
    return code == b"OK", int(deaths)


async def read_deaths(backend: Backend, keys: GroupKeys) -> dict[str, int]:
    """Return how many workers have died in a row in each thing that a group runs beside records.

    A user that was made for an earlier release may not read them, and is told of none.
    """
    try:
        return deaths_in(pairs_of(await backend.execute("HGETALL", keys.risks)))
    except BackendRefused:
        return {}


def deaths_in(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    """Return the most deaths of each kind and name, over all partitions or in one of them.

    >>> deaths_in({b"at timer sweep 3": b"w2", b"died timer sweep 3": b"w1 w0", b"died timer sweep": b"w1"})
    {'timer sweep': 2}
    """
    found: dict[str, int] = {}
    for field, workers in fields.items():
        match field.split():
            case [word, kind, name, *_] if word == _DIED:
                what = f"{kind.decode('utf-8', 'replace')} {name.decode('utf-8', 'replace')}"
                found[what] = max(found.get(what, 0), len(workers.split()))
            case _:
                pass
    return found


async def forget_deaths(backend: Backend, keys: GroupKeys, what: str = "") -> None:
    """Begin the count of deaths anew, for one kind and name or for all."""
    stored = pairs_of(await backend.execute("HGETALL", keys.risks))
    names = [field for field in stored if not what or field.split()[1:3] == what.encode().split()]
    if names:
        await backend.execute("HDEL", keys.risks, *names)
