"""Lets a table's values end as a deploy says that has given it a function, or has taken one away.

Values keep their times. A table whose end calls a function has its times in an index that earlier releases do
not know, and its values do not tell them (``lua/parts/tables.lua``).
"""

from streamworker.core.events import StartRunner
from streamworker.core.time.lifetimes import Lifetimes
from streamworker.redisio.data.state import read_state
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import RETIME, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered

MOST = 500
"""Ends that one call moves. It takes the server about a millisecond."""


async def begin(backend: Backend, keys: GroupKeys, tables: Lifetimes, start: StartRunner) -> dict[str, bytes]:
    """Return the stored state of a partition that its owner begins to run, after :func:`retime`."""
    if tables:
        await retime(backend, keys, tables, start)
    return await read_state(backend, keys, start.partition)


async def retime(backend: Backend, keys: GroupKeys, tables: Lifetimes, start: StartRunner) -> None:
    """Move the ends of the values of some tables in one partition, before its owner begins.

    It may be repeated. A partition that has another owner by now is left to it.
    """
    p = start.partition
    others = {name: (keys.expiry if its.is_called else keys.due)(p, name) for name, its in tables.items()}
    found = all_answered(await backend.pipeline([("EXISTS", other) for other in others.values()]))
    for (name, other), is_there in zip(others.items(), found, strict=True):
        while is_there:
            values, index = keys.tables(p, {name: tables[name]})
            call = RETIME.call(
                lock=keys.lock(p),
                values=values,
                before=other,
                index=index,
                owner=start.owner,
                epoch=start.lock.epoch,
                is_called=int(tables[name].is_called),
                most=MOST,
            )
            (reply,) = all_answered(await backend.run_many(RETIME, [call]))
            code, *moved = checked(reply)
            is_there = code == b"OK" and moved[0] >= MOST
