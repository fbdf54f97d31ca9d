"""What the errors of wrong declarations and wrong calls say, word for word, and what they tell to do."""

import datetime as dt
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from streamworker import App, Retry, Skip
from streamworker.core.data.placement import canonical_key
from streamworker.core.policies import Policies
from streamworker.errors import DecodeError, StreamworkerError
from streamworker.records import RecordType
from streamworker.runtime.worker import run_worker
from streamworker.spark.source.options import parse_options


class Order(msgspec.Struct):
    """A record whose second field may be missing, and is a text then."""

    number: int
    note: str | None = "none"


class Unresolved(msgspec.Struct):
    """A record with a type that is nowhere."""

    number: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


APP = App("shop")
ORDERS: Any = APP.stream("orders", Order, key="number")
COLUMNS = APP.stream("columns", Order, codec="arrow")
TOTALS = APP.table("totals", int, key=int)


@APP.processor(ORDERS, tables=[TOTALS], forward=False)
async def sum_up(batch: list[Order]) -> None:
    """Own the table."""


async def named_nowhere(order: Order, ctx: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Ask for what is nowhere."""


async def made_for_a_call() -> AsyncIterator[int]:
    """Live for as long as a call, if it could."""
    yield 1


ONE_STREAM = (
    "@app.processor reads one stream, and was given several. Send records of several types into one stream, "
    "or let a processor of each stream send into= a third (docs: recipes/join)."
)

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a processor without its stream": (
        lambda: APP.processor(named_nowhere),  # type: ignore[call-overload]
        "@app.processor was used without a stream. Write @app.processor(orders).",
    ),
    "an option that a policy has": (
        lambda: APP.processor(ORDERS, retries=3),  # type: ignore[call-overload]
        (
            "@app.processor has no option 'retries'. Write errors=Retry(attempts=3). "
            "`help(streamworker.App.processor)` lists them."
        ),
    ),
    "an option of another library": (
        lambda: APP.processor(ORDERS, batch_size=10),  # type: ignore[call-overload]
        (
            "@app.processor has no option 'batch_size'. Did you mean 'batch'? "
            "`help(streamworker.App.processor)` lists them."
        ),
    ),
    "an option that no processor has": (
        lambda: APP.processor(ORDERS, priority=3),  # type: ignore[call-overload]
        (
            "@app.processor has no option 'priority'. Send what is urgent to a stream of its own "
            "(docs: recipes/noisy-tenant). `help(streamworker.App.processor)` lists them."
        ),
    ),
    "two streams": (lambda: APP.processor(ORDERS, COLUMNS), ONE_STREAM),  # type: ignore[call-overload]
    "a list of streams": (lambda: APP.processor([ORDERS, COLUMNS]), ONE_STREAM),  # type: ignore[call-overload]
    "a stream of another app": (
        lambda: App("mail").processor(ORDERS),
        (
            "@app.processor of app 'mail' was given stream 'orders' of app 'shop'. Declare it with the app "
            "of its stream: services share an app, and each runs its own processors "
            "(docs: recipes/share-a-stream)."
        ),
    ),
    "an option that is misspelt": (
        lambda: APP.processor(ORDERS, time_out=3),  # type: ignore[call-overload]
        (
            "@app.processor has no option 'time_out'. Did you mean 'timeout'? "
            "`help(streamworker.App.processor)` lists them."
        ),
    ),
    "an annotation that is nowhere": (
        lambda: APP.processor(ORDERS)(named_nowhere),
        (
            "Processor 'named_nowhere' has an annotation that names nothing: name 'Nowhere' is not defined. "
            "Define or import the type at the top of the module."
        ),
    ),
    "no attempts": (
        lambda: Retry(attempts=0),
        "Retry has attempts=0. Use a whole number from 1 to 10**12, or None.",
    ),
    "a policy after attempts without end": (
        lambda: Retry(then=Skip()),
        (
            "Retry has then=Skip() and no attempts=: it never gives up. Say after how many calls: "
            "Retry(attempts=5, then=DeadLetter())."
        ),
    ),
    "attempts after attempts": (
        lambda: Retry(attempts=2, then=Retry()),
        "Retry has then=Retry(). Use DeadLetter(), Skip() or Halt().",
    ),
    "a policy for a value": (
        lambda: Policies({404: Skip()}),  # type: ignore[dict-item]
        "errors= has the key 404. Use types of exceptions: {TimeoutError: Retry()}.",
    ),
    "a policy for what is no error of a coroutine": (
        lambda: Policies({StopAsyncIteration: Skip()}),
        (
            "errors= has the key <class 'StopAsyncIteration'>, which reaches no policy. "
            "Name RuntimeError: a worker makes one of what no coroutine can raise."
        ),
    ),
    "a policy that is none": (
        lambda: Policies({KeyError: "skip"}),  # type: ignore[dict-item]
        "errors= has 'skip' for KeyError. Use Retry(), DeadLetter(), Skip() or Halt().",
    ),
    "attempts at what never heals": (
        lambda: Policies({DecodeError: Retry()}),
        (
            "errors= retries DecodeError, and an entry that holds no record never will. "
            "Use DeadLetter(), Skip() or Halt() for it."
        ),
    ),
    "policies that are none": (
        lambda: Policies("skip"),  # type: ignore[arg-type]
        (
            "errors='skip' is no policy. "
            "Use Retry(), DeadLetter(), Skip() or Halt(), or {TimeoutError: Retry()}."
        ),
    ),
    "a resource that lives for a call": (
        lambda: APP.resource(each="call")(made_for_a_call),  # type: ignore[call-overload]
        "Resource 'made_for_a_call' has each='call'. Use one of: worker, partition.",
    ),
    "a field of a type that is nowhere": (
        lambda: RecordType.of(Unresolved).arrow_schema(),
        (
            "A type hint of Unresolved cannot be resolved: name 'Nowhere' is not defined. "
            "Define the types of its fields at module level, before they are used."
        ),
    ),
    "a type that only type checkers import": (
        lambda: RecordType.of(Unresolved).decoder("json"),
        (
            "Records of type Unresolved cannot be decoded: NameError: name 'Nowhere' is not defined. Define "
            "or import that type at the top of the module, not under TYPE_CHECKING alone."
        ),
    ),
    "None where a missing field is a text": (
        lambda: RecordType.of(Order).encoder("fields")(Order(1, None)),
        (
            "Field 'note' of Order is None, and a missing field would be read as its default. "
            'Make None its default, or declare the stream with codec="json".'
        ),
    ),
    "an async key": (
        lambda: APP.stream("keys", Order, key=named_nowhere),  # type: ignore[arg-type]
        "The key function of Order is async. Use a plain function.",
    ),
    "a key outside the calendar": (
        lambda: canonical_key(dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))),
        (
            "The key 0001-01-01T00:00:00+01:00 lies outside the years 1 to 9999 in UTC. "
            "Use a time that UTC can hold."
        ),
    ),
    "an app that does nothing": (
        lambda: run_worker(App("idle")),
        "App 'idle' has no processors and no timers. Declare one with @app.processor(stream).",
    ),
    "more readers at least than at most": (
        lambda: parse_options(
            {"app": "shop", "stream": "s", "processor": "p", "minPartitions": "4", "maxPartitions": "2"}
        ),
        "Option minPartitions (4) is above maxPartitions (2). Leave one of them out.",
    ),
    "a partition that the table has not": (
        lambda: anyio.run(partial(TOTALS.count, partition=99)),
        "Table 'totals' has no partition 99. Its partitions are 0 to 7.",
    ),
    "an option that is misspelled": (
        lambda: parse_options({"app": "shop", "procesor": "p"}),
        "Source streamworker has no option 'procesor'. Did you mean processor?",
    ),
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_refused_with_what_is_wrong_and_what_to_do(use: str) -> None:
    """Each text is compared as a whole."""
    make, text = WRONG[use]
    with pytest.raises(StreamworkerError) as error:
        make()
    assert str(error.value) == text
