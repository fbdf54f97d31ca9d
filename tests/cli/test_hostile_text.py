"""What others wrote reaches a terminal as text: nothing of it is obeyed, and no line is forged."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from streamworker import App
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.root import app as command_line
from streamworker.importing import resolve_stream
from streamworker.redisio.data.state import RAN
from streamworker.redisio.keys import GroupKeys, StreamKeys
from tests.cli.conftest import Invoke, OpenTerminal
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.raw import opened

SHOP = """
import logging
import msgspec
import structlog
from streamworker import App, DeadLetter, Halt

app = App("shop", heartbeat_interval_ms=200, founding_pause_ms=0)


class Order(msgspec.Struct):
    order_id: int
    customer: str
    amounts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"order of {self.customer}"


class Odd:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


orders = app.stream("orders", Order, key="customer", partitions=1, archive="LAKE")
words = app.table("words", dict[str, str])


@app.processor(orders, errors=Halt())
async def audit(order: Order) -> None:
    said = order.customer
    logging.getLogger("shop").warning("by a name %s", said)
    structlog.get_logger().warning("by " + said, word=said.split()[0], **{said: 1}, odd=Odd(said))
    raise ValueError(f"customer {order.customer} is unknown")


@app.processor(orders, errors=DeadLetter())
async def price(order: Order) -> None:
    raise ValueError(f"customer {order.customer} is unknown")


@price.timer(every="1 hour")
async def flush() -> None: ...


@app.processor(orders, tables=[words])
async def copy(order: Order) -> Order:
    words.set(order.customer, {order.customer: order.customer})
    return order
"""

FORGED = "forged: all is well"
HOSTILE = (
    "\x1b]0;title\x07\x1b[2J\x1b]52;c;aGk=\x07\x1b[38;5;199m\x9b8m\x90\x7f\u202edlrow\u2066\u2028"
    f"\r\n{FORGED}\n{FORGED}"
)
"""Sets the title, clears, fills the clipboard, colours, hides, turns around, and begins lines of its own."""
SEEN = "52;c;aGk="
"""A part of it that stays as it is: where this is shown, all of it was."""

SCHEMA = {"properties": {HOSTILE: {"type": HOSTILE}, "order_id": {"type": HOSTILE}}}
"""A record type of other workers; a type of which nothing is known breaks nothing."""

TRACEBACK = f"Traceback:\nrecord    {FORGED}\r\rfield     v = 1\n\n{HOSTILE}\nerror     none"
"""Its lines look like those of ``dead show``."""

OWN = re.compile(r"\r?\x1b\[(?:[0-9;]*m|\?25[lh]|\?1049[lh]|2K|\d*A|H)|\r(?=\n)")
"""What rich and structlog write themselves on a terminal; the text above has a colour that they never use."""


def check(shown: str) -> str:
    """Insist that nothing in this output would be obeyed but what is ours; return it as lines of text."""
    assert "\x1b[38;5;199m" not in shown, shown
    text = OWN.sub("", shown)
    obeyed = {char for char in text if not char.isprintable() and char != "\n"}
    assert not obeyed, f"{obeyed} in {text!r}"
    assert not [line for line in text.splitlines() if line.startswith(FORGED)], text
    return text


SOON = ["--wait", "1 second"]
"""The worker that would obey is dead."""

LOOKS = {
    "status": [["shop:app"], ["shop:app", "--json"]],
    "lag": [["shop:app"], ["shop:app", "--json"]],
    "size": [["shop:app", "--rate", "1"], ["shop:app", "--rate", "1", "--json"]],
    "history": [["shop:app"], ["shop:app", "--json"]],
    "top": [["shop:app", "--once"]],
    "wait": [["shop:app", "--timeout", "0 seconds"]],
    "health": [["livez", "--health-port", "1"]],
    "dead list": [["shop:price"], ["shop:price", "--json"], ["shop:price", "--by", "error"]],
    "dead export": [["shop:price"]],
    "dead show": [["shop:price", "LETTER"], ["shop:price", "LETTER", "--json"]],
    "doctor": [["shop:app"], ["shop:app", "--json"]],
    "repair": [["shop:app", "--dry-run"], ["shop:app", "--dry-run", "--json"]],
    "spark": [["shop:app", "--forget", "nobody"]],
    "send": [["shop:orders", "bad.jsonl"]],
    "acl": [["shop:app"]],
    "graph": [["shop:app"], ["shop:app", "--json"]],
    "tail": [["shop:orders"], ["shop:orders", "--json"], ["shop:orders", "--key", "HOSTILE"]],
    "peek": [["shop:copy", "0"]],
    "table list": [["shop:app"], ["shop:app", "--json"]],
    "table get": [["shop:words", "HOSTILE"], ["shop:words", "no HOSTILE"]],
    "table scan": [["shop:words"]],
    "table export": [["shop:words", "--to", "HOSTILE"]],
    "timers list": [["shop:app"], ["shop:app", "--json"]],
    "later list": [["shop:orders"], ["shop:orders", "--json"]],
    "archive status": [["shop:app"], ["shop:app", "--json"]],
    "archive check": [["shop:orders"], ["shop:orders", "--json"]],
    "archive expire": [["shop:orders", "--older-than", "1 day", "--dry-run"]],
    "erase": [
        ["shop:app", "--key", "HOSTILE", "--dry-run"],
        ["shop:app", "--key", "HOSTILE", "--dry-run", "--json"],
    ],
    "schema check": [["shop:app"], ["shop:app", "--json"]],
    "later cancel": [["shop:orders", "HOSTILE", "--key", "HOSTILE"], ["shop:orders", "no HOSTILE"]],
    "pause": [["shop:price", "--why", "HOSTILE", *SOON]],
    "resume": [["shop:price", "--why", "HOSTILE", *SOON]],
    "retry": [["shop:price", "--why", "HOSTILE", *SOON]],
    "timers run-now": [["shop:flush", *SOON]],
    "dead put": [["shop:audit", "RECORD", "--why", "HOSTILE", "--yes", *SOON]],
    "archive publish": [["shop:orders", "--delta"]],
    "archive adopt": [["shop:orders", "--yes"]],
    "reset": [["shop:price", "--to", "earliest", "--yes"]],
    "dead replay": [["shop:price", "LETTER"]],
    "dead drop": [["shop:price", "--all", "--yes"]],
}
"""What is run; those that change something come last."""

SHOWS_NONE = {
    *("send", "acl", "dead replay", "dead drop", "size"),
    *("table list", "later cancel", "wait", "health"),
}
SHOWS_IT = LOOKS.keys() - SHOWS_NONE
"""Commands in whose output the text must be found: else the walk would show nothing."""

ELSEWHERE = {
    "run": "test_a_worker_that_fails_on_such_a_record_logs_it_harmlessly",
    "dev": "its workers write as those of `run`, to the same terminal",
    "demo": "it shows its own records only",
    "exporter": "it prints its address only; prometheus-client escapes labels",
    "partitions": "it prints names of groups only, which no other program can choose",
    "web": "test_text_of_others_is_shown_as_text; it prints its address only",
}


def commands(group: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Return all commands that there are, such as ``dead list``."""
    for name, command in getattr(group, "commands", {}).items():
        inner = list(commands(command, (*path, name)))
        yield from inner or [" ".join((*path, name))]


@pytest.fixture
def failing(shop: Path, streamworker: Invoke) -> Path:
    """A folder with an app that fails on the record that waits for it."""
    (shop / "shop.py").write_text(SHOP.replace("LAKE", f"{shop}/lake"), "utf-8")
    (shop / "order.jsonl").write_text(json.dumps({"order_id": 1, "customer": HOSTILE}))
    streamworker.does("send", "shop:orders", "order.jsonl")
    return shop


@pytest.fixture
def hostile(failing: Path, spawn: SpawnWorker, redis_url: str) -> dict[str, str]:
    """A group whose every text is hostile, left behind by a worker that was killed; arguments for LOOKS."""
    bad = {"order_id": 1, "customer": "a", "amounts": {HOSTILE: "x"}}
    (failing / "bad.jsonl").write_text(json.dumps(bad))
    (failing / "lake" / "partition=0").mkdir(parents=True)
    (failing / "lake" / "partition=0" / f"\u202e{SEEN}").touch()
    (failing / "lake" / "_stream.json").write_text(
        json.dumps(dict.fromkeys(("app", "stream", "log", "codec", "id"), HOSTILE))
    )
    stream = resolve_stream("shop:orders")
    assert isinstance(stream.app, App)
    stream.sync.schedule(stream.spec.record.python_type(2, HOSTILE), id=HOSTILE, after=3_600)
    stream.app.close()
    worker = spawn("run", "shop:app", "--name", "w1", cwd=failing)
    price, audit, copy = (GroupKeys("shop", "orders", name) for name in ("price", "audit", "copy"))
    with opened(redis_url) as raw:
        wait_for(
            lambda: (
                raw.xlen(price.dead(0))
                and raw.hget(audit.lock(0), "state") == b"halted"
                and raw.xlen(copy.acked(0))
            ),
            "one processor has given it up, one has halted, and one has handled it",
        )
        worker.kill()
        letter, fields = raw.xrange(price.dead(0))[0]
        assert SEEN.encode() in fields[b"error"] and SEEN.encode() in fields[b"traceback"]
        fields |= {b"f." + HOSTILE.encode(): HOSTILE, b"error": HOSTILE, b"by": HOSTILE}
        fields[b"traceback"] = TRACEBACK
        letter = raw.xadd(price.dead(0), fields)
        for keys in (price, audit):
            raw.hset(keys.lock(0), mapping={"reason": HOSTILE, "state": "halted", "owner": HOSTILE})
            raw.hset(keys.readers, HOSTILE, '{"p":{},"log":{},"at":0}')
            raw.xadd(keys.control, {"kind": "repaired", "what": HOSTILE, "by": HOSTILE, "partitions": "0"})
            document = json.loads(raw.get(keys.members))
            document["members"][0] |= {"name": HOSTILE, "host": HOSTILE}
            raw.set(keys.members, json.dumps(document, separators=(",", ":")))
            # A live member is one whom `reset` names, and a dead one is what `repair` removes.
            member = document["members"][0]["id"]
            _, bar, rest = raw.hget(keys.beats, member).partition(b"|")
            at_ms = int(time.time() * 1000) + (600_000 if keys is price else -600_000)
            raw.hset(keys.beats, member, str(at_ms).encode() + bar + rest)
        shop = StreamKeys("shop", "orders")
        raw.xgroup_create(shop.events(0), HOSTILE, 0)
        lock = GroupKeys("shop", "orders", "archive").lock(0)
        raw.hset(lock, mapping={"reason": HOSTILE, "checkpoint": "0-0", "epoch": 1, "entries": 0})
        raw.hset(shop.meta, "schema", json.dumps(SCHEMA))
        raw.hset(price.state(0), f"{RAN}flush", json.dumps({"at": 0, "began": 0, "took": 0, "by": HOSTILE}))
        record = raw.xrange(shop.events(0))[0][0]
    return {
        "LETTER": f"0/{letter.decode()}",
        "RECORD": f"0/{record.decode()}",
        "HOSTILE": HOSTILE,
        "no HOSTILE": f"no {HOSTILE}",
    }


def test_each_command_is_walked() -> None:
    """A new command is added here, or says where else it is shown that it is harmless."""
    assert set(commands(typer.main.get_command(command_line))) == LOOKS.keys() | ELSEWHERE.keys()


@pytest.mark.slow
@pytest.mark.full("runs 20 commands")
def test_no_command_passes_on_to_a_pipe_what_a_terminal_obeys(
    hostile: dict[str, str], streamworker: Invoke
) -> None:
    """A pipe ends at a terminal, by way of ``less -R`` or ``tail``."""
    found = set()
    for command, runs in LOOKS.items():
        for arguments in runs:
            result = streamworker(*command.split(), *(hostile.get(each, each) for each in arguments))
            assert not isinstance(result.exception, Exception), (command, result.exception)
            text = check(result.stdout) + check(result.stderr)
            if "--json" in arguments:
                assert json.loads(result.stdout) is not None
            if SEEN in text and arguments is runs[0]:
                found.add(command)
    assert found == SHOWS_IT


@pytest.mark.full("runs 20 commands")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_command_writes_to_a_terminal_what_it_obeys(
    hostile: dict[str, str], terminal: OpenTerminal
) -> None:
    """Tables are drawn there, with colours and in columns; JSON is the same as on a pipe."""
    for command, (arguments, *_) in LOOKS.items():
        run = terminal(*command.split(), *(hostile.get(each, each) for each in arguments))
        run.wait(60)
        check(run.text)


def test_a_dead_letter_is_shown_as_it_was_written(hostile: dict[str, str], streamworker: Invoke) -> None:
    """JSON says exactly what it is. As text no field passes for another: each label stands once for each
    thing that there is, at the margin, and the traceback is indented.
    """
    shown = streamworker.tells("dead", "show", "shop:price", hostile["LETTER"])
    assert shown["error"] == shown["by"] == shown["fields"][HOSTILE] == HOSTILE
    assert shown["record"]["customer"] == HOSTILE
    lines = streamworker("dead", "show", "shop:price", hostile["LETTER"]).stdout.split("\n")
    assert lines.pop() == ""
    head = ["letter", "entry", "given", "error"]
    traced = slice(len(head), len(head) + TRACEBACK.count("\n") + 1)
    assert [line for line in lines[traced] if not line.startswith("    ") or not line.isprintable()] == []
    assert lines[traced][1].startswith(f"    record    {FORGED}")
    assert lines[traced][-1] == "    error     none"
    del lines[traced]
    assert [line.split(" ")[0] for line in lines] == [*head, *["field"] * 2, "record"]


def test_a_question_and_the_live_view_obey_nothing(
    hostile: dict[str, str], terminal: OpenTerminal, redis_url: str
) -> None:
    """One shows the record as it was sent, the other names, reasons and readers in their places.

    Without a yes nothing is changed.
    """
    run = terminal("dead", "put", "shop:audit", hostile["RECORD"])
    wait_for(lambda: "and no other. Go on? [y/N]" in run.read(), "it asks")
    run.press("n\r")
    assert run.wait() == ExitCode.FAILED
    assert "({'order_id': 1, 'customer': '" in check(run.text)
    with opened(redis_url) as raw:
        assert not raw.hexists(GroupKeys("shop", "orders", "audit").lock(0), "aside")
    view = terminal("top", "shop:price")
    wait_for(lambda: SEEN in view.frame, "the reason is shown")
    view.press("q")
    assert view.wait() == 0
    check(view.text)


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_worker_that_fails_on_such_a_record_logs_it_harmlessly(
    failing: Path, terminal: OpenTerminal, format: str
) -> None:
    """The key is in the line and in the traceback of the one that halts."""
    run = terminal("run", "shop:app", "--name", "w1", "--log-format", format)
    wait_for(lambda: "Traceback" in run.read() and run.text.count(SEEN) > 2, "both have failed")
    check(run.text.rpartition("\r\n")[0])


def test_a_module_that_cannot_be_imported_forges_no_line(
    shop: Path, streamworker: Invoke, terminal: OpenTerminal
) -> None:
    """Its traceback has lines, which are indented; so has that of what nobody expected."""
    (shop / "failing.py").write_text(f"raise ValueError({HOSTILE!r})\n", "utf-8")
    assert SEEN in check(streamworker("status", "failing:app").stderr)
    (shop / "odd.py").write_text(f"def __getattr__(name):\n    raise RuntimeError({HOSTILE!r})\n", "utf-8")
    run = terminal("status", "odd:app")
    assert run.wait() == 1
    assert SEEN in check(run.text)
    assert "RuntimeError" in run.text
