"""Text of others ends no worker: it is escaped and cut where it is described, or refused where it is a name.

One worker of a way meets all kinds of text, among records that are well.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, Policy, Retry
from streamworker.core.text import TEXT_MAX
from streamworker.errors import BackendUnavailable, ConfigurationError, RecordError
from streamworker.records.statetables import TableForm
from streamworker.redisio.group.locks import read_locks
from streamworker.redisio.group.requests import make_request
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.link import Endpoint, Link
from streamworker.runtime.run.failures import TRACE_MAX
from streamworker.runtime.worker import Worker
from streamworker.testing import local_worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


class Mute(str):
    """Text that cannot be read."""

    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__
    __getitem__ = __str__  # type: ignore[assignment]


TEXTS: dict[str, tuple[Any, str]] = {
    "half of a surrogate pair": ("caf\ud83d", r"caf\ud83d"),
    "NUL": ("a\0b", r"a\u0000b"),
    "other control characters": ("a\x1b[2J\r\nb", r"a\u001b[2J b"),
    "10 MB": ("x" * 10_000_000, "x" * 900),
    "an object whose `str()` raises": (Mute("mute"), "() of it raises an error, too"),
}
"""Each kind of text, and a part of what is stored in place of it."""
KINDS = list(TEXTS)
WELL = len(KINDS)
"""The record about which nothing is wrong; the others name a kind of text."""
KEYS = GroupKeys("shop", "items", "handle")


class Item(msgspec.Struct):
    kind: int


class Reversed:
    """A codec of somebody."""

    name = "reversed"

    def encode(self, record: Item) -> bytes:
        return msgspec.json.encode(record)

    def decode(self, payload: bytes) -> Item:
        item = msgspec.json.decode(payload, type=Item)
        if item.kind != WELL:
            raise ValueError(TEXTS[KINDS[item.kind]][0])
        return item


def raising(make: Callable[[Any], BaseException]) -> Callable[..., Any]:
    """Return a function that raises what is made of the text that its record names."""

    async def handle(item: Item) -> None:
        if item.kind != WELL:
            raise make(TEXTS[KINDS[item.kind]][0])

    return handle


def caused(text: Any) -> BaseException:
    error = ValueError("outer")
    error.__cause__ = ValueError(text)
    with suppress(TypeError):
        error.add_note(text)
    return error


async def by_context(item: Item, ctx: Context) -> None:
    if item.kind != WELL:
        ctx.dead_letter(item, TEXTS[KINDS[item.kind]][0])


async def returned(item: Item) -> Item:
    return item if item.kind == WELL else TEXTS[KINDS[item.kind]][0]


async def nothing(_: Item) -> None: ...


async def state(item: Item, ctx: Context) -> None:
    ctx.state[TEXTS[KINDS[item.kind]][0] if item.kind != WELL else "well"] = 1


async def table(item: Item, ctx: Context) -> None:
    TableForm("words", str, int).field(TEXTS[KINDS[item.kind]][0] if item.kind != WELL else "well")


WAYS: dict[str, tuple[Callable[..., Any], Policy | None]] = {
    "an exception, under `DeadLetter()`": (raising(ValueError), DeadLetter()),
    "a cause and a note of an exception": (raising(caused), DeadLetter()),
    "`raise DeadLetter(text)`": (raising(DeadLetter), None),
    "`ctx.dead_letter(record, text)`": (by_context, None),
    "a codec of your own": (nothing, None),
    "a value of the wrong type that is returned": (returned, DeadLetter()),
}
"""What a function does with the text, and its policy."""
HALTED: dict[str, tuple[Callable[..., Any], Policy | None]] = {
    "an exception, under `Halt()`": (raising(ValueError), Halt()),
    "an exception, under `Retry()`": (raising(ValueError), Retry(backoff=30)),
    "`raise Halt(text)`": (raising(Halt), None),
}
ELSEWHERE = {
    "a cause and a note of an exception": "ValueError: outer",  # The text is in the traceback.
    "a value of the wrong type that is returned": "forwarded a ",  # Its repr() follows.
}


def check(text: object, expected: str, most: int = 2 * TEXT_MAX) -> None:
    """Insist that a text can be stored and printed, says what is expected, and is short."""
    assert isinstance(text, str)
    text.encode()
    assert len(text) < most and text.isprintable()
    assert expected in text, (text[:200], expected)


def declared(way: str, function: Callable[..., Any], policy: Policy | None, partitions: int = 1) -> App:
    app = App("shop")
    codec: Any = Reversed() if way == "a codec of your own" else "json"
    stream = app.stream("items", Item, partitions=partitions, codec=codec)
    output = Item if function is returned else None
    app.processor(stream, name="handle", errors=policy, output=output)(function)
    return app


async def send(app: App, kinds: Iterable[int]) -> None:
    for number in kinds:
        await app.registry.streams["items"].send(Item(number))


@pytest.mark.parametrize("way", WAYS)
async def test_each_kind_of_text_follows_the_policy_and_is_stored_with_escapes(way: str) -> None:
    """One worker handles them all, and the record behind them."""
    app = declared(way, *WAYS[way])
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await send(app, [*range(WELL), WELL])
            await worker.until_drained()
            letters = await worker.dead_letters("handle")
    said = [log for log in logs if log["event"] == "record_dead"]
    for kind, log, letter in zip(KINDS, said, letters, strict=True):
        check(log["error"], ELSEWHERE.get(way, TEXTS[kind][1]))
        assert letter.error == log["error"]
        letter.traceback.encode()
        assert len(letter.traceback) <= TRACE_MAX
        if "cause" in way and kind == KINDS[0]:
            assert letter.traceback.count(TEXTS[kind][1]) == 2
    for log in logs:
        log.get("exception", "").encode()
        assert len(log.get("exception", "")) < TRACE_MAX + 100
    assert not [log for log in logs if log["event"] in ("runner_failed", "commit_refused")]


@pytest.mark.parametrize("way", HALTED)
async def test_each_kind_of_text_is_in_the_reason_of_a_lock(way: str) -> None:
    """Each stands in a partition of its own."""
    app = declared(way, *HALTED[way], partitions=WELL)
    async with local_worker(app) as worker:
        await send(app, range(WELL))  # In turn, since they have no key.
        shown = await worker.until(
            lambda now: all(view.reason for view in now.processors["handle"].partitions)
        )
    views = shown.processors["handle"].partitions
    assert {view.state for view in views} == {"retrying" if "Retry" in way else "halted"}
    for kind in KINDS:  # The stream has no key, so that each is in a partition of its own.
        [reason] = [view.reason for view in views if TEXTS[kind][1] in view.reason]
        check(reason, TEXTS[kind][1])


async def test_the_reason_of_a_declared_policy() -> None:
    """It stands behind the error."""
    app = App("shop")
    items = app.stream("items", Item, partitions=1)
    for number, kind in enumerate(KINDS):
        function = raising(lambda _: ValueError("bad"))
        app.processor(items, name=f"handle{number}", errors=DeadLetter(TEXTS[kind][0]))(function)
    async with local_worker(app) as worker:
        await send(app, [0])
        await worker.until_drained()
        for number, kind in enumerate(KINDS):
            [letter] = await worker.dead_letters(f"handle{number}")
            check(letter.error, TEXTS[kind][1])


async def test_a_timer_that_fails() -> None:
    """Its partition shows why, and goes on with its records."""
    app = declared("", nothing, None)

    def failing(kind: str, name: str) -> Callable[[], Any]:
        async def sweep() -> None:
            raise ValueError(TEXTS[kind][0])

        sweep.__name__ = name
        return sweep

    names = {f"sweep{number}": kind for number, kind in enumerate(KINDS)}
    for name, kind in names.items():
        app.timer(every=0.1)(failing(kind, name))
    failed: dict[str, str] = {}

    def all_failed() -> bool:
        failed.update({log["timer"]: log["error"] for log in logs if log["event"] == "timer_failed"})
        return failed.keys() == names.keys()

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await wait_for_async(all_failed, "the timers have failed")
            await send(app, [WELL])
            await worker.until_drained()
    for name, kind in names.items():
        check(failed[name], TEXTS[kind][1])


async def test_what_an_operator_says() -> None:
    """It is in the lock, as the worker obeys it."""
    app = declared("", nothing, None, partitions=WELL)
    async with local_worker(app) as worker:
        for partition, kind in enumerate(KINDS):
            text = TEXTS[kind][0]
            await make_request(worker._backend, KEYS, [partition], "pause", who=text, why=text)

        async def paused() -> list[Any]:
            found = await read_locks(worker._backend, KEYS, range(WELL))
            pauses = [getattr(found.get(partition), "pause", None) for partition in range(WELL)]
            return pauses if all(pauses) else []

        pauses = await wait_for_async(paused, "the pauses stand in the locks")
    for kind, pause in zip(KINDS, pauses, strict=True):
        for said in (pause.why, pause.by):
            check(said, TEXTS[kind][1][:400])


async def test_the_name_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the document of the members, which is JSON."""
    monkeypatch.setattr("socket.gethostname", lambda: HALF)
    async with local_worker(declared("", nothing, None)) as worker:
        now = await worker.until(lambda now: bool(now.processors["handle"].members))
    check(now.processors["handle"].members[0].host, TEXTS[KINDS[0]][1])


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_credential_provider_raises(kind: str) -> None:
    """It is an error of the connection, which is tried again."""

    class Broken:
        def get_credentials(self) -> tuple[str]:
            raise ValueError(TEXTS[kind][0])

    endpoint = Endpoint("redis://localhost:1", "test")
    endpoint.credentials = Broken()
    with pytest.raises(BackendUnavailable) as raised:
        await endpoint._asked_for(endpoint.credentials)
    check(str(raised.value), TEXTS[kind][1])


class Word(msgspec.Struct):
    word: str


# -- names ---------------------------------------------------------------------------------------

HALF = TEXTS[KINDS[0]][0]


def test_the_names_of_things() -> None:
    """They are parts of keys, and refused where they are declared."""
    app = App("shop")
    items = app.stream("items", Item)
    for declare in (
        lambda: App(HALF),
        lambda: app.stream(HALF, Item),
        lambda: app.table(HALF, int),
        lambda: app.processor(items, name=HALF)(nothing),
        lambda: Worker(app, name=HALF),
        lambda: Worker(app, static_id=HALF),
    ):
        with pytest.raises(ConfigurationError, match=r"name 'caf\\ud83d'|The static id name"):
            declare()


async def test_a_host_that_no_dns_can_have_is_one_that_cannot_be_reached() -> None:
    """Sentinels and Clusters name hosts, too."""
    for host in (HALF, "a\0b", "a" * 64, "a..b"):
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            await Link(Endpoint("redis://localhost:1", "test").at(host, 1)).ready()


@pytest.mark.parametrize("function", [state, table])
async def test_a_key_that_utf_8_cannot_hold_is_an_error_of_its_record(function: Callable[..., Any]) -> None:
    """It would be found again under another name."""
    app = declared("", function, DeadLetter())
    async with local_worker(app) as worker:
        await send(app, [0, WELL])
        await worker.until_drained()
        [letter] = await worker.dead_letters("handle")
    check(letter.error, r"'caf\ud83d'")


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.registry.streams["words"].send(Word(HALF)),
        lambda app: app.registry.streams["words"].send(Word("a"), headers={HALF: "a"}),
        lambda app: app.registry.streams["words"].send(Word("a"), headers={"a": HALF}),
        lambda app: app.registry.streams["words"].send(Word("a"), id=HALF),
        lambda app: app.registry.streams["words"].schedule(Word("a"), id=HALF, after=1),
    ],
)
async def test_names_of_what_is_sent(use: Callable[[App], Any]) -> None:
    """The sender is told."""
    app = App("shop")
    app.stream("words", Word, key="word")
    app.processor(app.registry.streams["words"], name="handle")(lambda word: None)
    async with local_worker(app):
        with pytest.raises(RecordError):
            await use(app)
