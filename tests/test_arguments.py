"""Settings and arguments are checked by their types, by one table, before anything runs.

The table is made of annotations (``streamworker.core.rules``). Each cell is tried:
each setting and each argument, with each value that it does not take.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from enum import IntEnum
from typing import Any, cast

import msgspec
import pytest

from streamworker import App, Claim, ConfigurationError, Lease, Records, Retry, Settings
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.rules import ANY_NUMBER, CHECKED, NUMBER_MAX, kind_of
from streamworker.errors import InternalError
from streamworker.runtime.send.producer import Producer
from streamworker.settings import LIMITS
from streamworker.spark.source.connection import resolve

NOT_USERS = {"timer", "function", "resources"}


class Order(msgspec.Struct):
    customer: str


class Size(IntEnum):
    FIVE = 5


class Hostile:
    def __repr__(self) -> str:
        raise ValueError("no text")


NEVER: list[Any] = [float("nan"), float("inf"), 1.5, 2.0, b"2500", [], {}, Hostile(), "caf\ud83d" * 1_000]
"""What neither a number is, nor text that is short, nor a switch."""
NO_NUMBER = [*NEVER, True, "2500", Size.FIVE, -1, NUMBER_MAX + 1]
NO_TEXT = [each for each in NEVER if not isinstance(each, str)] + [5, True]
NO_SWITCH = [*NEVER, 0, 1, "yes", "1"]


def wrong_for(words: str) -> list[Any]:
    """Return values that a type does not take, by its words in the docs."""
    if " a " in f" {words}" and "number" not in words:
        return [5, 1.5, True]  # A mapping, a function, or what else a class tells.
    wrong = NO_NUMBER if "number" in words else NO_TEXT if "text" in words else NO_SWITCH
    if "number" in words:
        wrong = [*wrong, 0 if "from 1" in words else -1, NUMBER_MAX + 1]
        wrong.extend(int(most) + 1 for most in re.findall(r"to (\d+)(?!\*)\b", words))
    return wrong if "None" in words else [*wrong, None]


def cells(kinds: Any) -> Iterator[tuple[str, Any]]:
    for name, kind in kinds.items():
        if kind.words:
            yield from ((name, wrong) for wrong in wrong_for(kind.words))


def refused(make: Callable[..., object], name: str, wrong: Any) -> None:
    """Insist that a value is refused by name, in a message that is short and can be printed."""
    with pytest.raises(ConfigurationError) as caught:
        make(**{name: wrong})
    assert name in caught.value.message and "Use " in caught.value.remedy, caught.value
    assert len(str(caught.value)) < 2_000
    str(caught.value).encode()


@pytest.mark.parametrize(("kind", "prefix"), [(Settings, ""), (Claim, "claim_"), (Lease, "lease_")])
def test_a_setting_takes_its_type_and_nothing_else(kind: Any, prefix: str) -> None:
    """As an argument, where None leaves it out; and where settings are made by hand."""
    kinds = {each.name: kind_of(each.type, LIMITS.get(each.name, ANY_NUMBER)) for each in fields(kind)}
    tried = list(cells(kinds))
    assert {name for name, _ in tried} == kinds.keys() - {"coordination", "credential_provider"}
    for name, wrong in tried:
        refused(kind, name, wrong)
        if wrong is not None and kind is Settings and name != "redis_url":
            refused(lambda **given: App("shop", **given), name, wrong)


def _processor(**given: Any) -> object:
    def handle(order: Any) -> None: ...

    several = {"batch", "batch_bytes"} & given.keys()
    handle.__annotations__["order"] = list[Order] if several else Order
    app = App("shop")
    return app.processor(app.stream("orders", Order), **given)(handle)


def _pipeline(**given: Any) -> object:
    app = App("shop")

    @app.processor(app.stream("orders", Order))
    def handle(order: Order) -> Order:
        return order

    return app.pipeline(**{"processor": handle, **given})


def tick() -> None: ...


DECLARED: dict[str, Callable[..., object]] = {
    "App": lambda **given: App(**{"name": "shop", **given}),
    "Stream": lambda **given: App("shop").stream(**{"name": "orders", "record": Order, **given}),
    "Processor": _processor,
    "Pipeline": _pipeline,
    "Table": lambda **given: App("shop").table(**{"name": "totals", "value": int, **given}),
    "Worker": lambda **given: App("shop").worker(**given),
    "Timer": lambda **given: App("shop").cron(**{"spec": "0 6 * * mon", **given})(tick),
    "Retry": Retry,
    "send_table": lambda **given: Producer.send_table(cast(Any, None), None, **given),
    "records.take": lambda **given: Records(cast(Any, None)).take(**given),
}


@pytest.mark.parametrize("what", CHECKED)
def test_an_argument_takes_its_type_and_nothing_else(what: str) -> None:
    """It is refused by its name where it is declared."""
    tried = [(name, wrong) for name, wrong in cells(CHECKED[what]) if name not in NOT_USERS]
    assert tried
    for name, wrong in tried:
        refused(DECLARED[what], name, wrong)


NO_DURATION: Sequence[Any] = ([], {}, True, float("nan"), float("inf"), -1, 1e300, "soon", b"1 s")
NO_RETENTION: Sequence[Any] = (5, True, {}, [[]], object(), len, b"7 days")


@pytest.mark.parametrize(
    ("what", "name", "wrong"),
    [
        ("Processor", "within", NO_DURATION),
        ("Processor", "timeout", NO_DURATION),
        ("Stream", "id_window", NO_DURATION),
        ("Table", "ttl", NO_DURATION),
        ("Retry", "backoff", NO_DURATION),
        ("Retry", "backoff_max", NO_DURATION),
        ("Stream", "retention", NO_RETENTION),
        ("Processor", "log_retention", NO_RETENTION),
        ("App", "coordination", (5, [], {}, "none")),
    ],
)
def test_a_duration_a_retention_and_a_coordination_is_one(what: str, name: str, wrong: Sequence[Any]) -> None:
    """There is one parser of each."""
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"{name}(=| )"):
            DECLARED[what](**{name: value})


def test_what_is_declared_is_named() -> None:
    """By its name, or by the function's."""
    with pytest.raises(ConfigurationError, match=r"^Processor 'handle' has batch=125\.0\. Use a whole"):
        _processor(batch=1000 / 8)
    with pytest.raises(ConfigurationError, match=r"^Processor '{}' has batch=True\."):
        _processor(batch=True, name="{}")
    with pytest.raises(ConfigurationError, match=r"^App has name=None\. Use text\.$"):
        App(None)  # type: ignore[arg-type]


def test_a_checked_function_keeps_its_signature() -> None:
    """Editors and the docs show it."""
    assert list(inspect.signature(App.stream).parameters)[:3] == ["self", "name", "record"]
    assert App.stream.__doc__ is not None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("trim_intervall_ms", "trim_interval_ms"),
        ("Capacity", "capacity"),
        ("lease_max", "lease_max_ms"),
    ],
)
def test_a_misspelt_setting_is_told_the_nearest_name(given: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean '{meant}'"):
        Settings.from_env({}, coordination="lease", **{given: 5})
    with pytest.raises(ConfigurationError, match=r"help\(streamworker.Settings\)") as caught:
        App("shop", nothing_like_it=5)
    assert "mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CAPACITY", "0.5"),
        ("CAPACITY", ""),
        ("FETCH_COUNT", "nan"),
        ("ALLOW_PLAINTEXT", "2"),
        ("CLAIM_CYCLE_MS", "soon"),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_setting(name: str, text: str) -> None:
    assert Settings.from_env({"STREAMWORKER_CAPACITY": "1_0"}).capacity == 10
    assert Settings.from_env({"STREAMWORKER_CAPACITY": "1_0"}, capacity=20).capacity == 20
    assert Settings.from_env({"STREAMWORKER_ALLOW_PLAINTEXT": "Yes"}).allow_plaintext is True
    with pytest.raises(ConfigurationError, match=name):
        Settings.from_env({f"STREAMWORKER_{name}": text}, coordination="claim")
    with pytest.raises(ConfigurationError, match="capacity is 1001"):
        Settings.from_env({"STREAMWORKER_CAPACITY": "1001"})


@pytest.mark.parametrize("path", ["abc", "0x1", "-1", "1/2", "½"])
def test_a_path_that_is_no_number_is_refused(path: str) -> None:
    """It was taken for database 0; Spark's processes say the same."""
    for url in (f"redis://localhost/{path}", f"redis+cluster://localhost:1,localhost:2/{path}?db=0"):
        with pytest.raises(ConfigurationError, match="no number of a database"):
            App("shop", redis_url=url)
        with pytest.raises(ConfigurationError, match="no number of a database"):
            resolve("default", {"STREAMWORKER_REDIS_URL": url})
    for fine in (
        "redis://localhost",
        "redis://localhost/",
        "redis://localhost/3?db=4",
        "unix:///run/redis.sock",
    ):
        App("shop", redis_url=fine)
        assert resolve("default", {"STREAMWORKER_REDIS_URL": fine}) == fine


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0.5}, {"pid": -1}, {"host": 5}, {"joined_ms": 2**60}, {"state": "gone"}]
)
def test_no_document_is_written_that_its_workers_could_not_read(wrong: dict[str, Any]) -> None:
    """They would repair it several times a second, for ever."""
    member = Member("w1.a", "w1", "host", 1, 1)
    group = Membership.empty(4, "range").with_member(member)
    assert Membership.parse(replace(group, generation=7).document()).members == (member,)
    with pytest.raises(InternalError, match="generation"):
        replace(group, members=(msgspec.structs.replace(member, **wrong),)).body()
