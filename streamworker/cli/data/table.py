"""``streamworker table``: lists tables, and shows or exports what they hold."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from streamworker.app import App
from streamworker.cli.data.wording import plain
from streamworker.cli.options import AppPath, AsJson, Limit, Partitions, argument, option
from streamworker.cli.output import print_found, print_json, say
from streamworker.cli.support import ask, check_partitions, give_up, run_async
from streamworker.core.snapshot import TableView
from streamworker.core.units import moment
from streamworker.core.words import counted
from streamworker.declaring.table import Table
from streamworker.importing import resolve_app, resolve_table
from streamworker.redisio.data.maps import check_made
from streamworker.redisio.data.statetables import holders, read_due, view_table
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import duration, memory
from streamworker.tui.overview import ends_of

app = typer.Typer(no_args_is_help=True, help="Look at tables: state by key.")

TablePath = Annotated[str, argument("TABLE", "MODULE:NAME of the table, such as shop:totals.")]


@app.command("list")
def list_tables(path: AppPath, json: AsJson = False) -> None:
    """List the tables of an app, with their keys and memory.

    \b
    Examples:
      streamworker table list shop:app
    """
    app = resolve_app(path)
    facts, rows = list[dict[str, object]](), list[Sequence[object]]()
    views, now_ms = ask(app, _views, app)
    for view in views:
        spec = app.registry.tables[view.name].spec
        names = {"table": spec.name, "processor": spec.processor, "stream": spec.stream.name}
        counts = {name: its for name, its in asdict(view).items() if name != "name"}
        facts.append({**names, "ttl_ms": spec.lifetime.ttl_ms, **counts})
        ttl = duration(spec.lifetime.ttl_ms) if spec.lifetime.ttl_ms else "for ever"
        rows.append((*names.values(), ttl, view.keys, memory(view.bytes), ends_of(view, now_ms)))
    columns = ("table", "processor", "stream", "ttl", "keys", "memory", "ends")
    print_found(json, facts, f"App {app.name!r} has no tables.", columns, rows)


@app.command()
def get(path: TablePath, key: Annotated[list[str], argument("KEY...", "The key, part by part.")]) -> None:
    """Print the committed value of a key as JSON; exit with 1 if there is none.

    \b
    Examples:
      streamworker table get shop:totals ann
      streamworker table get shop:by_hour ann 13
    """
    table = resolve_table(path)
    value = run_async(_get, table, table.spec.form.key_in(key))
    if value is None:
        give_up(f"Table {table.name!r} has no value for {' '.join(key)}.")
    print_json(plain(value))


@app.command()
def scan(
    path: TablePath,
    limit: Limit = 50,
    partition: Partitions = None,
    due: Annotated[
        bool, option("--due", "Those that end first, with their ends: a function is called then.")
    ] = False,
) -> None:
    """Print keys and values, one JSON line each.

    \b
    Examples:
      streamworker table scan shop:totals --limit 10
      streamworker table scan visits:sessions --due
    """
    table = _found(path, partition)
    if due and not table.spec.lifetime.is_called:
        raise typer.BadParameter(f"No function is called at the ends of {table.name}.", param_hint="--due")

    async def show() -> str:
        shown = 0
        async for line in _due_lines(table, partition, limit + 1) if due else _lines(table, partition):
            if shown == limit:
                return f"The first {limit:,}; --limit shows more."
            say(line)
            shown += 1
        return "" if shown else f"Table {table.name} has no keys{' there' if partition else ''}."

    if told := run_async(show):
        say(told, error=True)


@app.command()
def export(
    path: TablePath,
    to: Annotated[Path, option("--to FILE", "Where to write; replaced if it exists.", dir_okay=False)],
    partition: Partitions = None,
) -> None:
    """Write all keys and values to a file, one JSON line each.

    Each partition is read at one moment. The file appears when it is complete.

    \b
    Examples:
      streamworker table export shop:totals --to totals.jsonl
    """
    table = _found(path, partition)
    draft = to.with_name(f"{to.name}.part")

    async def write() -> int:
        written = 0
        with draft.open("w", encoding="utf-8") as file:
            async for line in _lines(table, partition):
                file.write(f"{line}\n")
                written += 1
        return written

    try:
        written = run_async(write)
        draft.replace(to)
    except OSError as error:
        raise typer.BadParameter(f"{to}: {error.strerror}", param_hint="--to") from None
    finally:
        with suppress(OSError):
            draft.unlink()
    say(f"Wrote {counted(written, 'key')} of {table.name} to {to}.")


async def _views(backend: Backend, app: App) -> tuple[list[TableView], int]:
    views = []
    for spec in (table.spec for table in app.registry.tables.values()):
        keys = GroupKeys(app.name, spec.stream.name, spec.processor)
        partitions = await holders(backend, keys, spec.stream.placement)
        views.append(await view_table(backend, keys, {spec.name: spec.lifetime}, partitions))
    return views, await backend.time_ms()


async def _get(table: Table[Any, Any], key: Any) -> Any:
    async with _opened(table):
        return await table.get(key)


@asynccontextmanager
async def _opened(table: Table[Any, Any]) -> AsyncIterator[None]:
    """Open the app of a table whose stream has the partitions that it declares, or has grown from them."""
    of = table.spec.stream
    async with table.app:
        counts = await check_made(table.app.backend(), StreamKeys(of.app, of.name), of.declared_partitions)
        of.placement.become(*(counts or of.placement.counts))
        yield


def _found(path: str, partitions: list[int] | None) -> Table[Any, Any]:
    table = resolve_table(path)
    check_partitions(table.spec.stream, partitions or [], "--partition")
    return table


async def _lines(table: Table[Any, Any], partitions: list[int] | None) -> AsyncIterator[str]:
    async with _opened(table):
        for partition in sorted(set(partitions)) if partitions else [None]:
            async for key, value in table.scan(partition=partition):
                yield msgspec.json.encode({"key": key, "value": plain(value)}).decode()


async def _due_lines(table: Table[Any, Any], partitions: list[int] | None, most: int) -> AsyncIterator[str]:
    """Tell of the values that end first, in the order of their ends."""
    spec, found = table.spec, list[tuple[int, bytes, bytes | None]]()
    keys = GroupKeys(table.app.name, spec.stream.name, spec.processor)
    async with _opened(table):
        backend = table.app.backend()
        holding = await holders(backend, keys, spec.stream.placement)
        for p in (p for p, holds in holding.items() if holds and (not partitions or p in partitions)):
            found += await read_due(backend, keys, table.name, p, most)
    for ends_ms, field, body in sorted(found, key=lambda each: each[0])[:most]:
        if body is not None:
            key, value = spec.form.key_of(field, body), spec.form.value_of(field, body)
            its = {"key": key, "value": plain(value), "ends": moment(ends_ms)}
            yield msgspec.json.encode(its).decode()
