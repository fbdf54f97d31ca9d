"""Sends with an id: a record that is sent once within a window, or later.

They do not queue in a lane: the id makes a repeat harmless, so that each is a call of its own.
"""

import asyncio
import datetime as dt
import math
import random
import secrets
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
from streamworker.redisio.data.streams import entry_fields
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.scripts import LATER_PUT, SEND_ONCE
from streamworker.redisio.wire.client import CONNECTIONS
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.durability import durability_of
from streamworker.runtime.send.lane import Encoded, OnFull, check_on_full
from streamworker.runtime.send.lanes import Declaration, full_pauses
from streamworker.runtime.send.refusals import forgotten, full, not_begun, refused_later, too_many
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

    async def aclose(self) -> None:
        """Wait for the calls in progress."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _named(self, key: bytes | None, id: str) -> tuple[int, tuple[StreamKeys, int, str, str]]:
        """Return the partition of a record, and the arguments by which a call names the record and itself.

        A record without a key goes where its id leads.
        """
        encoded = _checked(id)
        partition = self._spec.placement.partition_of(encoded if key is None else key)
        return partition, (self._keys, partition, later.digest_of(key, id), secrets.token_hex(8))

    async def send(
        self, key: bytes | None, id: str, entry: Encoded, on_full: OnFull, timeout: float | None
    ) -> tuple[int, EntryId, bool]:
        """Append a record once; return its partition, its entry, and whether it is a duplicate."""
        check_on_full(on_full)
        partition, names = self._named(key, id)
        call = later.send_once(
            *names, entry_fields(entry), window_ms=self._spec.id_window_ms, limit=self._spec.records_max
        )
        reply = await self._confirmed(call, partition, on_full, timeout)
        return partition, EntryId.parse(reply.value), reply.code is AppendCode.OTHER

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
        partition, names = self._named(key, id)
        call = later.schedule(
            *names,
            entry_fields(entry),
            due=due,
            named=(id, key),
            replace=replace,
            limit=self._spec.records_max,
        )
        reply = await self._confirmed(call, partition, "raise", timeout)
        at = moment(int(reply.value))
        return Scheduled(id, at, reply.code is AppendCode.OTHER)

    async def cancel(self, key: bytes | None, id: str, timeout: float | None) -> bool:
        """Return whether a record that waited will never be sent."""
        partition, names = self._named(key, id)
        call = later.cancel(*names, window_ms=self._spec.id_window_ms)
        return (await self._confirmed(call, partition, "raise", timeout)).value == b"1"

    async def _confirmed(
        self, call: IdCall, partition: int, on_full: OnFull, timeout: float | None
    ) -> AppendReply:
        under_way = asyncio.get_running_loop().create_future()
        self._calls.add(under_way)
        when_full = full_pauses(self._rng.random)
        pauses = Pauses(self._rng.random, max_ms=self._backend.server.pause_max_ms)
        refusal = too_many if call.script is LATER_PUT else full
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
                    reply = await self._once(call)
                    is_full = reply.code is AppendCode.FULL
                    trouble = refusal(self._spec, partition) if is_full else reply.error
                    if trouble is None:
                        self._observe(call, reply, monotonic_s() - began_s, has_waited=when_full.failures > 0)
                        return reply
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

    def _observe(self, call: IdCall, reply: AppendReply, seconds: float, *, has_waited: bool) -> None:
        if (observer := self._declaration.observer) is None:
            return
        if reply.code is AppendCode.OTHER:
            observer.repeated(self._spec)
        elif call.script is SEND_ONCE:
            observer.sent(self._spec, seconds, 1, int(has_waited))

    async def _once(self, call: IdCall) -> AppendReply:
        try:
            async with self._turns:
                await self._declaration.make()
                return await call.run(self._backend, self._durability)
        except BackendError as error:
            is_unknown = isinstance(error, BackendUnavailable)
            return AppendReply(AppendCode.UNKNOWN if is_unknown else AppendCode.REFUSED, error=error)

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
