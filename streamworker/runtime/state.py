"""A partition's keyed state: what handlers see through ``ctx.state``.

Three layers of encoded values. *base* holds what was handed to a commit, *group* what handlers
finished since then, and a :class:`StateView` what the running call has changed. A call that
fails loses its layer, a group that has to be run again loses its own, and nothing is undone.

Values are kept encoded (MessagePack) and decoded at each look, so that changing a value in place
changes nothing unless it is assigned: a failed attempt cannot leave half a change behind.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from streamworker.errors import ConfigurationError, RecordError

Changes = dict[str, bytes | None]
"""Encoded new values; None for a key that was deleted."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class PartitionState:
    """The state of one partition, as its runner sees it."""

    __slots__ = ("_base", "_group")

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._base = dict(stored)
        self._group: Changes = {}

    def view(self) -> "StateView":
        """Return a fresh layer for one call of a handler."""
        return StateView(self)

    def keep(self, changes: Changes) -> None:
        """Take over the changes of a call that succeeded."""
        self._group.update(changes)

    def drop_group(self) -> None:
        """Forget what was kept since the last :meth:`seal`."""
        self._group = {}

    def seal(self) -> Changes:
        """Return all changes since the last time, for a commit, and make them the base."""
        changes = self._group
        for key, value in changes.items():
            if value is None:
                self._base.pop(key, None)
            else:
                self._base[key] = value
        # Last, so that a handler in a thread finds each value in one of both at any time.
        self._group = {}
        return changes

    def get(self, key: str) -> bytes | None:
        """Return the encoded value of a key."""
        if key in self._group:
            return self._group[key]
        return self._base.get(key)

    def keys(self) -> set[str]:
        """Return all keys that have a value."""
        gone = {key for key, value in self._group.items() if value is None}
        return (self._base.keys() | self._group.keys()) - gone


class StateView(MutableMapping[str, Any]):
    """The state of one partition during one call of a handler.

    Values: None, bool, int, float, str, bytes, datetime, and lists and dicts of these.
    Assign to change: ``ctx.state[key] = value``. A value changed in place is not stored.

    Raises
    ------
    RecordError
        At the assignment of a value that cannot be stored, or to a key that is not text.
    """

    __slots__ = ("_below", "_closed", "changes")

    def __init__(self, below: PartitionState) -> None:
        self._below = below
        self._closed = False
        self.changes: Changes = {}

    def close(self) -> None:
        """Refuse changes from now on: the call is over."""
        self._closed = True

    def __getitem__(self, key: str) -> Any:
        value = self.changes[key] if key in self.changes else self._below.get(key)
        if value is None:
            raise KeyError(key)
        return _decode(value)

    def __setitem__(self, key: str, value: Any) -> None:
        self._check_open()
        if not isinstance(key, str):
            raise RecordError(
                f"A key of ctx.state is {key!r}, of type {type(key).__name__}.",
                remedy="Use text as keys of the state.",
            )
        try:
            encoded = _encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RecordError(
                f"ctx.state[{key!r}] cannot hold a {type(value).__name__}: {error}.",
                remedy="Store plain values: numbers, text, bytes, datetimes, lists and dicts of them.",
            ) from error
        self.changes[key] = encoded

    def __delitem__(self, key: str) -> None:
        self._check_open()
        if key not in self:
            raise KeyError(key)
        self.changes[key] = None

    def __contains__(self, key: object) -> bool:
        if key in self.changes:
            return self.changes[key] is not None
        return isinstance(key, str) and self._below.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        gone = {key for key, value in self.changes.items() if value is None}
        return iter(sorted((self._below.keys() | self.changes.keys()) - gone))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _check_open(self) -> None:
        if self._closed:
            raise RecordError(
                "ctx.state was changed after the call was over.",
                remedy="Change it before the function returns, while it has a record in hand.",
            )

    def __repr__(self) -> str:
        return f"StateView({dict(self)!r})"


class NoState(PartitionState):
    """What handlers see whose calls overlap: a state that refuses to be used.

    Two calls at a time could change one value, and the earlier record's commit would hold what the
    later one left behind, or lose it. What is stored stays as it is.
    """

    __slots__ = ("_reason", "was_used")

    def __init__(self, processor: str, concurrency: int) -> None:
        super().__init__({})
        self.was_used = False
        """Whether a handler has tried: then it cannot be right, whatever it is given."""
        self._reason = f"Processor {processor!r} uses ctx.state, and has concurrency={concurrency}."

    def view(self) -> StateView:
        """Return a layer that cannot be looked at."""
        return _NoStateView(self)

    def get(self, key: str) -> bytes | None:  # noqa: ARG002 - as the state that can be used
        """Refuse."""
        self.was_used = True
        raise ConfigurationError(
            self._reason,
            remedy="Leave concurrency out, or keep the state in another system, by key.",
        )

    def keys(self) -> set[str]:
        """Refuse."""
        self.get("")
        return set()


class _NoStateView(StateView):
    __slots__ = ()

    def _check_open(self) -> None:
        self._below.get("")
