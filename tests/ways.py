"""One processor in each way that a function may take its records, for what holds in all of them."""

from collections.abc import Callable, Sequence
from typing import Any

from streamworker import App, Context, Records, Stream

WAYS: dict[str, dict[str, Any]] = {
    "record": {},
    "thread": {},
    "keyed": {"concurrency": 4},
    "batch": {"batch": 7},
    "stream": {},
}
"""The options of each way."""


def declare(
    app: App,
    stream: Stream[Any],
    way: str,
    see: Callable[[Sequence[Any], Context], Sequence[Any]],
    *,
    returns: type | None = None,
    **options: Any,
) -> None:
    """Declare a processor that shows ``see`` its records, and sends on the rows that this returns."""

    def shown(records: Sequence[Any], ctx: Context) -> list[Any] | None:
        rows = see(records, ctx)
        return None if returns is None else list(rows)

    async def record(given: Any, ctx: Context) -> Any:
        return shown([given], ctx)

    def thread(given: Any, ctx: Context) -> Any:
        return shown([given], ctx)

    async def batch(given: Any, ctx: Context) -> Any:
        return shown(given, ctx)

    async def iterating(given: Any, ctx: Context) -> None:
        async for each in given:
            for row in see([each], ctx):
                ctx.forward(row)

    function: Any = {"thread": thread, "batch": batch, "stream": iterating}.get(way, record)
    kind: Any = stream.spec.record.python_type
    of_way: dict[str, Any] = {"batch": list[kind], "stream": Records[kind]}
    rows = None if returns is None or way == "stream" else list[returns]  # type: ignore[valid-type]
    function.__annotations__ |= {"given": of_way.get(way, kind), "return": rows}
    if way == "stream" and returns is not None:
        options["output"] = returns
    app.processor(stream, **(WAYS[way] | options))(function)
