"""``streamworker archive``: looks at archives, and ends or begins what is in them."""

from dataclasses import asdict
from typing import Annotated, Any

import anyio
import typer

from streamworker.cli.archive.comparing import Checked, check_archive
from streamworker.cli.archive.places import Place, known, place_of
from streamworker.cli.archive.status import status
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AsJson, Yes, argument, option
from streamworker.cli.output import confirm, print_json, say
from streamworker.cli.support import ask, halves_told
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.units import duration_ms, duration_text
from streamworker.core.words import counted, ranges
from streamworker.errors import ArchiveConflict, ConfigurationError
from streamworker.redisio.data.streams import store_fields
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import local_time, memory

app = typer.Typer(no_args_is_help=True, help="Look at archives, check them, and say what leaves them.")
app.command()(status)

ArchivePath = Annotated[
    str, argument("STREAM|PROCESSOR", "MODULE:NAME of a stream, or of a processor for its acked log.")
]


@app.command()
def check(
    path: ArchivePath,
    deep: Annotated[bool, option("--deep", "Read all records, and look at each id.")] = False,
    json: AsJson = False,
) -> None:
    """Walk each chain of an archive, count, and compare with what Redis still has.

    It names each gap, each object that is no segment, and each record that differs. The exit code
    is 1 if something is wrong.

    \b
    Examples:
      streamworker archive check shop:orders
      streamworker archive check shop:orders --deep --json
    """
    of, place = place_of(path)
    found: Checked = ask(of, check_archive, place, deep, of=place.stream)
    if json:
        faults = [each._asdict() for each in found.faults]
        print_json({"archive": place.name, "url": place.archive.url, **asdict(found), "faults": faults})
    else:
        say(*(fault.line for fault in found.faults))
        say(_summary(place, found, deep))
    if found.faults:
        raise typer.Exit(ExitCode.FAILED)


def _summary(place: Place, found: Checked, deep: bool) -> str:
    held = (
        f"{counted(found.records, place.unit)} in {counted(found.segments, 'segment')}, {memory(found.bytes)}"
    )
    erased = f"; {found.erased:,} were erased" if found.erased else ""
    same = f" Redis still has {found.compared:,} of them, and they are the same." if found.compared else ""
    alone = f" The archive has {found.alone:,} between those that Redis does not have." if found.alone else ""
    verdict = counted(len(found.faults), "fault") if found.faults else "nothing is wrong"
    how = "" if deep or found.faults else " --deep looks at each id."
    return f"{place.archive.url}: {held}{erased}.{same}{alone} Result: {verdict}.{how}"


@app.command()
def adopt(path: ArchivePath, yes: Yes = False) -> None:
    """Take the archive at the declared URL for that of this stream, whatever Redis knows.

    Workers refuse an archive with another id than Redis has: it may be another app's, or a restored
    or emptied one. This command gives Redis the id that the store has. An empty store gets a new id.

    \b
    Examples:
      streamworker archive adopt shop:orders
    """
    of, place = place_of(path)
    say(*ask(of, _adopt, place, yes, of=place.stream))


async def _adopt(backend: Backend, place: Place, yes: bool) -> list[str]:
    from streamworker.archive.identity import put_identity, read_identity

    url, mine = place.archive.url, place.mine
    stored = await anyio.to_thread.run_sync(read_identity, place.store)
    has = ((await backend.execute("HGET", place.keys.meta, place.field)) or b"").decode("utf-8", "replace")
    lacks = await _lacks(backend, place)
    if stored is not None and stored.id == has:
        return [
            f"{url} is the archive of {stored.whose} already, and Redis knows it. Nothing was changed.",
            *lacks,
        ]
    if stored is None:
        what = f"{url} has no archive. It becomes a new one of {mine.whose}."
    else:
        what = f"{url} is the archive of {stored.whose}, and becomes that of {mine.whose}."
        if stored[:3] != mine[:3]:
            what += " Its records become the beginning of this one's history: no other app may write there."
    if has:
        what += f" Redis forgets the archive with the id {has}, whose objects stay where they are."
    say(what, *lacks)
    if not yes:
        confirm("Go on?")
    new = mine if stored is None else stored
    # Redis first: who finds an id in a store that Redis does not have refuses it.
    await store_fields(backend, place.keys.meta, {place.field: new.id})
    if (
        stored is None
        and (won := await anyio.to_thread.run_sync(put_identity, place.store, new)).id != new.id
    ):
        raise ArchiveConflict(
            f"Meanwhile another program has made {url} the archive of {won.whose}.",
            remedy="Run `streamworker archive adopt` again to take it over.",
        )
    begun = "It is a new archive" if stored is None else "It is adopted"
    return [f"{begun}, with the id {new.id}. Workers find it at their next try."]


async def _lacks(backend: Backend, place: Place) -> list[str]:
    """Say in which partitions the archive ends before what Redis takes for archived."""
    here = await known(backend, place, place.stream.placement.all)

    def behind() -> dict[int, tuple[EntryId, EntryId]]:
        found = {}
        for partition, its in here.items():
            if its.end > ZERO:
                last = place.chain(partition).last()
                if (end := last.last if last else ZERO) < its.end:
                    found[partition] = end, its.end
        return found

    found = await anyio.to_thread.run_sync(behind)
    if not found:
        return []
    end, to = next(iter(found.values()))
    first = f"in partition {next(iter(found))} what lies behind {end}, up to {to}"
    what = f"In partition {ranges(found)} the archive lacks what Redis takes for archived: {first}."
    return [f"{what} What is no more in Redis is lost."]


@app.command()
def expire(
    path: ArchivePath,
    older_than: Annotated[
        str | None, option("--older-than TIME", "Such as '2 years'; the default is the declared keep=.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would go.")] = False,
    yes: Yes = False,
) -> None:
    """Delete the segments of an archive whose last record is older.

    Whole segments go, the oldest first, so that the rest is a chain whenever the command ends. The
    last segment of a partition stays, whatever its age. The store must let you delete.

    \b
    Examples:
      streamworker archive expire shop:orders --dry-run
      streamworker archive expire shop:orders --older-than "2 years" --yes
    """
    of, place = place_of(path)
    keep_ms = _keep_ms(place, older_than)
    age = duration_text(keep_ms)
    if not (yes or dry_run):
        confirm(
            f"Deletes from {place.archive.url} each segment whose last {place.unit} is older than {age}, for "
            "good. Go on?"
        )
    gone = _Gone()
    with halves_told(
        lambda: f"Deleted {gone.text(place)}. The same command goes on." if gone.segments else ""
    ):
        ask(of, _expire, place, keep_ms, dry_run, gone, of=place.stream)
    if not gone.segments:
        say(f"{place.archive.url} has no segment whose last {place.unit} is older than {age}.")
        return
    done = "Would delete" if dry_run else "Deleted"
    say(f"{done} {gone.text(place)}: the last {place.unit} of each is older than {age}.")


def _keep_ms(place: Place, older_than: str | None) -> int:
    if older_than is None:
        if place.archive.keep_ms is None:
            raise typer.BadParameter(
                f"The archive of {place.whose} is declared without keep=, so it stays for ever. Give a time.",
                param_hint="--older-than",
            )
        return place.archive.keep_ms
    try:
        return duration_ms(older_than, "--older-than", least_ms=1_000)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None


class _Gone:
    """What has expired so far."""

    def __init__(self) -> None:
        self.segments = self.records = self.bytes = self.newest_ms = 0

    def text(self, place: Place) -> str:
        held = f"{counted(self.records, place.unit)}, {memory(self.bytes)}"
        return f"{counted(self.segments, 'segment')} with {held}, up to {local_time(self.newest_ms)}"


async def _expire(backend: Backend, place: Place, keep_ms: int, dry_run: bool, gone: Any) -> None:
    from streamworker.archive.life import expire as expired

    before_ms = await backend.time_ms() - keep_ms

    def go(partition: int) -> None:
        for link in expired(place.chain(partition), before_ms, dry_run=dry_run):
            gone.segments += 1
            gone.records += link.footer.records
            gone.bytes += link.segment.size
            gone.newest_ms = max(gone.newest_ms, link.newest_ms)

    for partition in place.stream.placement.all:
        await anyio.to_thread.run_sync(go, partition)
