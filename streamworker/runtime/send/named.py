"""Sends with an id: a record that is sent once within a window, or later.

They do not queue in a lane: the id makes a repeat harmless, so that each is a call of its own.

A call goes to the partition that has its key now. If that is sealed, the call waits for the stream's map and
goes on in the partition that follows. What a sealed partition knows of an id never changes again, so a call
looks there first: an earlier try may have come there, or one of another program. It needs no look where the
window of all ids has passed since. What is scheduled in a sealed partition moves to those that follow, so a
call about it first moves what is known of its id.
"""

import asyncio
import datetime as dt
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from streamworker.core.data.channel import REMEMBERED_FOR_S, AppendCode, AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.core.units import moment
from streamworker.errors import (
    BackendError,
    BackendUnavailable,
    ProducerError,
    RecordError,
    StreamworkerError,
)
from streamworker.log import get_logger
from streamworker.redisio.data import later
from streamworker.redisio.data.later import IdCall
from streamworker.redisio.data.streams import append_by, entry_fields
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.scripts import LATER_CANCEL, LATER_PUT, SEND_ONCE, Script, sealed
from streamworker.redisio.wire.client import CONNECTIONS
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.durability import durability_of
from streamworker.runtime.send.growth import follow_map, map_pauses
from streamworker.runtime.send.lane import Encoded, OnFull, check_on_full
from streamworker.runtime.send.lanes import Declaration, full_pauses
from streamworker.runtime.send.refusals import (
    forgotten,
    full,
    not_begun,
    not_grown,
    refused_later,
    too_many,
)
from streamworker.runtime.telling import warn

ID_BYTES_MAX = 1_024

_log = get_logger("streamworker.producer")


class Scheduled(NamedTuple):
    """A record that is sent later; ``Stream.schedule`` returns it.

    Examples
    --------
    >>> Scheduled("ask-17", dt.datetime(2026, 12, 24, 8, tzinfo=dt.UTC)).duplicate
    False
    """

    id: str
    """The id that it was given, by which ``Stream.cancel`` names it."""
    due: dt.datetime
    """When it is due, in UTC; that of the first one if it is a duplicate."""
    duplicate: bool = False
    """Whether a record of this id and key waits already, or was sent within the stream's ``id_window``."""


Placed = tuple[int, AppendReply]
"""A partition, and what it has answered."""


class _Request(NamedTuple):
    """A call about an id, to be made at the partition of its key."""

    place: bytes
    """What decides the partition: the key, or the id of a record that has none."""
    script: Script
    at: Callable[[int], IdCall]
    """Returns the call at a partition."""
    ask: Callable[[Sequence[int], int], Awaitable[Placed | None]]
    """Asks the partitions that had the key before, which are sealed, or moves what they know to the one that
    has it now; returns an answer, if one has it."""


def _named(key: bytes | None, id: str) -> tuple[bytes, str, str]:
    """Return what decides the partition of a record, the digest of its id, and a name of the call."""
    encoded = _checked(id)
    return encoded if key is None else key, later.digest_of(key, id), secrets.token_hex(8)


class NamedSends:
    """The sends with an id of one producer."""

    def __init__(self, declaration: Declaration, rng: random.Random) -> None:
        self._declaration = declaration
        self._backend, self._spec = declaration.backend, declaration.spec
        self._keys = StreamKeys(self._spec.app, self._spec.name)
        self._durability = durability_of(declaration.settings)
        self._rng = rng
        self._turns = asyncio.Semaphore(CONNECTIONS)
        """The time limit of a call includes its wait for a connection."""
        self._calls: set[asyncio.Future[None]] = set()
        self._until_s: Sequence[float] = ()
        """See :meth:`_known_until_s`."""
        self._left: set[int] = set()
        """The sealed partitions in which nothing is scheduled any more."""

    async def aclose(self) -> None:
        """Wait for the calls in progress."""
        while self._calls:
            await asyncio.wait(self._calls)

    async def send(
        self, key: bytes | None, id: str, entry: Encoded, on_full: OnFull, timeout: float | None
    ) -> tuple[int, EntryId, bool]:
        """Append a record once; return its partition, its entry, and whether it is a duplicate."""
        check_on_full(on_full)
        place, digest, call = _named(key, id)
        fields, limit = entry_fields(entry), self._spec.records_max
        window_ms = self._spec.id_window_ms

        def at(partition: int, fields: Sequence[bytes] = fields) -> IdCall:
            return later.send_once(
                self._keys, partition, digest, call, fields, window_ms=window_ms, limit=limit
            )

        async def ask(older: Sequence[int], _: int) -> Placed | None:
            until_s, now_s = await self._known_until_s(len(older)), monotonic_s()
            asked = [p for p, ends_s in zip(older, until_s, strict=True) if now_s < ends_s]
            calls = [at(p, ()).call for p in asked]
            replies = await append_by(self._backend, SEND_ONCE, calls, self._durability)
            found = zip(asked, replies, strict=True)
            return next((each for each in found if each[1].code is not AppendCode.SEALED), None)

        partition, reply = await self._confirmed(_Request(place, SEND_ONCE, at, ask), on_full, timeout)
        return partition, EntryId.parse(reply.value), reply.code is AppendCode.OTHER

    async def _known_until_s(self, generations: int) -> Sequence[float]:
        """Return until when, by the clock of this process, sealed partitions of each generation know ids."""
        if len(self._until_s) != generations:
            known_s, now_s = max(3_600, self._spec.id_window_ms / 1000), monotonic_s()
            bases = list(accumulate(self._spec.placement.counts))[:generations]
            open_ms = await later.open_since_ms(self._backend, self._keys, bases)
            self._until_s = [now_s + known_s - each / 1000 for each in open_ms]
        return self._until_s

    async def schedule(
        self,
        key: bytes | None,
        id: str,
        entry: Encoded,
        due: tuple[str, int],
        timeout: float | None,
        *,
        replace: bool,
    ) -> Scheduled:
        """Keep a record until it is due."""
        place, digest, call = _named(key, id)

        def at(partition: int) -> IdCall:
            return later.schedule(
                self._keys,
                partition,
                digest,
                call,
                entry_fields(entry),
                due=due,
                named=(id, key),
                replace=replace,
                limit=self._spec.records_max,
            )

        move = partial(self._move, digest)
        _, reply = await self._confirmed(_Request(place, LATER_PUT, at, move), "raise", timeout)
        return Scheduled(id, moment(int(reply.value)), reply.code is AppendCode.OTHER)

    async def cancel(self, key: bytes | None, id: str, timeout: float | None) -> bool:
        """Return whether a record that waited will never be sent."""
        place, digest, call = _named(key, id)

        def at(partition: int) -> IdCall:
            return later.cancel(self._keys, partition, digest, call, window_ms=self._spec.id_window_ms)

        move = partial(self._move, digest)
        _, reply = await self._confirmed(_Request(place, LATER_CANCEL, at, move), "raise", timeout)
        return reply.value == b"1"

    async def _move(self, digest: str, older: Sequence[int], partition: int) -> Placed | None:
        """Move what sealed partitions know of an id that is scheduled, to the one that has its key now."""
        for each in reversed(older):
            if each in self._left:
                continue
            move = partial(later.hand_on, self._backend, self._keys, each, lambda _: partition)
            left = await move(self._durability, ids=[digest], most=0)
            if left is None:
                return partition, AppendReply(AppendCode.SEALED, error=sealed())
            if not left:
                self._left.add(each)
        return None

    async def _confirmed(self, request: "_Request", on_full: OnFull, timeout: float | None) -> Placed:
        """Make a request until it is answered; return the partition that did, and its answer."""
        under_way = asyncio.get_running_loop().create_future()
        self._calls.add(under_way)
        when_full, until_grown = full_pauses(self._rng.random), map_pauses(self._rng.random)
        pauses = Pauses(self._rng.random, max_ms=self._backend.server.pause_max_ms)
        refusal = too_many if request.script is LATER_PUT else full
        trouble: StreamworkerError | None = None
        may_be_done = False
        began_s = monotonic_s()
        # Ten minutes less than Redis knows a call: a repeat after that would be done again.
        known_s = max(REMEMBERED_FOR_S, self._spec.id_window_ms / 1000 - 600)
        ends_s = math.inf
        try:
            async with asyncio.timeout(timeout):
                while True:
                    tried_s = monotonic_s()
                    if tried_s >= ends_s:
                        raise forgotten(self._spec)
                    partition, reply = await self._once(request)
                    is_full = reply.code is AppendCode.FULL
                    trouble = refusal(self._spec, partition) if is_full else reply.error
                    if trouble is None:
                        waited = when_full.failures > 0
                        self._observe(request.script, reply, monotonic_s() - began_s, has_waited=waited)
                        return partition, reply
                    if reply.code is AppendCode.SEALED:
                        may_be_done, ends_s = False, math.inf  # An earlier try never came, and never will.
                        trouble = not_grown(self._spec, partition, timeout)
                        if await self._has_grown(partition, until_grown):
                            trouble = None
                        continue
                    if reply.is_refused or (is_full and on_full == "raise"):
                        raise refused_later(self._spec, trouble) if may_be_done else trouble
                    pause_ms = (when_full if is_full else pauses).next_ms()
                    if not is_full:
                        may_be_done = True
                        ends_s = min(ends_s, tried_s + known_s)
                        warn(_log, "send_unanswered", trouble, stream=self._spec.name, retry_in_ms=pause_ms)
                    await asyncio.sleep(pause_ms / 1000)
        except TimeoutError:
            raise self._not_in_time(trouble, timeout, may_be_done) from None
        finally:
            self._calls.discard(under_way)
            under_way.set_result(None)

    async def _has_grown(self, partition: int, pauses: Pauses) -> bool:
        """Return whether it is known which partitions follow one that is sealed; pause if not."""
        await follow_map(self._backend, self._spec)
        if partition not in self._spec.placement.active:
            return True
        pause_ms = pauses.next_ms()
        _log.warning("send_sealed", stream=self._spec.name, retry_in_ms=pause_ms)
        await asyncio.sleep(pause_ms / 1000)
        return False

    def _observe(self, script: Script, reply: AppendReply, seconds: float, *, has_waited: bool) -> None:
        if (observer := self._declaration.observer) is None:
            return
        if reply.code is AppendCode.OTHER:
            observer.repeated(self._spec)
        elif script is SEND_ONCE:
            observer.sent(self._spec, seconds, 1, int(has_waited))

    async def _once(self, request: "_Request") -> Placed:
        partition = self._spec.placement.partition_of(request.place)
        try:
            async with self._turns:
                await self._declaration.make()
                *older, partition = self._spec.placement.path_of(request.place)
                if older and (found := await request.ask(older, partition)):
                    return found
                return partition, await request.at(partition).run(self._backend, self._durability)
        except BackendError as error:
            is_unknown = isinstance(error, BackendUnavailable)
            return partition, AppendReply(
                AppendCode.UNKNOWN if is_unknown else AppendCode.REFUSED, error=error
            )

    def _not_in_time(
        self, trouble: StreamworkerError | None, timeout: float | None, may_be_done: bool
    ) -> ProducerError:
        if not self._declaration.is_made:
            return not_begun(self._spec, timeout, self._declaration.trouble)
        if isinstance(trouble, ProducerError):
            return refused_later(self._spec, trouble) if may_be_done else trouble
        return ProducerError(
            f"Stream {self._spec.name!r}: a call with an id was not confirmed within {timeout} s; it may or "
            "may not have been done.",
            remedy="Make it again with the same id: the record is there once.",
        )


def _checked(id: object) -> bytes:
    if not isinstance(id, str) or not id:
        raise RecordError(f"A record was sent with id={id!r}.", remedy="An id is a text that is not empty.")
    try:
        encoded = id.encode()
    except UnicodeEncodeError:
        raise RecordError(
            f"The id {id!a} is no text that UTF-8 can hold.", remedy="Use other characters."
        ) from None
    if len(encoded) > ID_BYTES_MAX:
        raise RecordError(
            f"An id has {len(encoded)} bytes.", remedy=f"Use {ID_BYTES_MAX} at most, or a hash of it."
        )
    return encoded
