"""Records as commands show them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from streamworker.declaring.specs import StreamSpec
from streamworker.errors import RecordError


def decoded(spec: StreamSpec, fields: Mapping[bytes, bytes]) -> object:
    """Decode what an entry holds: a record, or a list of rows; None if it cannot be decoded."""
    try:
        if spec.codec == "arrow":
            from streamworker.redisio.data.columns import unpacked  # loads pyarrow

            return spec.record.from_arrow(spec.record.fit_arrow(unpacked(fields), extra="drop"))
        return spec.record.decoder(spec.codec)(fields)
    except RecordError:
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
