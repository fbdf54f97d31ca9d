"""Codecs that a program brings: its records become bytes by code of its own."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from streamworker.errors import RecordError


@runtime_checkable
class RecordCodec(Protocol):
    """A codec of the program: how records become the bytes of an entry, and records again.

    ``App.stream(codec=...)`` takes an object with these members. Redis stores the name with the stream, and
    refuses a program that declares the stream with another codec. Whatever ``decode`` raises counts as an
    entry that holds no record.

    Examples
    --------
    >>> import msgspec
    >>> class Reversed:
    ...     name = "reversed"
    ...     def encode(self, record: Any) -> bytes:
    ...         return msgspec.json.encode(record)[::-1]
    ...     def decode(self, payload: bytes) -> Any:
    ...         return msgspec.json.decode(payload[::-1])
    >>> isinstance(Reversed(), RecordCodec)
    True
    """

    name: str
    """1 to 64 letters, digits, ``_ . -``; none of the names of streamworker's own codecs."""

    def encode(self, record: Any) -> bytes:
        """Return the payload of a record; it runs on the event loop, once a record.

        Parameters
        ----------
        record
            A record of the stream's type.
        """
        ...

    def decode(self, payload: bytes) -> Any:
        """Return the record of a payload; raise any error if it holds none.

        Parameters
        ----------
        payload
            What :meth:`encode` returned, or another program wrote.
        """
        ...


def codec_name(codec: str | RecordCodec) -> str:
    """Return the name under which Redis stores a codec."""
    return codec if isinstance(codec, str) else codec.name


def own_dumper(codec: RecordCodec) -> Callable[[Any], bytes]:
    """Return the function that turns a record into its payload."""

    def dump(record: Any) -> bytes:
        payload: object = codec.encode(record)
        if type(payload) is not bytes:
            raise RecordError(
                f"Codec {codec.name!r} returned a {type(payload).__name__} for a record.",
                remedy="Return bytes.",
            )
        return payload

    return dump


def own_loader(record_type: type, codec: RecordCodec) -> Callable[[bytes], Any]:
    """Return the function that turns a payload into a record of a type."""

    def load(payload: bytes) -> Any:
        record = codec.decode(payload)
        if not isinstance(record, record_type):
            raise TypeError(f"codec {codec.name!r} made a {type(record).__name__} of it")
        return record

    return load
