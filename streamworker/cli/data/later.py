"""``streamworker later``: lists scheduled records, and cancels them."""

from typing import Annotated, Any

import typer

from streamworker.cli.data.tail import StreamPath
from streamworker.cli.options import AsJson, Limit, argument, option
from streamworker.cli.output import print_found, say
from streamworker.cli.support import ask, give_up, run_async
from streamworker.declaring.stream import Stream
from streamworker.importing import resolve_stream
from streamworker.redisio.data import later
from streamworker.redisio.data.later import Waiting
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import local_time

app = typer.Typer(no_args_is_help=True, help="Look at scheduled records, or cancel them.")


@app.command("list")
def list_scheduled(
    stream: StreamPath,
    key: Annotated[str | None, option("--key", "Only records of this key.")] = None,
    limit: Limit = 50,
    json: AsJson = False,
) -> None:
    """List the records of a stream that wait to be sent, in the order in which they are due.

    \b
    Examples:
      streamworker later list shop:orders
      streamworker later list shop:orders --key ann --json
    """
    looked_at = resolve_stream(stream)
    found = ask(looked_at.app, _waiting, looked_at, of=looked_at.spec)
    wanted = sorted((each for each in found if key in (None, each.key)), key=lambda each: each.due_ms)
    names = ("id", "key", "partition", "due_ms")
    facts = [{name: getattr(each, name) for name in names} for each in wanted[:limit]]
    rows = ((each.id, each.key, local_time(each.due_ms), each.partition) for each in wanted[:limit])
    print_found(json, facts, "Nothing waits.", ("id", "key", "due", "partition"), rows)
    if len(wanted) > limit:
        say(f"{limit} of {len(wanted)}; --limit shows more.", error=True)


@app.command("cancel")
def cancel_scheduled(
    stream: StreamPath,
    id: Annotated[str, argument("ID", "The id with which it was scheduled.")],
    key: Annotated[str | None, option("--key", "Its key, as `later list` shows it.")] = None,
) -> None:
    """Cancel a record that waits to be sent.

    \b
    Examples:
      streamworker later cancel shop:orders reminder-7 --key ann
    """
    if not run_async(_cancel, resolve_stream(stream), id, key):
        give_up(
            "Nothing was cancelled: it was sent, was cancelled before, or is unknown.",
            "`streamworker later list` shows ids and keys.",
        )
    say("Cancelled: it will not be sent.")


async def _waiting(backend: Backend, stream: Stream[Any]) -> list[Waiting]:
    keys, partitions = StreamKeys(stream.app.name, stream.name), stream.spec.placement.all
    return [each for partition in partitions for each in await later.waiting(backend, keys, partition)]


async def _cancel(stream: Stream[Any], id: str, key: str | None) -> bool:
    async with stream.app:
        return await stream.cancel(id, key=key)
