"""Operators' orders, which stand in the locks of partitions: give one, and see which are obeyed.

The owner of the lock obeys an order by acquiring the lock again; see ``core.ownership.lifecycle``. A message
on the control stream only makes it quick.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamworker.core.control import OrderGiven
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.text import storable
from streamworker.errors import BackendError, CoordinationError
from streamworker.redisio.group.control import post
from streamworker.redisio.group.locks import answered
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.scripts import ORDER
from streamworker.redisio.wire.client import Backend

Order = Literal["pause", "resume", "retry", "put"]

TEXT_MAX = 500
"""Characters of a name or a reason that a lock keeps."""


@dataclass(frozen=True, slots=True)
class Given:
    """An order as it stands in one partition's lock."""

    version: int
    owner: str
    """Who holds the lock, and has to obey; empty if nobody does."""
    is_new: bool
    """False if there was nothing to change."""


async def give_order(
    backend: Backend,
    keys: GroupKeys,
    partitions: Sequence[int],
    order: Order,
    *,
    who: str,
    why: str,
    record: EntryId = ZERO,
) -> dict[int, Given]:
    """Write an order into the locks of some partitions, and tell their owners. The call may be repeated.

    A partition where the group never ran is missing in the result. ``record`` is what ``put`` sets aside: the
    commit that passes it adds it to the dead letters in place of the function's results.
    """
    who, why = storable(who)[:TEXT_MAX], storable(why)[:TEXT_MAX]
    calls = [((keys.lock(p),), (order, who, why, str(record))) for p in partitions]
    replies = answered(partitions, await backend.run_many(ORDER, calls), _given)
    given = {partition: reply for partition, reply in replies if reply is not None}
    news = {p: each.version for p, each in given.items() if each.is_new}
    if news:
        said = f"{record} {why}".rstrip() if order == "put" else why
        told = OrderGiven(order, tuple(news), tuple(news.values()), who, said)
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
    """Return the version of the orders in some partitions' locks; one that cannot be read is missing."""
    replies = await backend.pipeline([("HGET", keys.lock(p), "ordered") for p in partitions])
    said = zip(partitions, replies, strict=True)
    return {p: whole(reply or b"") or 0 for p, reply in said if not isinstance(reply, BackendError)}
