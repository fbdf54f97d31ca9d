"""The same record in each of the six kinds, and strategies that make them."""

import dataclasses
import datetime as dt
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, get_type_hints

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st

from streamworker.records import Precision


class Colour(enum.Enum):
    """Plain values that are text."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """Values that are numbers."""

    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    """A nested record."""

    city: str
    zip_code: int | None = None


Money = Annotated[Decimal, Precision(12, 2)]


class AsNamedTuple(NamedTuple):
    """The record; each other kind has its fields."""

    number: int
    text: str
    ratio: float
    flag: bool
    data: bytes
    at: dt.datetime
    day: dt.date
    took: dt.timedelta
    amount: Money
    id: uuid.UUID
    colour: Colour
    level: Level
    mode: Literal["a", "b"]
    tags: list[str]
    counts: dict[str, int]
    maybe: int | None
    place: Place | None = None
    places: tuple[Place, ...] = ()


FIELDS = get_type_hints(AsNamedTuple, include_extras=True)
DEFAULTS = AsNamedTuple._field_defaults
WITH_DEFAULTS = [
    (name, hint, DEFAULTS[name]) if name in DEFAULTS else (name, hint) for name, hint in FIELDS.items()
]

AsStruct = msgspec.defstruct("AsStruct", WITH_DEFAULTS)
AsDataclass = dataclasses.make_dataclass("AsDataclass", WITH_DEFAULTS)
AsAttrs = attrs.make_class(
    "AsAttrs",
    {
        name: attrs.field(type=hint, default=DEFAULTS.get(name, attrs.NOTHING))
        for name, hint in FIELDS.items()
    },
)
AsTypedDict: Any = TypedDict(  # type: ignore[misc]
    "AsTypedDict", {name: NotRequired[hint] if name in DEFAULTS else hint for name, hint in FIELDS.items()}
)
AsPydantic: Any = pydantic.create_model(  # type: ignore[call-overload]
    "AsPydantic",
    __config__=pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"),
    **{name: (hint, DEFAULTS.get(name, ...)) for name, hint in FIELDS.items()},
)

KINDS: tuple[Callable[..., Any], ...] = (
    AsStruct,
    AsDataclass,
    AsAttrs,
    AsNamedTuple,
    AsTypedDict,
    AsPydantic,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLACES = st.builds(Place, TEXT, st.none() | st.integers(0, 10**6))
# Offsets of some zones before 1970 have seconds, which no text format carries. A time that a
# clock shows twice, or never, is not equal to itself in another zone (PEP 495).
MOMENTS = st.datetimes(
    min_value=dt.datetime(1971, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=dt.datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.timezones() | st.just(dt.UTC),
).filter(lambda moment: moment == moment.astimezone(dt.UTC))

VALUES = st.fixed_dictionaries(
    {
        "number": st.integers(-(2**63), 2**63 - 1),
        "text": TEXT,
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "data": st.binary(max_size=20),
        "at": MOMENTS,
        "day": st.dates(),
        "took": st.timedeltas(dt.timedelta(days=-10_000), dt.timedelta(days=10_000)),
        "amount": st.decimals(-(10**9), 10**9, places=2),
        "id": st.uuids(),
        "colour": st.sampled_from(Colour),
        "level": st.sampled_from(Level),
        "mode": st.sampled_from(["a", "b"]),
        "tags": st.lists(TEXT, max_size=3),
        "counts": st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1), max_size=3),
        "maybe": st.none() | st.integers(-(2**63), 2**63 - 1),
    },
    optional={
        "place": st.none() | PLACES,
        "places": st.lists(PLACES, max_size=3).map(tuple),
    },
)
