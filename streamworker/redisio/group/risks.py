"""What a worker runs beside records, named while it runs: a name that a dead owner left is a death in it."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from streamworker.core.ownership.risks import Risk
from streamworker.core.words import name_of, run_of
from streamworker.errors import BackendRefused
from streamworker.redisio.group.membership import connected, names_connected
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.scripts import RISK, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of

_AT, _DIED = b"at", b"died"
UNKNOWN_MAX_MS = 60_000
"""A worker counts as dead after this long if the server cannot tell whether its connection lives."""


async def step(
    backend: Backend,
    keys: GroupKeys,
    risk: Risk,
    owner: str,
    to: Literal["begin", "end", "count", "look"],
    most: int = 0,
) -> tuple[bool, int]:
    """Name a risk before it is taken, or take the name back; return whether that is done, and its deaths.

    It is not named if more workers than ``most`` have died in it. The call may be repeated.
    """
    call = RISK.at(keys, what=risk.what, place=risk.place, owner=owner, step=to, most=most)
    code, deaths = checked(await backend.run(RISK, call))
    return code == b"OK", int(deaths)


async def count_left(
    backend: Backend, keys: GroupKeys, owner: str, partitions: Collection[int], locks: Sequence[int] = ()
) -> bool:
    """Count what other owners were running when they died.

    These are the owners of some partitions, which ``owner`` has now, and those whose worker has no connection
    any more, or was this one before it was started again. Return whether such an owner still has one of some
    ``locks``: it has died in something that nobody may have named.

    A user that was made for an earlier release may not; each death is counted then when the same is next run.
    """
    left = dict[Risk, str]()
    try:
        fields = pairs_of(await backend.execute("HGETALL", keys.risks))
    except BackendRefused:
        return False
    for field, value in fields.items():
        match field.decode("utf-8", "replace").split(), value.decode("utf-8", "replace").split():
            case ["at", kind, name, place], [its, *_] if its != owner and whole(place) is not None:
                left[Risk(kind, name, int(place))] = its
            case _:
                pass
    taken = {risk for risk in left if risk.place in partitions}
    replies = await backend.pipeline([("HGET", keys.lock(p), "owner") for p in locks]) if locks else ()
    holders = {its.decode("utf-8", "replace") for its in replies if isinstance(its, bytes)} - {owner, ""}
    others = {its for risk, its in left.items() if risk not in taken}
    dead = await _dead(backend, keys, owner, others | holders)
    for risk, its in left.items():
        if risk in taken or its in dead:
            await step(backend, keys, risk, owner, "count" if risk in taken else "look")
    return not dead.isdisjoint(holders)


async def _dead(backend: Backend, keys: GroupKeys, owner: str, others: Collection[str]) -> set[str]:
    """Return which other owners have no connection any more, or were this worker before its last start.

    None has died where this user may not ask for connections, but for those. A worker's name says nothing: a
    worker of another app, or of another machine, may have the same.
    """
    if not others:
        return set()
    named = await names_connected(backend, keys.risks)
    living = {each.partition(":")[0] for each in named}  # There is one for heartbeats, too.
    can_tell = run_of(owner) in living
    return {
        its for its in others if name_of(its) == name_of(owner) or (can_tell and run_of(its) not in living)
    }


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


async def forget_deaths(backend: Backend, keys: GroupKeys, what: str = "") -> list[str]:
    """Begin the count anew, for one kind and name, a kind or all; return those in which workers died."""
    stored = pairs_of(await backend.execute("HGETALL", keys.risks))
    if names := [field for field in stored if not what or _is_of(field, what)]:
        await backend.execute("HDEL", keys.risks, *names)
    return sorted(deaths_in({field: stored[field] for field in names}))


class Starts(NamedTuple):
    """Workers that make a resource while they start, or have died in it."""

    deaths: int
    """How many died in it one after the other. Those that died side by side count as one death: a lost
    machine takes many along."""
    left: tuple[bytes, ...]
    """The fields of the dead ones, and of this worker if it was not told that it had stored one."""
    others: bool
    """Whether one that lives makes it now."""
    me: str
    """What tells the others whether this worker lives: its connection, the server's run and the time."""


async def read_starts(backend: Backend, keys: GroupKeys, what: str, mine: str = "") -> Starts:
    """Look who makes a resource of a worker, besides the one with the field ``mine``; store the deaths.

    Use it on a backend with one call at a time, since a worker is dead if its connection is closed. Where the
    server cannot tell, as after its own restart, a worker counts as dead after ``UNKNOWN_MAX_MS``.
    """
    replies = await backend.pipeline([("HGETALL", keys.risks), ("TIME",)])
    (stored, time), (client_id, run_id) = all_answered(replies), await backend.identity(keys.risks)
    fields, now_ms = pairs_of(stored), ms_of(time)
    begun: dict[bytes, tuple[int, str, int, int]] = {}
    for field, value in fields.items():
        words = value.decode("utf-8", "replace").split()
        if field.startswith(_AT) and _is_of(field, what) and field != mine.encode() and len(words) == 4:
            begun[field] = (whole(words[0]) or 0, words[1], whole(words[2]) or 0, whole(words[3]) or 0)
    known = {its for its, run, _, _ in begun.values() if its and run == run_id}
    living = await connected(backend, sorted(known), keys.risks)
    left, deaths = list[bytes](), 0
    for field, (its, run, since_ms, before) in begun.items():
        can_tell = living is not None and its and run == run_id
        if can_tell and its == client_id:
            left.append(field)
        elif its not in (living or ()) if can_tell else now_ms - since_ms > UNKNOWN_MAX_MS:
            left.append(field)
            deaths = max(deaths, before + 1)
    died = _DIED + b" " + what.encode()
    if deaths > len(fields.get(died, b"").split()):
        await backend.execute("HSET", keys.risks, died, " ".join(["start"] * deaths))
    return Starts(deaths, tuple(left), len(begun) > len(left), f"{client_id} {run_id or '-'} {now_ms}")


async def begin_start(backend: Backend, keys: GroupKeys, what: str, starts: Starts, *, is_alone: bool) -> str:
    """Name a resource that this worker makes next; return the field, or nothing if another one was faster.

    ``is_alone`` lets one worker make it after each death.
    """
    field = f"at {what} start-{starts.deaths if is_alone else secrets.token_hex(4)}"
    is_new = await backend.execute("HSETNX", keys.risks, field, f"{starts.me} {starts.deaths}")
    return field if is_new else ""


async def end_start(backend: Backend, keys: GroupKeys, what: str, mine: str) -> None:
    """Take the name back: the resource is made, and deaths before that count no more."""
    left = (await read_starts(backend, keys, what, mine)).left
    await backend.execute("HDEL", keys.risks, mine, f"died {what}", *left)


def _is_of(field: bytes, what: str) -> bool:
    words = what.encode().split()
    return field.split()[1 : 1 + len(words)] == words
