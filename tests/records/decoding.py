"""Decodes entries as a worker does."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from streamworker.core.data.entries import Entry
from streamworker.records import RecordType
from streamworker.records.codecs import Codec
from streamworker.records.entries import readable_fields


def decoded(record_type: RecordType, entries: Sequence[Entry], codec: Codec = "json") -> list[Any]:
    """Decode all in one pass, or each by itself if one of them is wrong; its error is the one raised."""
    with suppress(Exception):
        return record_type.batch_decoder(codec)(entries)
    decode = record_type.decoder(codec)
    return [decode(readable_fields(entry)) for entry in entries]
