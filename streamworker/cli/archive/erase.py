"""``streamworker erase``: takes a person's records out of all places that streamworker has means for."""

from collections.abc import Sequence
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.archive.personal import Eraser, Report, key_in
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AppPath, AsJson, Yes, argument, option
from streamworker.cli.output import confirm, print_json, say
from streamworker.cli.support import ask
from streamworker.core.words import counted
from streamworker.errors import ConfigurationError
from streamworker.importing import resolve_app
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import local_time

ELSEWHERE = (
    "outboxes, until they are forwarded; ids of `send(id=)`, until id_window is over",
    "logs and traces of your programs; what Spark has written, and its checkpoints",
    "files, replicas and backups of Redis; older versions of objects that the bucket keeps",
)
"""What the command never looks at."""


def erase(
    path: AppPath,
    key: Annotated[str, option("--key KEY", "The key, or the first part of one of several parts.")],
    parts: Annotated[list[str] | None, argument("[PART...]", "The other parts of the key.")] = None,
    stream: Annotated[str | None, option("--stream NAME", "Only this stream.")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would go.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Erase the records of one key, and what processors keep of them.

    Scheduled records are cancelled, dead letters and the keys of tables deleted, and segments of
    archives written anew without these records. Entries of streams and rows of acked logs go when
    their retention is over, and so do segments whose records Redis still has: the report says when
    to run this again. Send nothing more of the key before you run it.

    The exit code is 1 if something could not be looked at, such as a store that does not answer.

    \b
    Examples:
      streamworker erase shop:app --key bob --dry-run
      streamworker erase shop:app --key bob --yes
      streamworker erase shop:app --stream visits --key bob 2026-11-29
    """
    app = resolve_app(path)
    streams = app.registry.streams
    if stream is not None and stream not in streams:
        raise ConfigurationError(
            f"App {app.name!r} has no stream {stream!r}.",
            remedy=f"Its streams: {', '.join(streams) or 'none'}.",
        )
    names, words = sorted([stream] if stream else streams), [key, *(parts or ())]
    told = " ".join(words)
    if not (yes or dry_run):
        confirm(f"Erases the records of key {told!r} in {', '.join(names)}, for good. Go on?")
    report: Report = ask(app, _erase, app, names, words, dry_run, of=[streams[name].spec for name in names])
    if json:
        print_json({"key": words, "dry_run": dry_run, **_as_json(report)})
    else:
        say(*_lines(report, told, dry_run))
    if report.failed:
        raise typer.Exit(ExitCode.FAILED)


async def _erase(
    backend: Backend, app: App, names: Sequence[str], key: Sequence[str], dry_run: bool
) -> Report:
    report = Report()
    keys = {name: key_in(app.registry.streams[name].spec, key) for name in names}
    found = {name: its for name, its in keys.items() if isinstance(its, bytes)}
    none = [f"stream {name}: {why}" for name, why in keys.items() if isinstance(why, str)]
    if not found:
        whys = "; ".join(none)
        raise ConfigurationError(f"No stream can have the key {' '.join(key)!r}. {whys}.", remedy=_REMEDY)
    async with app:  # It has cancelled what was scheduled.
        for name, its in found.items():
            await Eraser(backend, app, app.registry.streams[name], its, report, dry_run=dry_run).run()
    report.untouched += none
    report.untouched += ELSEWHERE
    return report


_REMEDY = "Write the parts of a key one after the other: --key ann 7."


def _as_json(report: Report) -> dict[str, object]:
    return {
        "gone": [each._asdict() for each in report.went],
        "later": [each._asdict() for each in report.later],
        "not_looked_at": report.untouched,
        "failed": report.failed,
    }


def _lines(report: Report, key: str, dry_run: bool) -> list[str]:
    would = "Would go" if dry_run else "Gone"
    lines = [
        f"{would}: {counted(each.number, each.what)} of {key!r} from {each.place}." for each in report.went
    ]
    if not report.went:
        lines.append(f"Nothing of {key!r} was there that can go now.")
    for stays in report.later:
        when = "" if stays.when_ms is None else f", at {local_time(stays.when_ms)} at the earliest"
        lines.append(f"Later: {counted(stays.number, stays.what)} in {stays.place}{when}: {stays.why}.")
    lines += [f"Not looked at: {each}." for each in report.untouched]
    lines += [f"Failed: {each}" for each in report.failed]
    if report.later:
        lines.append("Run this again when the time of the last of them is over.")
    return lines
