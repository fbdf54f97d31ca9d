"""Records as commands show them."""

from collections.abc import Mapping

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


def shortened(text: str, width: int = 160) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= width else text[: width - 3] + "..."
