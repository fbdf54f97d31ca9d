"""Records as commands show them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from streamworker.declaring.specs import StreamSpec
from streamworker.errors import RecordError
from streamworker.records.codecs import PAYLOAD_FIELD
from streamworker.redisio.data.dead import StoredLetter

MAY_KILL = ("ProcessDied:", "SetAside:")
"""How errors of records begin that may end the process in which they are decoded."""


def decoded(spec: StreamSpec, fields: Mapping[bytes, bytes]) -> object:
    """Decode what an entry holds: a record, or a list of rows; None if it cannot be decoded."""
    try:
        if spec.codec == "arrow":
            from streamworker.redisio.data.columns import unpacked  # loads pyarrow

            return spec.record.from_arrow(spec.record.fit_arrow(unpacked(fields), extra="drop"))
        return spec.record.decoder(spec.codec)(fields)
    except RecordError:
        return None


def letter_decoded(spec: StreamSpec, letter: StoredLetter) -> object:
    """Decode what a dead letter holds; in plain types if that may end the process."""
    may_kill = letter.error.startswith(MAY_KILL)
    return as_written(spec, letter.fields) if may_kill else decoded(spec, letter.fields)


def as_written(spec: StreamSpec, fields: Mapping[bytes, bytes]) -> object:
    """Return what an entry holds in plain types, and run no code of the program.

    A record that kills its process may do so while it is decoded, and a command must survive it.
    """
    try:
        match spec.codec:
            case "arrow":
                from streamworker.redisio.data.columns import unpacked  # loads pyarrow

                return unpacked(fields).to_pylist()
            case "fields":
                return {name.decode(): value.decode() for name, value in fields.items()}
            case "json":
                return msgspec.json.decode(fields[PAYLOAD_FIELD])
            case "msgpack":
                return msgspec.msgpack.decode(fields[PAYLOAD_FIELD])
    except (RecordError, ValueError, KeyError):
        pass
    return None


def plain(value: object) -> Any:
    """Return a record, rows or a value of a table in plain types, by the names with which they are stored."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if not hasattr(value, "model_dump"):
        return str(value)
    try:
        return value.model_dump(mode="json", by_alias=True)
    except ValueError:  # pydantic takes bytes for text, which other bytes are not.
        return value.model_dump(by_alias=True)


def shortened(text: str, width: int = 160) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= width else text[: width - 3] + "..."
