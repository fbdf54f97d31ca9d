"""The table of codecs and types in docs/types.md: what becomes of a value of each type by each codec.

`tests/runtime/test_validate.py` sends, consumes and forwards each.
"""

import dataclasses
import datetime as dt
import enum
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pydantic

from streamworker import App, ConfigurationError, RecordError
from streamworker.core.data.placement import RoundRobin
from streamworker.runtime.send.arrowtables import TablePacker
from tests.callables import merged

CODECS: tuple[Literal["json", "msgpack", "fields", "arrow"], ...] = ("json", "msgpack", "fields", "arrow")

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NAIVE = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - that is the point


class Colour(enum.Enum):
    """Plain values."""

    RED = "red"


class Perm(enum.Flag):
    """Values that are combined."""

    READ = 1
    WRITE = 2


class Visit(msgspec.Struct):
    """A record within another."""

    at: dt.datetime


class Typed(TypedDict):
    """A kind of record."""

    at: dt.datetime
    note: NotRequired[str]


class Model(pydantic.BaseModel):
    """A kind of record."""

    at: dt.datetime
    n: int = 0


class Secret(pydantic.BaseModel):
    """Shows asterisks."""

    password: pydantic.SecretStr


class Alias(pydantic.BaseModel):
    """Has one name for both ways."""

    user_id: int = pydantic.Field(alias="uid")


class OneWay(pydantic.BaseModel):
    """Is written by another name than it is read by."""

    user_id: int = pydantic.Field(validation_alias="uid")


class Open(pydantic.BaseModel):
    """Takes what it does not declare."""

    model_config = pydantic.ConfigDict(extra="allow")
    n: int


class Root(pydantic.RootModel[dict[str, int]]):
    """Has no fields."""


class Hidden(pydantic.BaseModel):
    """Keeps a field out of dumps."""

    n: int
    password: str = pydantic.Field(default="", exclude=True)


class Masked(pydantic.BaseModel):
    """Shows another value than it has."""

    card: Annotated[str, pydantic.PlainSerializer(lambda card: "****" + card[-4:])]


class Doubled(pydantic.BaseModel):
    """Shows more than it takes."""

    model_config = pydantic.ConfigDict(extra="forbid")
    n: int

    @pydantic.computed_field
    def double(self) -> int:
        return self.n * 2


class Values(pydantic.BaseModel):
    """Holds the values of an enum."""

    model_config = pydantic.ConfigDict(use_enum_values=True)
    colour: Colour
    colours: list[Colour] = []


class Strict(pydantic.BaseModel):
    """Takes a tuple, and no list for one."""

    model_config = pydantic.ConfigDict(strict=True)
    v: tuple[int, ...]
    id: uuid.UUID


class Cat(pydantic.BaseModel):
    """One of two."""

    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    """The other."""

    kind: Literal["dog"] = "dog"


class Pet(pydantic.BaseModel):
    """Has one of two."""

    pet: Cat | Dog = pydantic.Field(discriminator="kind")


class Note(msgspec.Struct):
    """A base class."""

    n: int


class LongNote(Note):
    """Has a field that consumers of notes do not get."""

    text: str = ""


@dataclasses.dataclass
class Init:
    """Needs what it does not keep."""

    n: int
    more: dataclasses.InitVar[int] = 0


class Paid(msgspec.Struct, tag=True):
    """One of two."""

    n: int


class Refunded(msgspec.Struct, tag=True):
    """The other."""

    n: int


def _struct(**fields: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a Struct with fields of these types, and its record with these values."""
    kind = msgspec.defstruct("Record", [(name, hint) for name, (hint, _) in fields.items()])
    return kind, kind(*(value for _, value in fields.values()))


def _of(hint: Any, value: Any) -> tuple[Any, Any]:
    return _struct(v=(hint, value))


_WITH_A_TIME: dict[str, Any] = {
    "dataclass": dataclasses.make_dataclass("Data", [("at", dt.datetime)]),
    "attrs class": attrs.make_class("Attrs", {"at": attrs.field(type=dt.datetime)}),
    "`NamedTuple`": NamedTuple("Named", [("at", dt.datetime)]),
}

CELLS: dict[str, tuple[Any, Any]] = {
    "`bool`, `int`, `float`, `str`, `bytes`": _struct(
        a=(bool, True), b=(int, 2**62), c=(float, 0.5), d=(str, "1"), e=(bytes, b"\0\xff")
    ),
    "`float` that is NaN": _of(float, float("nan")),
    "`datetime` with a zone": _of(dt.datetime, NOON),
    "`datetime` without a zone": _of(dt.datetime, NAIVE),
    "`Annotated[datetime, Meta(tz=False)]`": _of(Annotated[dt.datetime, msgspec.Meta(tz=False)], NAIVE),
    "`list[datetime]`, one of them without a zone": _of(list[dt.datetime], [NOON, NAIVE]),
    "`date`, `timedelta`, `UUID`": _struct(
        a=(dt.date, NOON.date()),
        b=(dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
        c=(uuid.UUID, uuid.UUID(int=1)),
    ),
    "`timedelta` of 300,000 years": _of(dt.timedelta, dt.timedelta(days=300_000 * 365)),
    "`Decimal`": _of(Decimal, Decimal("10.25")),
    "`Decimal` with 30 digits after its point": _of(Decimal, Decimal("1E-30")),
    "`Enum`": _of(Colour, Colour.RED),
    "`Flag`, two of them": _of(Perm, Perm.READ | Perm.WRITE),
    "`Literal`": _of(Literal["a", "b"], "a"),
    "`int \\| None` that is None": _struct(v=(int | None, None), n=(int, 1)),
    "`int \\| str` that is 1": _of(int | str, 1),
    "`int \\| str` that is `x`": _of(int | str, "x"),
    "`list`, `tuple`, `set`, `dict` of these": _struct(
        a=(list[int], [1]), b=(tuple[str, ...], ("x",)), c=(set[int], {1}), d=(dict[str, float], {"x": 0.5})
    ),
    "`list[int \\| str]`": _of(list[int | str], [1, "1"]),
    "`Any` that is 1": _of(Any, 1),
    "a number below its `Meta(ge=0)`": _of(Annotated[int, msgspec.Meta(ge=0)], -1),
    "a record in a record": _of(list[Visit], [Visit(NOON)]),
    "a record in a record, with a `datetime` without a zone": _of(list[Visit], [Visit(NAIVE)]),
    **{
        f"{name}{what}": (kind, kind(at))
        for name, kind in _WITH_A_TIME.items()
        for what, at in (("", NOON), (" with a `datetime` without a zone", NAIVE))
    },
    "`TypedDict`": (Typed, {"at": NOON}),
    "`TypedDict` with a `datetime` without a zone": (Typed, {"at": NAIVE}),
    "`TypedDict` with a key that it lacks": (Typed, {"at": NOON, "other": 1}),
    "pydantic model": (Model, Model(at=NOON)),
    "pydantic model with a `datetime` without a zone": (Model, Model(at=NAIVE)),
    "pydantic `alias`": (Alias, Alias(uid=1)),
    "pydantic `validation_alias` without `serialization_alias`": (
        OneWay,
        OneWay.model_validate({"uid": 1}),
    ),
    "pydantic `SecretStr`": (Secret, Secret(password=pydantic.SecretStr("x"))),
    'pydantic `extra="allow"`, with an extra': (Open, Open.model_validate({"n": 1, "other": 2})),
    "pydantic `exclude`": (Hidden, Hidden(n=1, password="x")),
    "pydantic serializer": (Masked, Masked(card="4111111111111111")),
    'pydantic `computed_field` with `extra="forbid"`': (Doubled, Doubled(n=1)),
    "pydantic `use_enum_values`": (Values, Values(colour=Colour.RED, colours=[Colour.RED])),
    "strict pydantic model with a `tuple` and a `UUID`": (Strict, Strict(v=(1,), id=uuid.UUID(int=1))),
    "pydantic field with a `discriminator`": (Pet, Pet(pet=Dog())),
    "an object of a subclass": (Note, LongNote(1, "x")),
    "a record in a record, of a subclass": _of(list[Note], [Note(1), LongNote(1, "x")]),
    "dataclass with an `InitVar`": (Init, Init(1)),
    "pydantic `RootModel`": (Root, Root({"a": 1})),
    "a union of tagged Structs": (Paid | Refunded, Refunded(1)),
}
"""Types and records, by what is said of them."""

KEPT, NO_LOG, BY_SEND, AT_IMPORT = "yes", "yes, no log", "**`send` refuses it**", "**import refuses it**"


def outcome(kind: Any, record: Any, codec: Literal["json", "msgpack", "fields", "arrow"]) -> str:
    """Return what becomes of a record, without a server."""
    try:
        spec = App("cells").stream("cells", kind, codec=codec).spec
    except ConfigurationError:
        return AT_IMPORT
    try:
        if codec == "arrow":
            TablePacker(spec, RoundRobin(0), 10**6).fields([record])
        else:
            spec.record.encoder(codec, validate=True)(record)
    except RecordError:
        return BY_SEND
    with suppress(ConfigurationError):
        spec.record.arrow_schema()
        return KEPT
    return NO_LOG


def table() -> str:
    """Return the table for docs/types.md."""
    rows = {
        name: tuple(outcome(kind, record, codec) for codec in CODECS)
        for name, (kind, record) in CELLS.items()
    }
    return merged(["the record has", *(f"`{codec}`" for codec in CODECS)], rows)
