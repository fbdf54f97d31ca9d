"""A record has one encoding: what would make two of it is refused, by field, before anything is sent."""

import dataclasses
import enum
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest

from streamworker import App
from streamworker.errors import ConfigurationError, RecordError
from streamworker.records import RecordType
from streamworker.records.statetables import TableForm
from tests.records.cells import Cat, Dog, Hidden, Init, LongNote, Masked, Note, Strict

T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    """Names no type."""

    v: T


class Pydantic(pydantic.BaseModel):
    """May be told to leave out what is empty."""

    n: int
    x: int = 0


def model(**namespace: Any) -> type[pydantic.BaseModel]:
    """Return a model with a field, and what else it has."""
    return type("Model", (Pydantic,), {"__module__": __name__} | namespace)


@pydantic.dataclasses.dataclass
class Data:
    """msgspec writes it, whatever pydantic is told."""

    password: str = pydantic.Field(default="", exclude=True)


class Outer(pydantic.BaseModel):
    """Has the field one level further in."""

    users: list[Hidden]


class Listed(pydantic.BaseModel):
    """Has the serializer within a type."""

    cards: dict[str, list[Annotated[str, pydantic.PlainSerializer(str.upper)]]]


REFUSED: dict[str, tuple[Any, str]] = {
    "exclude": (Hidden, "Field 'password' of Hidden is excluded"),
    "exclude in a dataclass": (Data, "Field 'password' of Data is excluded"),
    "exclude within a model": (Outer, "Field 'password' of Hidden is excluded"),
    "annotation": (Masked, "Field 'card' of Masked has a serializer"),
    "annotation within a type": (Listed, "Field 'cards' of Listed has a serializer"),
    "field_serializer": (
        model(two=pydantic.field_serializer("n", "x")(lambda self, value: value)),
        "Field 'n', 'x' of Model has a serializer",
    ),
    "model_serializer": (
        model(only=pydantic.model_serializer(mode="plain")(lambda self: {"n": self.n})),
        "Model has a model_serializer",
    ),
    "InitVar": (Init, "Init has the InitVar 'more'"),
    "generic Struct": (Box[int], "Declare a class like Box"),
    "discriminated union": (
        Annotated[Cat | Dog, pydantic.Field(discriminator="kind")],
        "union of msgspec.Structs with tags",
    ),
}


@pytest.mark.parametrize(("kind", "told"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("codec", ["json", "msgpack", "fields", "arrow"])
def test_what_only_some_codecs_would_obey_is_refused_at_import(kind: Any, told: str, codec: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        App("a").stream("s", kind, codec=codec)
    assert told in str(refused.value)


def test_a_row_and_a_table_have_the_same_rules() -> None:
    app = App("a")
    stream = app.stream("s", Note, partitions=1)

    async def users(note: Note) -> Hidden:
        return Hidden(n=note.n)

    with pytest.raises(ConfigurationError, match="'password' of Hidden is excluded"):
        app.processor(stream)(users)
    with pytest.raises(ConfigurationError, match="'password' of Hidden is excluded"):
        app.table("t", Hidden)
    with pytest.raises(
        ConfigurationError, match="Field 'v' of Strict is strict, and MessagePack has no tuple"
    ):
        app.table("t", Strict)


class Colour(enum.IntEnum):
    """A plain number is no member."""

    RED = 1


@dataclasses.dataclass
class Painted:
    """Does not check its values."""

    colour: Colour


def test_a_plain_value_for_an_enum_is_told_by_the_enum() -> None:
    with pytest.raises(RecordError, match="field 'colour' of Painted is the int 2, and no member of Colour"):
        RecordType.of(Painted).to_arrow([Painted(2)])  # type: ignore[arg-type]


class Usual(pydantic.BaseModel):
    """Its default is a member until it was sent: pydantic validates no defaults."""

    model_config = pydantic.ConfigDict(use_enum_values=True)
    colour: Colour = Colour.RED
    before: list[Colour] = []


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields"])
def test_the_values_of_enums_and_defaults_are_records_and_rows(codec: Any) -> None:
    record = Usual(before=[Colour.RED])
    assert RecordType.of(Usual).encoder(codec, validate=True)(record)
    assert RecordType.of(Usual).to_arrow([record]).to_pylist() == [{"colour": 1, "before": [1]}]
    wrong = Usual.model_construct(before=[2])
    with pytest.raises(RecordError, match="is the int 2; Colour has 1"):
        RecordType.of(Usual).to_arrow([wrong])


class Same(pydantic.BaseModel):
    """Takes all its records for one."""

    n: int
    _seen: int = 0

    @pydantic.field_validator("n")
    @classmethod
    def half(cls, n: int) -> int:
        return n // 2

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_send_compares_what_records_hold_whatever_they_call_equal() -> None:
    with pytest.raises(RecordError, match="Field 'n' of this Same is 4, and consumers would get 2"):
        RecordType.of(Same).encoder("json", validate=True)(Same(n=8))


class Thread(msgspec.Struct):
    """Holds records."""

    notes: dict[str, tuple[Note, ...]]


CUT = [
    (Note, LongNote(1, "x")),
    (Thread, Thread({"a": (Note(1), LongNote(2, "x"))})),
    (list[Note], [LongNote(1, "x")]),
]


@pytest.mark.parametrize(("kind", "value"), CUT)
def test_a_table_refuses_a_record_of_a_subclass(kind: Any, value: Any) -> None:
    with pytest.raises(RecordError, match="a LongNote, whose class is a subclass of the declared one"):
        TableForm("t", str, kind).body("k", value)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_many_records_at_once_have_the_same_rule(codec: Any) -> None:
    from streamworker.records.lists import make_list_encoder

    threads = [Thread({"a": (Note(n),)}) for n in range(5)]
    encode = make_list_encoder(RecordType.of(Thread), codec, validate=True, as_run=True)
    assert encode is not None and encode(threads) is not None
    assert encode([*threads, Thread({"a": (LongNote(1, "x"),)})]) is None, "the encoder of one says why"


def test_a_codec_of_the_program_may_know_subclasses() -> None:
    class Own:
        name = "own"

        def encode(self, record: Any) -> bytes:
            return type(record).__name__.encode()

        def decode(self, payload: bytes) -> Any:
            return Note(1)

    assert RecordType.of(Note).encoder(Own())(LongNote(1, "x")) == b"LongNote"
