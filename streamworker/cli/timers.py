"""``streamworker timers``: when the timers of an app ran last, and when they run next."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Annotated, Any

import typer

from streamworker.app import App
from streamworker.cli.options import AppPath, AsJson, argument, seconds_of
from streamworker.cli.output import print_found, say
from streamworker.cli.requests import Wait, last_look, operator
from streamworker.cli.support import Commands, ask, give_up, group_keys
from streamworker.core.ownership.risks import deaths_in_words
from streamworker.core.snapshot import PauseView
from streamworker.core.words import counted, name_of
from streamworker.declaring.specs import ProcessorSpec, TimerSpec
from streamworker.errors import BackendError, StreamworkerError
from streamworker.importing import resolve_app, resolve_timer
from streamworker.redisio.data.state import Calls, ask_for_calls, calls_asked_for, read_calls
from streamworker.redisio.group.following import unfinished
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.group.requests import make_request
from streamworker.redisio.group.risks import forget_deaths, read_deaths
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import duration


class _ListFirst(Commands):
    """Takes ``timers shop:app`` for ``timers list shop:app``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListFirst, no_args_is_help=True, help="Show when timers run.")


@app.callback()
def root() -> None:
    """Keep `list` a word of its own: typer would take a single command for the group."""


@app.command("list")
def list_timers(path: AppPath, json: AsJson = False) -> None:
    """Show the timers of an app: when each ran last, for how long and by whom, and when it runs next.

    Of a timer of each partition the table shows the newest call. `timers shop:app` does the same.

    \b
    Examples:
      streamworker timers list shop:app
    """
    app = resolve_app(path)
    found = ask(app, timers_of, app)
    columns = ("timer", "runs", "on", "last", "next", "took", "failing")
    rows = ([each[column] for column in columns] for each in found)
    print_found(json, found, "The app has no timers.", columns, rows)


@app.command("run-now")
def run_now(
    timer: Annotated[str, argument("TIMER", "MODULE:NAME of the timer, such as shop:report.")],
    wait: Wait = "10 seconds",
) -> None:
    """Let a timer run now, once, whatever its schedule says.

    It gets the present time as its planned time. The command ends when the call is committed. If no
    worker runs, the next one calls it.

    \b
    Examples:
      streamworker timers run-now shop:report
    """
    app, group, spec = resolve_timer(timer)
    ask(app, _run_now, group, spec, seconds_of(wait, "--wait"))


async def _run_now(backend: Backend, group: ProcessorSpec, timer: TimerSpec, wait_s: float) -> None:
    keys = group_keys(group)
    partitions = sorted(await unfinished(backend, keys, group.stream.placement.all))
    at_ms = await backend.time_ms()
    await forget_deaths(backend, keys, f"timer {timer.name}")
    if not group.stream.has_records:  # There is no processor to retry.
        await forget_deaths(backend, keys, "resource")
    await ask_for_calls(backend, keys, partitions, timer.name, at_ms)
    why = f"run timer {timer.name}"
    if not await make_request(backend, keys, partitions, "retry", who=operator(), why=why):
        raise StreamworkerError(
            f"No worker has run {timer.name!r} yet.",
            remedy="The first worker that starts will run it at once.",
        )

    async def look() -> Calls:
        return await calls_asked_for(backend, keys, partitions, timer.name, at_ms)

    def where(found: Sequence[int], of: str = "") -> str:
        return f" in {counted(len(found), 'partition')}{of}" if group.stream.has_records else ""

    seen = await last_look(look, lambda calls: not calls.waiting, wait_s)
    if seen.made:
        say(f"Timer {timer.name} ran{where(seen.made, f' of {group.stream.name}')}.")
    failed = []
    if seen.waiting:
        locks = await read_locks(backend, keys, seen.waiting)
        causes = dict.fromkeys(_why_not(locks.get(p), timer) for p in seen.waiting)
        failed.append(
            f"It has not run{where(seen.waiting)} within {wait_s:g} s: {'; '.join(causes)}. "
            "The request stands; `streamworker timers` shows when it ran."
        )
    if seen.gone:
        failed.append(
            f"No call is known{where(seen.gone)}, and the request is gone: the state was deleted. Ask again."
        )
    if failed:
        give_up(*failed)


def _why_not(lock: LockView | BackendError | None, timer: TimerSpec) -> str:
    """Say why a call that was asked for is not done, by what the lock of its partition says."""
    match lock:
        case LockView(owner=""):
            return "no worker is there"
        case LockView(pause=PauseView()):
            return "an operator has paused the partition"
        case LockView(reason=reason) if reason.startswith(f"timer {timer.name} "):
            return reason.rstrip(".")
        case LockView(owner=owner):
            return f"a call of {name_of(owner)} runs, or it is away"
        case _:
            return "the partition's lock cannot be read"


async def timers_of(
    backend: Backend, app: App, *, with_calls: bool = True, zone: tzinfo | None = None
) -> list[dict[str, Any]]:
    """Return the timers of an app in words; without their calls for a user who may not read state.

    Times are in a time zone, by default that of each timer.
    """
    groups = sorted(app.registry.groups, key=lambda spec: spec.stream.has_records)  # The app's timers first.
    now_ms = await backend.time_ms()
    return [
        await _row(backend, spec, timer, now_ms, with_calls, zone) for spec in groups for timer in spec.timers
    ]


async def _row(
    backend: Backend,
    spec: ProcessorSpec,
    timer: TimerSpec,
    now_ms: int,
    with_calls: bool,
    zone: tzinfo | None,
) -> dict[str, Any]:
    partitions = sorted(await unfinished(backend, group_keys(spec), spec.stream.placement.all))
    calls = await read_calls(backend, group_keys(spec), partitions, timer.name) if with_calls else []
    schedule, newest = timer.schedule, max(calls, key=lambda call: call.began, default=None)
    row = {
        "timer": timer.name,
        "runs": f"{schedule}{', when caught up' if timer.when else ''}",
        "on": "app" if not spec.stream.has_records else f"each partition of {spec.name}",
        "missed": timer.missed,
        "last": "",
        "next": _time(timer, schedule.after(now_ms), zone),
        "took": "",
        "failing": await _failing(backend, spec, timer),
    }
    if newest is not None:
        there = "" if len(partitions) == 1 else f" ({len(calls)} of {counted(len(partitions), 'partition')})"
        row["last"] = _time(timer, newest.at, zone) + there
        row["took"] = f"{duration(newest.took)} by {name_of(newest.by)}"
    return row


async def _failing(backend: Backend, spec: ProcessorSpec, timer: TimerSpec) -> str:
    """Return how many workers died in a timer, or what a lock says of its failing calls.

    Of several timers in a partition the lock names the last.
    """
    begin, what = f"timer {timer.name} fails, ", f"timer {timer.name}"
    if deaths := (await read_deaths(backend, group_keys(spec))).get(what):
        return deaths_in_words(what, deaths).removeprefix(f"{what} is ")
    read = await read_locks(backend, group_keys(spec), list(spec.stream.placement.all))
    found = [lock.reason for lock in read.values() if isinstance(lock, LockView)]
    return next((reason.removeprefix(begin) for reason in found if reason.startswith(begin)), "")


def _time(timer: TimerSpec, ms: int, zone: tzinfo | None) -> str:
    """Write a time as all commands do, by default in the time zone of the timer."""
    moment = timer.schedule.moment(ms)
    return (moment.astimezone(zone) if zone else moment).isoformat(sep=" ", timespec="seconds")
