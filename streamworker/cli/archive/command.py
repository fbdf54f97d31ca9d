"""``streamworker archive``: looks at archives, and ends or begins what is in them."""

from dataclasses import asdict
from typing import Annotated, Any

import anyio
import typer

from streamworker.cli.archive.adopting import adopted
from streamworker.cli.archive.comparing import Checked, check_archive
from streamworker.cli.archive.places import Place, check_own, place_of, slowest
from streamworker.cli.archive.status import status
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AsJson, Yes, argument, option
from streamworker.cli.output import confirm, print_json, say
from streamworker.cli.support import ask, halves_told
from streamworker.core.data.entries import EntryId
from streamworker.core.units import duration_ms, duration_text
from streamworker.core.words import counted
from streamworker.errors import ConfigurationError, StreamworkerError
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

    Where the archive ends before what Redis takes for archived, the archiver goes on behind that end
    with what Redis still has. Pause or stop its workers for that. An acked log's is refused then.

    \b
    Examples:
      streamworker archive adopt shop:orders
    """
    of, place = place_of(path)
    say(*ask(of, adopted, of, place, yes, of=place.stream))


@app.command()
def expire(
    path: ArchivePath,
    older_than: Annotated[
        str | None, option("--older-than TIME", "Such as '2 years'; the default is the declared keep=.")
    ] = None,
    even_unread: Annotated[
        bool,
        option("--even-unread", "Also what a group of the stream or a reader of the log has not read."),
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would go.")] = False,
    yes: Yes = False,
) -> None:
    """Delete the segments of an archive whose last record is older.

    Whole segments go, the oldest first, so that the rest is a chain whenever the command ends. The
    last segment of a partition stays, whatever its age, and so does what a group of the stream, or a
    reader of the acked log, has not read. The store must let you delete.

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
    gone, left = _Expired(), _Expired()
    with halves_told(
        lambda: f"Deleted {gone.text(place)}. The same command goes on." if gone.segments else ""
    ):
        ask(of, _expire, place, keep_ms, even_unread, dry_run, gone, left, of=place.stream)
    if gone.segments:
        done = "Would delete" if dry_run else "Deleted"
        say(f"{done} {gone.text(place)}: the last {place.unit} of each is older than {age}.")
    if left.segments:
        who = ", ".join(sorted(left.unread_by))
        say(f"Left {left.text(place)}: {who} has not read all of it. With --even-unread it goes, too.")
    if not gone.segments and not left.segments:
        say(f"{place.archive.url} has no segment whose last {place.unit} is older than {age}.")


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


class _Expired:
    """What has expired so far."""

    def __init__(self) -> None:
        self.segments = self.records = self.bytes = self.newest_ms = 0
        self.unread_by = set[str]()

    def add(self, link: Any) -> None:
        self.segments += 1
        self.records += link.footer.records
        self.bytes += link.segment.size
        self.newest_ms = max(self.newest_ms, link.newest_ms)

    def text(self, place: Place) -> str:
        held = f"{counted(self.records, place.unit)}, {memory(self.bytes)}"
        return f"{counted(self.segments, 'segment')} with {held}, up to {local_time(self.newest_ms)}"


async def _expire(
    backend: Backend,
    place: Place,
    keep_ms: int,
    even_unread: bool,
    dry_run: bool,
    gone: _Expired,
    left: _Expired,
) -> None:
    from streamworker.archive.life import expire as expired

    await check_own(backend, place)
    before_ms = await backend.time_ms() - keep_ms

    def go(partition: int, read: EntryId | None, who: str) -> None:
        for link, goes in expired(place.chain(partition), before_ms, read=read, dry_run=dry_run):
            (gone if goes else left).add(link)
            left.unread_by |= set() if goes else {who}

    for partition in place.stream.placement.all:
        its = None if even_unread else await slowest(backend, place, partition)
        await anyio.to_thread.run_sync(go, partition, *(its or (None, "")))


@app.command()
def publish(
    path: ArchivePath,
    delta: Annotated[bool, option("--delta", "As a Delta table; there is no other kind.")] = False,
) -> None:
    """Make the files of an archive a Delta table, or bring one up to date.

    The table is in the archive's own folder and refers to the segments: no record is copied. Run it
    as often as you like, from one place or several: each segment is added once.

    \b
    Examples:
      streamworker archive publish shop:orders --delta
    """
    if not delta:
        raise typer.BadParameter("Say as what: --delta.", param_hint="--delta")
    of, place = place_of(path)
    done = ask(of, _published, place, of=place.stream)
    if not any(done):
        say(f"The Delta table in {place.archive.url} has all segments.")
        return
    more = ""
    if done.replaced:
        more += f" {counted(done.replaced, 'segment')} had records erased."
    if done.removed:
        more += f" {counted(done.removed, 'segment')} had expired."
    added = f"{counted(done.added, 'segment')} with {counted(done.records, place.unit)}"
    say(f"Added {added} to the Delta table in {place.archive.url}.{more}")


async def _published(backend: Backend, place: Place) -> Any:
    from streamworker.archive.identity import read_identity
    from streamworker.archive.publishing import publish as published

    identity = await anyio.to_thread.run_sync(read_identity, place.store)
    if identity is not None:
        await check_own(backend, place)
    chains = [place.chain(partition) for partition in place.stream.placement.all]
    if identity is None or not await anyio.to_thread.run_sync(lambda: any(c.segments() for c in chains)):
        raise StreamworkerError(
            f"{place.archive.url} has no segment yet.", remedy="A worker makes it, once one is due."
        )
    given = chains, place.archive.url, identity.id, await backend.time_ms()
    return await anyio.to_thread.run_sync(published, *given)
