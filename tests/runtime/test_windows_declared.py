"""A declaration of windows that cannot be meant is refused where it is written, with what to write."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context, Window
from streamworker.testing import local_worker
from tests.runtime.windowed import Hourly, Order, Shop, add, at


class Dated(msgspec.Struct):
    customer: str
    day: str


async def asynchronous(total: Hourly | None, order: Order, window: Window) -> Any: ...
def silent(total: Hourly | None, order: Order, window: Window): ...  # type: ignore[no-untyped-def]  # noqa: ANN201
def none(total: Hourly | None, order: Order, window: Window) -> None: ...
def two(total: Hourly | None, order: Order) -> Any: ...
def four(total: Hourly | None, order: Order, window: Window, ctx: Context) -> Hourly:
    raise NotImplementedError


def maybe_none(total: Hourly | None, order: Order, window: Window) -> Hourly | None: ...
def never_first(total: Hourly, order: Order, window: Window) -> Hourly:
    raise NotImplementedError


def of_others(total: Hourly | None, order: Dated, window: Window) -> Hourly:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"every": "10 minutes", "step": "3 minutes"},
            "every='10 minutes' is no multiple of step='3 minutes'",
        ),
        ({"every": "1 month", "step": "1 day"}, "every='1 month' is in months, and step='1 day' in days"),
        (
            {"every": "1 day", "step": "1 hour", "tz": "Europe/Paris"},
            "Days of a zone step by days and weeks, months by months and years",
        ),
        ({"every": "1 day", "step": "7 hours"}, "every='1 day' is no multiple of step='7 hours'"),
        ({"aheed": "1 minute"}, "has no option 'aheed'. Did you mean 'ahead'?"),
        ({"concurrency": 3}, "Function 'per_hour' has no option 'concurrency'"),
        (
            {"every": "2 hours", "step": "1 minute"},
            "is 120 times step='1 minute': each record is in that many",
        ),
        ({"tz": "Europe/Paris"}, "tz='Europe/Paris' is for days, weeks and months, and every='1 hour'"),
        ({"every": "1 day", "tz": "Europe/Pari"}, "tz='Europe/Pari' is no time zone"),
        ({"every": "1 day", "tz": "../etc/passwd"}, "tz='../etc/passwd' is no time zone"),
        ({"every": "0 seconds"}, "every='0 seconds' is too short"),
        ({"every": "25 months"}, "every='25 months' is too long. Use at most 2 years"),
        ({"every": "800 days"}, "every='800 days' is too long. Use at most 2 years"),
        ({"every": "often"}, "every='often' is no duration"),
        ({"late": "-1 second"}, "late='-1 second' is no duration"),
        ({"by": "amount"}, "Function 'per_hour' has by='amount', which is int"),
        ({"by": "when"}, "has by='when', which is no field of Order"),
        ({"by": "meta.at"}, "or give a function: by=lambda record: record.meta.at"),
        ({"by": 7}, "has by=7"),
        ({"emit": "often"}, "Function 'per_hour' has emit='often'"),
        ({"idle": "maybe"}, "Function 'per_hour' has idle='maybe'"),
        ({"emit": "changes", "into": None}, 'has emit="changes" without into='),
        ({"stream": {"key": None}}, "has windows, and stream 'orders' has no key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_that_does_not_fit_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Shop(**options)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (asynchronous, "makes no total"),
        (two, "makes no total"),
        (four, "makes no total"),
        (silent, "does not say what it returns"),
        (none, "does not say what it returns"),
        (maybe_none, "may return None. Annotate the type of its totals: there is always one"),
        (never_first, "takes `total: Hourly`. Annotate them as `Hourly | None, Order, Window`"),
        (of_others, "takes `order: Dated`. Annotate them as `Hourly | None, Order, Window`"),
    ],
)
def test_a_function_that_does_not_fit_is_named(function: Callable[..., Any], text: str) -> None:
    shop = Shop()
    with pytest.raises(ConfigurationError) as refused:
        shop.app.window(shop.orders, every="1 hour", by="placed_at", late="0s", into=shop.hourly)(function)
    assert f"Function '{function.__name__}'" in str(refused.value)
    assert text in str(refused.value)


def test_a_total_goes_to_a_stream_of_its_type() -> None:
    with pytest.raises(ConfigurationError, match="returns Hourly, and into= takes Order"):
        Shop(into=Shop().late)


def test_late_records_do_not_come_back() -> None:
    """They would be late again, for ever."""
    shop = Shop()
    with pytest.raises(ConfigurationError, match="has late_into='orders', which it reads"):
        shop.app.window(
            shop.orders, every="1 day", by="placed_at", late="0s", late_into=shop.orders, name="per_day"
        )(add)


def test_a_window_is_told_by_into_or_by_a_function_and_by_one_function() -> None:
    async def tell(total: Hourly, window: Window) -> Hourly:
        raise NotImplementedError

    async def note(total: Hourly, window: Window) -> None: ...

    with pytest.raises(ConfigurationError, match="is called when a window of 'per_hour' closes"):
        Shop().per_hour.closed()(note)
    shop = Shop(into=None)
    shop.per_hour.closed(into=shop.hourly)(tell)
    with pytest.raises(ConfigurationError, match="is called when a window of 'per_hour' closes"):
        shop.per_hour.closed()(note)


def test_late_records_go_to_a_stream_of_the_same_records() -> None:
    shop = Shop()
    with pytest.raises(ConfigurationError, match="'hourly', which holds Hourly"):
        shop.app.window(  # type: ignore[misc]
            shop.orders, every="1 day", by="placed_at", late="0s", late_into=shop.hourly, name="per_day"
        )(add)


def test_a_function_at_the_close_takes_a_total_and_its_window_and_its_rows_go_somewhere() -> None:
    def swapped(window: Window, total: Hourly) -> None: ...
    def lost(total: Hourly, window: Window) -> Hourly:
        raise NotImplementedError

    with pytest.raises(ConfigurationError, match="Window`, and windows of 'per_hour' have Hourly"):
        Shop(into=None).per_hour.closed()(swapped)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="returns Hourly, which goes nowhere"):
        Shop(into=None).per_hour.closed()(lost)


@pytest.mark.anyio
async def test_sessions_without_a_merge_start_no_worker() -> None:
    """Nothing says before whether it comes: it is declared below the function."""
    shop = Shop()
    app = shop.app

    @app.session(shop.orders, gap="30 minutes", by="placed_at", late="0 seconds")
    def visits(total: Hourly | None, order: Order, window: Window) -> Hourly:
        return add(total, order, window)

    with pytest.raises(ConfigurationError, match=r"Sessions 'visits' have no function .*@visits\.merge"):
        async with local_worker(app):
            raise AssertionError
    async with local_worker(app, processors=["per_hour"]):
        pass

    with pytest.raises(ConfigurationError, match="takes `one: int`, and sessions of 'visits' have Hourly"):

        @visits.merge  # type: ignore[arg-type]
        def numbers(one: int, other: int) -> int:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="merges no two totals"):

        @visits.merge  # type: ignore[arg-type]
        def one(total: Hourly) -> Hourly:
            raise NotImplementedError


def test_windows_have_a_name_of_their_own() -> None:
    """Among processors, and among tables."""
    shop = Shop()
    kind: dict[str, Any] = {"every": "1 day", "by": "placed_at", "late": "0s"}
    with pytest.raises(ConfigurationError, match="per_hour"):
        shop.app.window(shop.orders, name="per_hour", **kind)(add)
    shop.app.table("per_day", int)
    with pytest.raises(ConfigurationError, match="per_day"):
        shop.app.window(shop.orders, name="per_day", **kind)(add)


def test_windows_are_of_the_apps_own_streams() -> None:
    other = App("other").stream("orders", Order, key="customer")
    with pytest.raises(ConfigurationError, match="has windows of stream 'orders' of app 'other'"):
        Shop().app.window(other, every="1 day", by="placed_at", late="0s", name="per_day")(add)


def test_the_function_is_called_as_any_other() -> None:
    """A test of the fold needs neither a worker nor a server."""
    start, end = at("10:00"), at("11:00")
    total = Shop().per_hour(None, Order("ann", start, 5), Window(start, end))
    assert total == Hourly("ann", start, end, 5)
