"""``streamworker repair``: makes the safe repairs that ``doctor`` suggests, after a confirmation."""

import socket
from typing import Annotated, NamedTuple

import typer

from streamworker.app import App
from streamworker.cli.doctor.repair_plan import (
    in_doubt,
    plan_group,
    plan_reader,
    plan_targets,
    plan_undeclared,
)
from streamworker.cli.options import AppPath, AsJson, Yes, option
from streamworker.cli.output import confirm, print_json, print_table, say
from streamworker.cli.requests import operator
from streamworker.cli.support import ask, give_up, group_keys, placements
from streamworker.core.data.archives import GROUP
from streamworker.errors import ConfigurationError, StreamworkerError
from streamworker.importing import resolve_app
from streamworker.redisio.admin.health import holders
from streamworker.redisio.admin.outboxes import find_diverged
from streamworker.redisio.admin.repair import CHANGED, Step, do_step, look
from streamworker.redisio.group.readers import forget_marks
from streamworker.redisio.keys import GroupKeys, StreamKeys, check_name
from streamworker.redisio.wire.client import Backend


def repair(
    app: AppPath,
    forget_reader: Annotated[
        list[str] | None,
        option(
            "--forget-reader NAME",
            "Remove a reader of acked logs that will not come back; its unread rows may be trimmed.",
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

    Without an option the command loses no data. Where an acked log is ahead of its lock, rows count on
    from its end, even while workers run. In groups without a living worker it
    removes dead members and releases their locks. Each step is done only if its keys have not
    changed since the plan was made, and is recorded in `history`; the command exits with 1 if one
    was not done, or if an option finds nothing.

    \b
    Examples:
      streamworker repair shop:app --dry-run
      streamworker repair shop:app --yes --json
      streamworker repair shop:app --forget-reader revenue
      streamworker repair shop:app --accept-targets price
      streamworker repair shop:app --forget-group price-v1
    """
    found = resolve_app(app)
    wanted = _Wanted(forget_reader or [], forget_group or [], accept_targets or [])
    wanted.check(found)
    if json and not (yes or dry_run):
        raise typer.BadParameter("A program cannot be asked: give --yes or --dry-run.", param_hint="--json")
    if ask(found, _repair, found, wanted, dry_run, yes, json):
        give_up()


class _Wanted(NamedTuple):
    """What the options name."""

    readers: list[str]
    groups: list[str]
    sources: list[str]

    def check(self, app: App) -> None:
        """Refuse processors that the app does not declare, and groups that it declares."""
        for name in self.sources:
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
    steps, doubts = await _plan(backend, app, wanted)
    steps += await _plan_undeclared(backend, app, wanted.groups)
    say(*doubts, error=True)
    if not json:
        _show(steps, doubts)
    if not steps or dry_run:
        if json:
            print_json([_as_json(step, "planned") for step in steps])
        return 0
    if not yes:
        confirm(f"Do these {len(steps)} steps?" if len(steps) > 1 else "Do this?")
    by = f"{operator()}@{socket.gethostname()}"
    outcomes: list[tuple[Step, str]] = []
    try:
        for step in steps:
            outcomes.append((step, await do_step(backend, step, by)))
            if step.action == "forget reader":
                await forget_marks(backend, placements(app), step.what)
            if not json:
                say(f"{step.action} of {step.facts.keys.group}: {outcomes[-1][1]}")
    finally:  # An error, or Ctrl-C, does not undo what was done.
        if json:
            undone = [(step, "not tried, or not known to be done") for step in steps[len(outcomes) :]]
            print_json([_as_json(step, outcome) for step, outcome in (*outcomes, *undone)])
    return sum(outcome.startswith(CHANGED) for _, outcome in outcomes)


def _show(steps: list[Step], doubts: list[str]) -> None:
    if not steps:
        say("Nothing else is to repair." if doubts else "There is nothing to repair.")
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


async def _plan(backend: Backend, app: App, wanted: _Wanted) -> tuple[list[Step], list[str]]:
    """Return the steps, and what is left alone because it may live."""
    steps, doubts = list[Step](), list[str]()
    unknown = set(wanted.readers)
    for spec in (*app.registry.processors.values(), *app.registry.archivers.values()):
        keys, partitions = group_keys(spec), spec.stream.placement.total
        facts = await look(backend, keys, partitions)
        steps += plan_group(facts, app.settings)
        doubts += in_doubt(facts, app.settings)
        # The archiver of a log that is declared is no reader that will not come back.
        gone = facts.readers.keys() - ({GROUP} if spec.options.archive_of_log is not None else set())
        steps += [plan_reader(facts, name) for name in wanted.readers if name in gone]
        unknown -= gone
        if spec.name in wanted.sources:
            steps += plan_targets(facts, await find_diverged(backend, keys, partitions))
    if unknown:
        raise StreamworkerError(
            f"No acked log of {app.name!r} has a reader {min(unknown)!r}.",
            remedy="`streamworker lag` lists them. It may have been forgotten already. The archiver of a "
            "log is one as long as log_archive= is declared, and stays.",
        )
    return steps, doubts


async def _plan_undeclared(backend: Backend, app: App, groups: list[str]) -> list[Step]:
    steps: list[Step] = []
    for name in groups:
        check_name("processor", name)
        before = len(steps)
        for stream in app.registry.streams.values():
            if name == GROUP and stream.spec.archive is not None:
                continue
            partitions = stream.spec.placement.total
            present = await holders(backend, StreamKeys(app.name, stream.name), partitions)
            facts = await look(backend, GroupKeys(app.name, stream.name, name), partitions)
            has_keys = facts.membership or facts.locks or facts.readers
            if has_keys or any(holder.name == name for holder in present):
                steps.append(plan_undeclared(facts, app.settings))
        if len(steps) == before:
            raise StreamworkerError(
                f"No stream that {app.name!r} declares has a group {name!r}.",
                remedy="`streamworker doctor APP` lists the groups that it does not declare. Declare another "
                "stream to have its groups looked at.",
            )
    return steps
