"""A record that is sent is the record that a processor gets, in every kind and codec."""

import dataclasses
import datetime as dt
import json
import math
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import ConfigurationError, DecodeError, RecordError
from streamworker.records import RecordType
from streamworker.records.codecs import CODECS, Codec
from streamworker.records.entries import Entries
from tests.records.decoding import decoded
from tests.records.kinds import KINDS, VALUES, AsNamedTuple


class Order(msgspec.Struct):
    order_id: int
    customer: str
    amount: float = 0.0
    note: str | None = None


ORDER = RecordType.of(Order)


def entry_fields(payload: Any) -> dict[bytes, bytes]:
    return payload if isinstance(payload, dict) else {b"v": payload}


def entries(*payloads: bytes) -> Entries:
    """Return entries with these payloads as a read brings them; ids 1-0, 2-0, ..."""
    return Entries.of([[b"%d-0" % n, [b"v", payload]] for n, payload in enumerate(payloads, 1)])


KIND_TYPES = [(kind, RecordType.of(kind)) for kind in KINDS]
ENCODERS = {(kind, codec): its.encoder(codec) for kind, its in KIND_TYPES for codec in CODECS}
DECODERS = {(kind, codec): its.decoder(codec) for kind, its in KIND_TYPES for codec in CODECS}


@given(values=VALUES)
def test_every_kind_of_record_survives_every_codec(values: Any) -> None:
    """Encoded and decoded, a record is equal to what it was, to the microsecond and the last digit.

    Its JSON is an object with the fields as keys: producers in other languages need to know no more.
    """
    for kind, record_type in KIND_TYPES:
        record = kind(**values)
        for codec in CODECS:
            fields = entry_fields(ENCODERS[kind, codec](record))
            assert all(isinstance(part, bytes) for item in fields.items() for part in item)
            assert DECODERS[kind, codec](fields) == record
            assert record_type.batch_decoder(codec)([Entry(EntryId(1, 0), fields, 1)] * 2) == [record, record]
            if codec == "json":
                document = json.loads(fields[b"v"])
                assert (document["text"], document["number"]) == (values["text"], values["number"])


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_msgpack_and_fields_keep_every_float(value: float) -> None:
    """NaN and infinities travel where the codec has them."""
    for codec in ("msgpack", "fields"):
        fields = entry_fields(ORDER.encoder(codec)(Order(1, "ann", value)))
        back = ORDER.decoder(codec)(fields).amount
        assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", [None, 7, {"order_id": 1}, "text", AsNamedTuple])
def test_an_object_of_another_type_is_not_sent(codec: Codec, other: object) -> None:
    """The error names both types."""
    with pytest.raises(RecordError, match="records of type Order"):
        ORDER.encoder(codec)(other)


class Defaulted(msgspec.Struct):
    number: int
    text: str | None = "x"


class Sparse(msgspec.Struct):
    number: int | None = None


@dataclasses.dataclass
class Deep:
    by_name: dict[str, list[float]]


class Model(pydantic.BaseModel):
    ratio: float | None


LOST = "NaN or an infinity"
"""JSON would hold a null in its place, which no consumer takes for a float."""


@pytest.mark.parametrize(
    ("codec", "record", "why"),
    [
        ("json", Order(1, object()), "cannot be encoded as json"),  # type: ignore[arg-type]
        ("json", Order(1, "ann", math.nan), LOST),
        ("json", Deep({"a": [1.0, math.inf]}), LOST),
        ("json", Model(ratio=-math.inf), LOST),
        ("fields", Defaulted(1, None), "'text' of Defaulted is None, and a missing field would be read"),
        ("fields", Sparse(), "without any value"),
    ],
)
def test_a_value_that_the_codec_cannot_hold_is_refused_by_name(codec: Codec, record: Any, why: str) -> None:
    """The sender learns it at once, and not the consumer: an entry of Redis needs a field, for instance."""
    with pytest.raises(RecordError, match=why):
        RecordType.of(type(record)).encoder(codec)(record)


def test_a_typed_dict_without_a_required_key_is_not_sent() -> None:
    """The missing keys are named."""
    with pytest.raises(RecordError, match=r"lacks .*number.*ratio"):
        RecordType.of(KINDS[4]).encoder("json")({"text": "x"})


# -- entries that are wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({}, "no field 'v'"),
        ({b"customer": b"ann"}, "fields: 'customer'"),
        ({b"v": b""}, "truncated"),
        ({b"v": b"{"}, "truncated"),
        ({b"v": b"[]"}, "Expected `object`"),
        ({b"v": b'{"order_id":1}'}, "missing required field `customer`"),
        ({b"v": b'{"order_id":"1","customer":"ann"}'}, r"\$\.order_id"),
        ({b"v": b'{"order_id":1,"customer":"\xff"}'}, "Order"),
        ({b"v": b"[" * 100_000}, "Order"),
    ],
)
def test_an_entry_that_is_no_record_is_a_decode_error(fields: dict[bytes, bytes], what: str) -> None:
    """Whatever another program wrote, the error says what is wrong and what to do."""
    with pytest.raises(DecodeError, match=what) as caught:
        ORDER.decoder("json")(fields)
    assert caught.value.remedy


@given(data=st.binary(max_size=60))
def test_no_payload_breaks_a_decoder(data: bytes) -> None:
    """Random bytes are a DecodeError, and nothing else, for every kind and codec."""
    for decode in DECODERS.values():
        with pytest.raises(DecodeError):
            decode({b"v": data, b"number": data})


def test_a_records_own_check_that_fails_is_a_decode_error() -> None:
    """Code of the record class may raise what it likes; it is still the entry's fault."""

    class Checked(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            assert self.number > 0, "must be positive"

    with pytest.raises(DecodeError, match="must be positive"):
        RecordType.of(Checked).decoder("json")({b"v": b'{"number":0}'})


def test_the_wrong_entry_of_a_batch_is_found() -> None:
    """Of many entries, the error is that of the first that is wrong; however they were made."""
    good = b'{"order_id":1,"customer":"ann"}'
    read = entries(good, good, b'{"order_id":null,"customer":"x"}', b"{")
    for batch in (read, list(read)):
        with pytest.raises(msgspec.ValidationError, match="order_id"):
            ORDER.batch_decoder()(batch)
        with pytest.raises(DecodeError, match=r"The entry holds no Order: .*order_id"):
            decoded(ORDER, batch)
        assert ORDER.batch_decoder()(batch[:2]) == [Order(1, "ann")] * 2


# -- renamed, optional, defaults -------------------------------------------------------------


def survives(record: Any) -> RecordType:
    """Insist that a record comes back from every codec; return its type."""
    record_type = RecordType.of(type(record))
    for codec in CODECS:
        assert record_type.decoder(codec)(entry_fields(record_type.encoder(codec)(record))) == record
    return record_type


def test_payloads_use_the_names_that_a_class_gives_its_fields() -> None:
    """The rename of msgspec and the alias of pydantic decide about payloads, in all codecs."""

    class Renamed(msgspec.Struct, rename="camel"):
        order_id: int

    class Aliased(pydantic.BaseModel):
        order_id: int = pydantic.Field(alias="orderId")

    assert RecordType.of(Renamed).fields == ("order_id",)
    for record in (Renamed(7), Aliased(orderId=7)):
        record_type = survives(record)
        assert record_type.encoder("json")(record) == b'{"orderId":7}'
        assert record_type.encoder("fields")(record) == {b"orderId": b"7"}


def test_a_struct_with_a_tag_or_laid_out_as_an_array_survives_every_codec() -> None:
    """A tag in the payload is no field; array_like saves bytes, and still has named fields as an entry."""

    class Compact(msgspec.Struct, array_like=True):
        number: int
        text: str = "x"

    class Tagged(msgspec.Struct, tag="order"):
        number: int

    assert survives(Compact(1)).encoder("json")(Compact(1)) == b'[1,"x"]'
    assert survives(Tagged(1)).fields == ("number",)


def test_plain_entries_of_other_programs_are_read() -> None:
    """XADD with text fields, some left out and some unknown, is a record."""
    fields = {b"order_id": b"7", b"customer": b"ann", b"amount": b"3.50", b"unknown": b"\xff"}
    assert ORDER.decoder("fields")(fields) == Order(7, "ann", 3.5, None)


def test_an_optional_field_without_a_default_may_be_missing() -> None:
    """A missing field of an entry is None where the type allows it, and an error elsewhere."""

    class Two(msgspec.Struct):
        one: int
        other: dt.datetime | None

    decode = RecordType.of(Two).decoder("fields")
    assert decode({b"one": b"1"}) == Two(1, None)
    with pytest.raises(DecodeError, match="one"):
        decode({b"other": b"2024-01-01T00:00:00Z"})


def test_none_is_kept_where_a_field_holds_json() -> None:
    """A list that is None is not an empty list, as an entry of plain fields too."""

    @dataclasses.dataclass
    class Listed:
        number: int
        tags: list[str] | None = dataclasses.field(default_factory=list)

    record_type = RecordType.of(Listed)
    fields = record_type.encoder("fields")(Listed(1, None))
    assert fields == {b"number": b"1", b"tags": b"null"}
    assert record_type.decoder("fields")(fields) == Listed(1, None)


# -- declared wrongly ------------------------------------------------------------------------


class Moment(msgspec.Struct):
    ms: int


@dataclasses.dataclass
class Shifted:
    """A codec of the program that has no hash, since it can be compared."""

    by: int
    name: str = "shifted"

    def encode(self, record: Any) -> bytes:
        return bytes(each + self.by for each in msgspec.json.encode(record))

    def decode(self, payload: bytes) -> Any:
        return msgspec.json.decode(bytes(each - self.by for each in payload), type=Moment)


def test_a_batch_of_a_programs_own_codec_is_decoded_in_one_pass() -> None:
    """With the codec of its stream: another may have the same name, or equal it."""
    record_type, record = RecordType.of(Moment), Moment(1)
    for codec in (Shifted(1), Shifted(2)):
        payload = record_type.encoder(codec)(record)
        assert isinstance(payload, bytes)
        assert record_type.batch_decoder(codec)(entries(payload, payload)) == [record, record]


def test_an_unknown_codec_is_refused() -> None:
    """The error lists those that exist."""
    for make in (ORDER.encoder, ORDER.decoder):
        with pytest.raises(ConfigurationError, match="'json', 'msgpack', 'fields'"):
            make("yaml")  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODECS)
def test_a_field_that_cannot_be_decoded_is_refused_when_declared(codec: Codec) -> None:
    """Two structs in one union cannot be told apart: an error before anything runs."""

    class Strange(msgspec.Struct):
        either: Order | Sparse

    with pytest.raises(ConfigurationError, match="Strange"):
        RecordType.of(Strange).decoder(codec)
