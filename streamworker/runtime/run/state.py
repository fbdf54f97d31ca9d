"""A partition's keyed state, which handlers use through ``ctx.state``.

The state has three layers of encoded values. *base* holds the values of submitted commits, *group* the
changes of the calls that finished since then, and a :class:`StateView` the changes of the running call. If
a call fails, its layer is dropped; if a group must be handled again, its layer is dropped. So nothing needs
to be undone.

Values are stored encoded (MessagePack), and decoded once in a call, which sees its own changes of a list or a
dict. When the call has succeeded, what it changed in place is encoded and written. A failed attempt cannot
leave half a change behind.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec

from streamworker.errors import ConfigurationError, RecordError
from streamworker.records.codecs import short
from streamworker.records.statetables import Watched, check_unchanged

Changes = dict[str | tuple[str, bytes], bytes | None]
"""Encoded new values; None for a key that was deleted. A key of a table is the table's name and a field."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_IN_PLACE = (list, dict)
"""The types of values that can be changed in place."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class PartitionState:
    """The state of one partition, as its runner sees it."""

    __slots__ = ("_base", "_group")
    ttls: Mapping[str, int] = MappingProxyType({})
    """How long the values of each table stay; there are no tables here."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._base = dict(stored)
        self._group: Changes = {}

    def view(self) -> "StateView":
        """Return a new layer for one call of a handler."""
        return StateView(self)

    def keep(self, changes: Changes) -> None:
        """Add the changes of a successful call to the group."""
        self._group.update(changes)

    def drop_group(self) -> None:
        """Drop the changes since the last :meth:`seal`."""
        self._group = {}

    def seal(self) -> Changes:
        """Return all changes since the last call, for a commit, and merge them into the base."""
        changes = self._group
        for key, value in changes.items():
            if not isinstance(key, str):
                continue
            if value is None:
                self._base.pop(key, None)
            else:
                self._base[key] = value
        # This is last, so that a handler in a thread always finds each value in one of the two layers.
        self._group = {}
        return changes

    def confirmed(self, at_ms: int) -> None:
        """Note that Redis has the oldest commit that was not confirmed; only tables use that."""

    def get(self, key: str) -> bytes | None:
        """Return the encoded value of a key."""
        if key in self._group:
            return self._group[key]
        return self._base.get(key)

    def keys(self) -> set[str]:
        """Return all keys that have a value."""
        return changed(self._base.keys(), self._group)


def changed(keys: Iterable[str], changes: Changes) -> set[str]:
    """Return the keys of the state that have a value after some changes."""
    kept = {key for key in keys if changes.get(key, b"") is not None}
    return kept | {key for key, value in changes.items() if isinstance(key, str) and value is not None}


class StateView(MutableMapping[str, Any]):
    """The state of one partition during one call of a handler.

    Values: None, bool, int, float, str, bytes, datetime with a zone, and lists and dicts of these. To assign
    another value, which would come back as another type, or to a key that is not text, raises RecordError.
    """

    __slots__ = ("_below", "_closed", "_live", "changes", "watched")

    def __init__(self, below: PartitionState) -> None:
        self._below = below
        self._closed = False
        self._live: dict[str, Any] = {}
        """The lists and dicts that the call has, by their keys."""
        self.changes: Changes = {}
        self.watched: list[Watched] = []
        """What the call has of tables."""

    def settled(self) -> Changes:
        """Return the changes of a call that has succeeded, also those in place.

        Raise RecordError or ProcessingError for one that cannot be kept, which fails the call.
        """
        for key, value in self._live.items():
            encoded = _encoded(key, value)
            if encoded != self._stored(key):
                self.changes[key] = encoded
        if self.watched:
            check_unchanged(self.watched)
        return self.changes

    def close(self) -> None:
        """Refuse all later changes: the call is over."""
        self._closed = True

    def write(self, changes: Changes) -> None:
        """Add changes of tables; RecordError if the call is over."""
        self._check_open("A table")
        self.changes.update(changes)

    def __getitem__(self, key: str) -> Any:
        if key in self._live:
            return self._live[key]
        if (stored := self._stored(key)) is None:
            raise KeyError(key)
        value = _decode(stored)
        if type(value) in _IN_PLACE:
            self._live[key] = value
        return value

    def _stored(self, key: str) -> bytes | None:
        return self.changes[key] if key in self.changes else self._below.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._check_open()
        if not isinstance(key, str):
            raise RecordError(
                f"A key of ctx.state is {key!r}, of type {type(key).__name__}.",
                remedy="Use text as keys of the state.",
            )
        self.changes[key] = _encoded(key, value)
        self._live.pop(key, None)
        if type(value) in _IN_PLACE:
            self._live[key] = value

    def __delitem__(self, key: str) -> None:
        self._check_open()
        if key not in self:
            raise KeyError(key)
        self._live.pop(key, None)
        self.changes[key] = None

    def __contains__(self, key: object) -> bool:
        if key in self.changes:
            return self.changes[key] is not None
        return isinstance(key, str) and self._below.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(changed(self._below.keys(), self.changes)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _check_open(self, what: str = "ctx.state") -> None:
        if self._closed:
            raise RecordError(
                f"{what} was changed after the call was over.",
                remedy="Change it before the function returns, while it has a record in hand.",
            )

    def __repr__(self) -> str:
        return f"StateView({dict(self)!r})"


def _encoded(key: str, value: Any) -> bytes:
    try:
        if (strange := _strange(value)) is not None:
            raise TypeError("it would come back as another type")
        key.encode()
        return _encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"ctx.state[{key!r}] cannot hold {short(value if strange is None else strange)}: {error}.",
            remedy="Store plain values: numbers, UTF-8 text, bytes, datetimes with a zone, lists, dicts; "
            "a table holds others.",
        ) from error


def _strange(value: Any) -> Any:
    """Return the first part of a value whose type MessagePack does not give back; None if there is none."""
    kind = type(value)
    if kind not in _IN_PLACE:
        is_plain = kind in _PLAIN or (kind is datetime and value.tzinfo is not None)
        return None if is_plain else value
    parts = value if kind is list else [*value, *value.values()]
    if _PLAIN.issuperset(map(type, parts)):
        return None
    return next((found for part in parts if (found := _strange(part)) is not None), None)


class NoState(PartitionState):
    """The state for handlers whose calls overlap: each use raises an error.

    Two concurrent calls could change one value, and the commit of the earlier record would include the
    later record's change, or lose it. The stored state is not changed.
    """

    __slots__ = ("_reason", "was_used")

    def __init__(self, processor: str, concurrency: int) -> None:
        super().__init__({})
        self.was_used = False
        """Whether a handler has used the state: then it fails for every record."""
        self._reason = f"Processor {processor!r} uses ctx.state, and has concurrency={concurrency}."

    def view(self) -> StateView:
        """Return a layer that refuses each use."""
        return _NoStateView(self)

    def get(self, key: str) -> bytes | None:  # noqa: ARG002 - as the state that can be used
        """Refuse to return a value."""
        self.was_used = True
        raise ConfigurationError(
            self._reason, remedy="Leave concurrency out, or keep the state in another system, by key."
        )

    def keys(self) -> set[str]:
        """Refuse to return keys."""
        self.get("")
        return set()


class _NoStateView(StateView):
    __slots__ = ()

    def _check_open(self, what: str = "ctx.state") -> None:  # noqa: ARG002
        self._below.get("")
