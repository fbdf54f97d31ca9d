"""Functions at the ends of values, declared: what is refused, and what type checkers find."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context, Records, Stream, Table
from streamworker.declaring.processors import Processor


class Seen(msgspec.Struct):
    user: str


class Visit(msgspec.Struct):
    user: str


class Site:
    """An app with a table, and processors that do and do not write it."""

    def __init__(self) -> None:
        self.app = App("visits", redis_url="redis://localhost:1/0")
        self.seen: Stream[Seen] = self.app.stream("seen", Seen, key="user")
        self.visits: Table[str, Visit] = self.app.table("visits", Visit, ttl="30 minutes")
        self.hours: Table[Any, int] = self.app.table("hours", int, key=("user", "hour"))

        @self.app.processor(self.seen, tables=[self.visits, self.hours])
        async def follow(seen: Seen) -> None: ...

        @self.app.processor(self.seen)
        async def watch(seen: Seen) -> None: ...

        self.follow: Processor[Any, Any] = follow
        self.watch: Processor[Any, Any] = watch


async def gone(user: str, visit: Visit) -> None: ...
async def one_argument(user: str) -> None: ...
async def other_key(user: int, visit: Visit) -> None: ...
async def other_value(user: str, visit: Seen) -> None: ...
async def by_name(user: str, *, visit: Visit) -> None: ...
async def unknown(user: str, visit: Visit, wind: float) -> None: ...
async def a_row(user: str, visit: Visit) -> Visit: ...  # type: ignore[empty-body]
async def other_row(user: str, visit: Visit) -> int: ...  # type: ignore[empty-body]


def declare(site: Site, function: Callable[..., Any], **given: Any) -> Any:
    return site.follow.expired(given.pop("table", site.visits), **given)(function)


@pytest.mark.parametrize(
    ("function", "given", "told"),
    [
        (one_argument, {}, "does not take a key and its value"),
        (by_name, {}, "does not take a key and its value"),
        (other_key, {}, "takes `user: int`, and table 'visits' has str there"),
        (other_value, {}, "takes `visit: Seen`, and table 'visits' has Visit there"),
        (unknown, {}, "wind"),
        (other_row, {"into": "seen"}, "returns int"),
        (3, {}, "function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_cannot_be_called_is_refused_where_it_is_declared(
    function: Callable[..., Any], given: dict[str, Any], told: str
) -> None:
    site = Site()
    streams = {"seen": site.seen}
    with pytest.raises(ConfigurationError, match=told):
        declare(site, function, **{name: streams[stream] for name, stream in given.items()})


def test_only_a_processor_that_writes_the_table_has_functions_at_its_ends() -> None:
    """One for each table, and none for what has no moment between two batches."""
    site = Site()
    with pytest.raises(ConfigurationError, match=r"no table of processor 'watch'.*none"):
        site.watch.expired(site.visits)(gone)
    declare(site, gone)
    with pytest.raises(ConfigurationError, match="second function at the ends of table 'visits'"):
        declare(site, a_row, into=site.app.stream("ended", Visit, key="user"))

    @site.follow.expired(site.hours)
    async def closed(hour: tuple[str, int], count: int, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="closed"):

        @site.follow.timer(every="1 minute", into=None)
        async def closed() -> None: ...

    assert [each.name for each in site.follow.spec.expiries] == ["gone", "closed"]
    assert all(its.is_called for its in site.follow.spec.lifetimes.values())


def test_a_processor_of_a_stream_of_records_has_no_ends() -> None:
    app = App("visits", redis_url="redis://localhost:1/0")
    visits = app.table("visits", Visit)

    @app.processor(app.stream("seen", Seen, key="user"), tables=[visits])
    async def follow(records: Records[Seen]) -> None: ...

    with pytest.raises(ConfigurationError, match="takes Records"):
        follow.expired(visits)(gone)


PROGRAM = """\
import msgspec

from streamworker import App, Context


class Seen(msgspec.Struct):
    user: str


class Visit(msgspec.Struct):
    user: str


class Mail(msgspec.Struct):
    user: str


app = App("visits")
seen = app.stream("seen", Seen, key="user")
mails = app.stream("mails", Mail, key="user")
visits = app.table("visits", Visit, ttl="30 minutes")


@app.processor(seen, tables=[visits])
async def follow(seen: Seen) -> None:
    visits.set(seen.user, Visit(seen.user))


@follow.expired(visits)
async def silent(user: str, visit: Visit) -> None: raise NotImplementedError


@follow.expired(visits, into=mails)
async def row(user: str, visit: Visit, ctx: Context) -> Mail: raise NotImplementedError


@follow.expired(visits, into=mails)
def none_or_row(user: str, visit: Visit) -> Mail | None: raise NotImplementedError


@follow.expired(visits, into=mails)
async def rows(user: str, visit: Visit) -> list[Mail]: raise NotImplementedError


@follow.expired(visits, into=mails)
async def many(ended: list[tuple[str, Visit]], ctx: Context) -> list[Mail]: raise NotImplementedError


@follow.expired(visits)
async def many_silent(ended: list[tuple[str, Visit]]) -> None: raise NotImplementedError


@follow.expired(visits, into={Mail: mails})
async def by_type(user: str, visit: Visit) -> Mail | None: raise NotImplementedError


_ = silent("ann", Visit("ann"))


@follow.expired(visits, into=mails)  # wrong: the key
async def other_key(user: int, visit: Visit) -> Mail: raise NotImplementedError


@follow.expired(visits, into=mails)  # wrong: the value
async def other_value(user: str, visit: Mail) -> Mail: raise NotImplementedError


@follow.expired(visits, into=mails)  # wrong: the row
async def other_row(user: str, visit: Visit) -> Visit: raise NotImplementedError


@follow.expired(visits, into=mails)  # wrong: the rows
async def other_rows(ended: list[tuple[str, Visit]]) -> list[Visit]: raise NotImplementedError


@follow.expired(visits)  # wrong: the pairs
async def other_pairs(ended: list[tuple[int, Visit]]) -> None: raise NotImplementedError


@follow.expired(visits)  # wrong: no value
async def no_value(user: str) -> None: raise NotImplementedError


@follow.expired("visits")  # wrong: no table
async def no_table(user: str, visit: Visit) -> None: raise NotImplementedError


visits.set("ann", Visit("ann"), until="tomorrow")  # wrong: no time
_ = row(1, Visit("ann"))  # wrong: the key of a call by hand
"""
"""A line that ends with "wrong" and a reason is one; the error is there or in the line below it."""


@pytest.mark.full("runs mypy")
def test_a_type_checker_finds_wrong_keys_values_and_rows(tmp_path: Path) -> None:
    """And passes all right forms."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    checked = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "program.py"]
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {n for n, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line}, done.stdout
