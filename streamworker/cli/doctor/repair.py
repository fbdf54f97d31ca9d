"""``streamworker repair``: makes the safe repairs that ``doctor`` suggests, after a confirmation."""

import socket
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from streamworker.app import App
from streamworker.cli.doctor.repair_plan import (
    Step,
    plan_damaged,
    plan_group,
    plan_log,
    plan_reader,
    plan_targets,
    plan_undeclared,
)
from streamworker.cli.options import AppPath, AsJson, Yes, option
from streamworker.cli.output import confirm, print_json, print_table, say
from streamworker.cli.requests import operator
from streamworker.cli.support import ask, give_up, group_keys
from streamworker.errors import ConfigurationError, StreamworkerError
from streamworker.importing import resolve_app
from streamworker.redisio.admin import repair as changes
from streamworker.redisio.admin.health import holders
from streamworker.redisio.admin.outboxes import accept_target, find_diverged
from streamworker.redisio.admin.repair import look
from streamworker.redisio.keys import GroupKeys, StreamKeys, check_name
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import counted


def repair(
    app: AppPath,
    forget_reader: Annotated[
        list[str] | None,
        option(
            "--forget-reader NAME",
            "Remove a reader of acked logs that will not come back; its unread rows may be trimmed.",
        ),
    ] = None,
    trim_log: Annotated[
        list[str] | None,
        option(
            "--trim-log PROCESSOR",
            "Drop the rows of an acked log that has no reader. No reader has read them.",
        ),
    ] = None,
    drop_damaged: Annotated[
        list[str] | None,
        option(
            "--drop-damaged PROCESSOR",
            "Delete the damaged membership document or heartbeats that workers replaced and kept.",
        ),
    ] = None,
    accept_targets: Annotated[
        list[str] | None,
        option(
            "--accept-targets PROCESSOR",
            "Let streams go on that took records which the processor's partition has lost. Some of what "
            "it sends now may be there already.",
        ),
    ] = None,
    forget_group: Annotated[
        list[str] | None,
        option(
            "--forget-group NAME",
            "Delete all keys of a group that the app does not declare any more: its position in the "
            "stream, acked log, dead letters, state.",
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Show the plan and end.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove what dead workers and readers left behind; shows the plan and asks.

    Without an option the command loses no data. It repairs acked logs that refuse commits because
    another program wrote to them, even while workers run. In groups without a living worker it removes
    dead members and releases their locks; living workers do this themselves, and sooner. Steps that
    drop unread data need the option that names them. Each step is done only if its keys have not
    changed since the plan was made, may be repeated, and is recorded in `history`. The command exits
    with 1 if a step was not done for that reason.

    \b
    Examples:
      streamworker repair shop:app --dry-run
      streamworker repair shop:app --yes --json
      streamworker repair shop:app --forget-reader revenue
      streamworker repair shop:app --trim-log price
      streamworker repair shop:app --drop-damaged price
      streamworker repair shop:app --accept-targets price
      streamworker repair shop:app --forget-group price-v1
    """
    found = resolve_app(app)
    wanted = _Wanted(
        forget_reader or [], trim_log or [], forget_group or [], drop_damaged or [], accept_targets or []
    )
    wanted.check(found)
    if json and not (yes or dry_run):
        raise typer.BadParameter("A program cannot be asked: give --yes or --dry-run.", param_hint="--json")
    if ask(found, _repair, found, wanted, dry_run, yes, json):
        give_up()


class _Wanted(NamedTuple):
    """What the options name."""

    readers: list[str]
    logs: list[str]
    groups: list[str]
    damaged: list[str]
    sources: list[str]

    def check(self, app: App) -> None:
        """Refuse processors that the app does not declare, and groups that it declares."""
        for name in (*self.logs, *self.damaged, *self.sources):
            if name not in app.registry.processors:
                raise ConfigurationError(
                    f"App {app.name!r} has no processor {name!r}.",
                    remedy=f"It has: {', '.join(sorted(app.registry.processors))}.",
                )
        for name in self.groups:
            if name in app.registry.processors:
                raise ConfigurationError(
                    f"App {app.name!r} declares the processor {name!r}.",
                    remedy="Only a group that it does not declare any more can be forgotten.",
                )


async def _repair(backend: Backend, app: App, wanted: _Wanted, dry_run: bool, yes: bool, json: bool) -> int:
    """Plan, show, ask and do; return how many steps were not done."""
    steps = [*await _plan(backend, app, wanted), *await _plan_undeclared(backend, app, wanted.groups)]
    if not json:
        _show(steps)
    if not steps or dry_run:
        if json:
            print_json([_as_json(step, "planned") for step in steps])
        return 0
    if not yes:
        confirm(f"Do these {len(steps)} steps?" if len(steps) > 1 else "Do this?")
    outcomes = [(step, await _do(backend, step)) for step in steps]
    if json:
        print_json([_as_json(step, outcome) for step, outcome in outcomes])
    else:
        say(*(f"{step.action} of {step.facts.keys.group}: {outcome}" for step, outcome in outcomes))
    return sum(outcome.startswith(_CHANGED) for _, outcome in outcomes)


def _show(steps: list[Step]) -> None:
    if not steps:
        say("There is nothing to repair.")
        return
    print_table(
        ("action", "group", "what", "why"),
        [(step.action, step.facts.keys.group, step.what, step.why) for step in steps],
    )


def _as_json(step: Step, outcome: str) -> dict[str, object]:
    return {
        "action": step.action,
        "stream": step.facts.keys.stream,
        "group": step.facts.keys.group,
        "what": step.what,
        "why": step.why,
        "names": step.names,
        "partitions": step.partitions,
        "outcome": outcome,
    }


async def _plan(backend: Backend, app: App, wanted: _Wanted) -> list[Step]:
    steps: list[Step] = []
    unknown = set(wanted.readers)
    for spec in app.registry.processors.values():
        keys, partitions = group_keys(spec), spec.stream.partitions
        facts = await look(backend, keys, partitions)
        steps += plan_group(facts, app.settings)
        steps += [plan_reader(facts, name) for name in wanted.readers if name in facts.readers]
        unknown -= facts.readers.keys()
        if spec.name in wanted.logs:
            steps += plan_log(facts)
        if spec.name in wanted.damaged:
            steps += plan_damaged(facts)
        if spec.name in wanted.sources:
            steps += plan_targets(facts, await find_diverged(backend, keys, partitions))
    if unknown:
        raise StreamworkerError(
            f"No acked log of {app.name!r} has a reader {min(unknown)!r}.",
            remedy="`streamworker lag` lists them. It may have been forgotten already.",
        )
    return steps


async def _plan_undeclared(backend: Backend, app: App, groups: list[str]) -> list[Step]:
    steps: list[Step] = []
    for name in groups:
        check_name("processor", name)
        before = len(steps)
        for stream in app.registry.streams.values():
            partitions = stream.spec.partitions
            present = await holders(backend, StreamKeys(app.name, stream.name), partitions)
            facts = await look(backend, GroupKeys(app.name, stream.name, name), partitions)
            has_keys = facts.membership or facts.locks or facts.readers
            if has_keys or any(holder.name == name for holder in present):
                steps.append(plan_undeclared(facts, app.settings))
        if len(steps) == before:
            raise StreamworkerError(
                f"No stream of {app.name!r} has a group {name!r}.",
                remedy="`streamworker doctor APP` lists those that it does not declare.",
            )
    return steps


_CHANGED = "left alone: it has changed since"


async def _do(backend: Backend, step: Step) -> str:
    facts, keys = step.facts, step.facts.keys
    by = f"{operator()}@{socket.gethostname()}"

    async def noted(what: str, partitions: Sequence[int] = ()) -> str:
        refusal = await changes.note(backend, keys, what, partitions, by=by)
        return f"; the history does not have it: {refusal}" if refusal else ""

    match step.action:
        case "remove members":
            return "done" if await changes.remove_members(backend, facts, step.names) else _CHANGED
        case "forget reader":
            if not await changes.forget_reader(backend, facts, step.names[0]):
                return _CHANGED
            return f"done{await noted(f'{step.action} {step.what}')}"
        case "release locks":
            released = [
                p for p in step.partitions if await changes.release_lock(backend, keys, p, facts.locks[p])
            ]
            end = await noted(step.action, released) if released else ""
            return f"{_done(len(released), len(step.partitions))}{end}"
        case "repair log":
            (p,) = step.partitions
            is_done = await changes.repair_log(backend, keys, p, facts.locks[p])
            return f"done{await noted(step.action, [p])}" if is_done else _CHANGED
        case "trim log":
            dropped = {p: await changes.trim_log(backend, keys, p, facts.locks[p]) for p in step.partitions}
            trimmed = [p for p, count in dropped.items() if count is not None]
            total = sum(count or 0 for count in dropped.values())
            entries = counted(total, "entry", "entries")
            end = await noted(f"{step.action}: {entries}", trimmed) if total else ""
            return f"{_done(len(trimmed), len(step.partitions))}; {entries} dropped{end}"
        case "accept target":
            assert step.diverged is not None
            if not await accept_target(backend, keys, step.diverged):
                return _CHANGED
            return f"done{await noted(f'{step.action} {step.what}', step.partitions)}"
        case "drop damaged":
            return "done" if await changes.drop_damaged(backend, facts) else _CHANGED
        case "forget group":
            gone = [p for p in step.partitions if await changes.forget_place(backend, facts, p)]
            if len(gone) == len(step.partitions) and await changes.forget_group(backend, facts):
                return "done"
            return f"{_CHANGED}: {len(gone)} of {len(step.partitions)} partitions are removed"


def _done(done: int, total: int) -> str:
    return "done" if done == total else f"{_CHANGED}: {total - done} of {total} partitions"
