"""Operators' requests, which stand in the locks of partitions: make one, and see which are obeyed.

The owner of the lock obeys a request by acquiring the lock again; see ``core.ownership.lifecycle``. A message
on the control stream only makes it quick.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamworker.core.control import RequestMade
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.text import storable
from streamworker.errors import BackendError, CoordinationError
from streamworker.redisio.group.control import post
from streamworker.redisio.group.locks import answered
from streamworker.redisio.keys import GroupKeys, number
from streamworker.redisio.scripts import REQUEST
from streamworker.redisio.wire.client import Backend

Request = Literal["pause", "resume", "retry", "put"]

TEXT_MAX = 500
"""Characters of a name or a reason that a lock keeps."""


@dataclass(frozen=True, slots=True)
class Given:
    """An request as it stands in one partition's lock."""

    version: int
    owner: str
    """Who holds the lock, and has to obey; empty if nobody does."""
    is_new: bool
    """False if there was nothing to change."""


async def make_request(
    backend: Backend,
    keys: GroupKeys,
    partitions: Sequence[int],
    request: Request,
    *,
    who: str,
    why: str,
    record: EntryId = ZERO,
) -> dict[int, Given]:
    """Write a request into the locks of some partitions, and tell their owners. The call may be repeated.

    A partition where the group never ran is missing in the result. ``record`` is what ``put`` sets aside: the
    commit that passes it adds it to the dead letters in place of the function's results.
    """
    who, why = storable(who)[:TEXT_MAX], storable(why)[:TEXT_MAX]
    calls = [REQUEST.at(keys, p, request=request, who=who, why=why, id=str(record)) for p in partitions]
    replies = answered(partitions, await backend.run_many(REQUEST, calls), _given)
    given = {partition: reply for partition, reply in replies if reply is not None}
    news = {p: each.version for p, each in given.items() if each.is_new}
    if news:
        said = f"{record} {why}".rstrip() if request == "put" else why
        told = RequestMade(request, tuple(news), tuple(news.values()), who, said)
        await post(backend, keys, [told.fields()])
    return given


def _given(reply: Any) -> Given | None:
    match reply:
        case [b"FULL"]:
            raise CoordinationError(
                "100 records of this partition are to be set aside already.",
                remedy="Wait until its worker has passed them.",
            )
        case [code, version, owner]:
            return Given(int(version), owner.decode("utf-8", "replace"), code == b"OK")
        case _:
            return None


async def read_versions(backend: Backend, keys: GroupKeys, partitions: Sequence[int]) -> dict[int, int]:
    """Return the version of the requests in some partitions' locks; one that cannot be read is missing."""
    replies = await backend.pipeline([("HGET", keys.lock(p), "ordered") for p in partitions])
    said = zip(partitions, replies, strict=True)
    return {p: number(reply) for p, reply in said if not isinstance(reply, BackendError)}
