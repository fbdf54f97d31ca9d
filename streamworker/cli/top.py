"""``streamworker top``: shows the live view."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from streamworker.cli.options import GroupPath, Processors, option
from streamworker.cli.output import console
from streamworker.cli.support import ask, take
from streamworker.declaring.specs import ProcessorSpec
from streamworker.importing import Selection, resolve_processors
from streamworker.redisio.wire.client import Backend


def top(
    app: GroupPath,
    processor: Processors = None,
    once: Annotated[
        bool, option("--once", "Print the view once and end. This is the default without a terminal.")
    ] = False,
) -> None:
    """Show a live view of a group.

    It reads from Redis once a second and writes nothing. Keys: q quits, the arrows or tab switch
    the processor, o shows all processors with a line for each, p pauses.

    \b
    Examples:
      streamworker top shop:app
      streamworker top shop:price
      streamworker top shop:app --once | less
    """
    selection = resolve_processors(app, processor)
    if once or not sys.stdout.isatty():
        ask(selection.app, _print_frames, selection.groups)
    else:
        show(selection)


def show(
    selection: Selection,
    *,
    stopped: Callable[[], bool] = lambda: False,
    notices: Callable[[], Sequence[str]] = lambda: (),
) -> None:
    """Run the live view until ``q``, or until ``stopped()``; ``notices`` returns warnings to show."""

    async def live(backend: Backend) -> None:
        from streamworker.tui.app import watch

        # Each archived stream has a group of one name.
        specs = {
            f"{spec.stream.name}.{spec.name}" if spec.is_archiver else spec.name: spec
            for spec in selection.groups
        }
        await watch(
            {name: f"{spec.stream.app} {spec.stream.name} → {spec.name}" for name, spec in specs.items()},
            lambda name: take(backend, specs[name]),
            console=console(),
            stopped=stopped,
            notices=notices,
        )

    ask(selection.app, live)


async def _print_frames(backend: Backend, specs: Sequence[ProcessorSpec]) -> None:
    from streamworker.tui.app import frame_once

    for spec in specs:
        await frame_once(partial(take, backend, spec), console=console())
