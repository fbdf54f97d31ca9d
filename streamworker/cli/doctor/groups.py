"""The checks of ``doctor`` for an app: its streams, groups, locks, acked logs and their readers."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product

from streamworker.app import App
from streamworker.cli.doctor.checks import Check, Verdict, fail, ok, warn
from streamworker.cli.doctor.repair_plan import kind_of
from streamworker.cli.status import holdings_of, kept, memory_forecast
from streamworker.cli.support import group_keys, placements, take
from streamworker.core.data.archivelife import objects_a_day
from streamworker.core.data.archives import GROUP
from streamworker.core.data.placement import Placement
from streamworker.core.holdings import Archived, Holdings
from streamworker.core.ownership.risks import deaths_in_words, remedy_for
from streamworker.core.ownership.tries import DEATHS_MIN
from streamworker.core.snapshot import GroupSnapshot, PartitionView, TableView
from streamworker.core.words import counted
from streamworker.declaring.specs import ProcessorSpec
from streamworker.declaring.stream import Stream
from streamworker.errors import StreamworkerError
from streamworker.importing import Selection
from streamworker.redisio.admin import health
from streamworker.redisio.admin.health import Holder
from streamworker.redisio.admin.outboxes import find_diverged, messages_waiting
from streamworker.redisio.admin.repair import logs_ahead
from streamworker.redisio.data import later
from streamworker.redisio.data.maps import follow_maps
from streamworker.redisio.data.outbox import read_heads
from streamworker.redisio.data.retention import measure_sizes
from streamworker.redisio.group.membership import quarantined
from streamworker.redisio.keys import GroupKeys, StreamKeys, is_name, map_in
from streamworker.redisio.scripts import OVERWRITTEN, log_ahead
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of
from streamworker.tui.figures import duration, failure, held_up, local_time, memory
from streamworker.tui.overview import ends_of

READER_STILL_MS = 600_000
"""``doctor`` warns about a reader that is behind and has not moved for this long. A query commits every
few seconds while it has rows to read, and a long batch takes minutes."""
LOG_WARN, LOG_FAIL = 0.5, 0.9
FULL_WARN_S = 7 * 86_400
"""``doctor`` warns if the memory is full within a week at today's rate."""
SHOWN = 4


async def app_checks(backend: Backend, app: App, path: str) -> list[Check]:
    """Check an app's keys in Redis. The checks are independent, so a broken key hides no other result.

    ``path`` is the app's on the command line; the remedies contain it.
    """
    with suppress(StreamworkerError):  # The check of each stream tells it.
        await follow_maps(backend, placements(app))
    checks = [await _key_types(backend, app)]
    for stream in app.registry.streams.values():
        checks += await _stream(backend, app, path, stream)
    for spec in app.registry.groups:
        checks += await _group(backend, app, path, spec)
    try:
        checks += _history(
            await holdings_of(backend, Selection(app, tuple(app.registry.processors.values())))
        )
    except StreamworkerError as error:
        checks.append(fail("memory forecast", error.message, error.remedy or "Look at the keys."))
    return checks


async def _key_types(backend: Backend, app: App) -> Check:
    expected: dict[str, str] = {}
    for stream in app.registry.streams.values():
        expected |= health.types_of_keys(app.name, stream.name, stream.spec.placement.total)
    for spec in app.registry.processors.values():
        expected |= health.types_of_keys(app.name, spec.stream.name, spec.stream.placement.total, spec.name)
        for p, table in product(spec.stream.placement.all, spec.tables):
            its = group_keys(spec).tables(p, {table.name: table.lifetime})
            expected |= zip(its, ("hash", "zset"), strict=True)
    try:
        wrong = await health.wrong_types(backend, expected)
    except StreamworkerError as error:
        return fail("keys", error.message, error.remedy or "Try again.")
    if not wrong:
        return ok("keys", f"{len(expected):,} keys hold what they should, or nothing")
    shown = [f"{key} holds a {kind}, not a {expected[key]}" for key, kind in wrong.items()]
    return fail("keys", _some(shown, "; "), f"Another program wrote there. {OVERWRITTEN}")


async def _stream(backend: Backend, app: App, path: str, stream: Stream[object]) -> list[Check]:
    """Compare a stream's declaration with its metadata in Redis."""
    keys = StreamKeys(app.name, stream.name)
    declared, name = stream.spec.placement.total, f"stream {stream.name}"
    try:
        found = await backend.execute("HGET", keys.meta, "partitions")
        if found is None:
            return [ok(name, f"{counted(declared, 'partition')}, not made yet")]
        if (made := map_in(found)) != stream.spec.placement.counts:
            return [
                fail(
                    name,
                    f"declared with {counted(declared, 'partition')}, made with {Placement(*made)}",
                    f"Declare partitions={made[-1]}, or give the stream another name.",
                )
            ]
        holders = await health.holders(backend, keys, declared)
        overdue = await later.overdue(backend, keys, declared)
    except StreamworkerError as error:
        return [fail(name, error.message, error.remedy or "Look at the key with TYPE.")]
    ours = {spec.name for spec in app.registry.processors.values() if spec.stream.name == stream.name}
    others = [holder for holder in holders if holder.name not in ours]
    left = {
        holder.name: await messages_waiting(backend, GroupKeys(app.name, stream.name, holder.name), declared)
        for holder in others
        if is_name(holder.name)
    }
    return [
        ok(name, counted(declared, "partition") + (f": {stream.spec.placement}" if len(made) > 1 else "")),
        *_scheduled(path, name, overdue, sorted(ours)),
        *_undeclared(path, name, others, left),
    ]


def _scheduled(path: str, name: str, overdue: int, processors: Sequence[str]) -> Iterator[Check]:
    """Warn about scheduled records that nobody sends."""
    if not overdue:
        return
    module = path.partition(":")[0]
    yield warn(
        f"{name}: scheduled",
        f"{counted(overdue, 'scheduled record')} should have been sent, or forgotten, more than "
        f"{later.OVERDUE_MS // 1000} s ago",
        "A worker of any processor of the stream does that, unless the partition is full: "
        f"streamworker run {module}:{processors[0]}"
        if processors
        else "Nobody does that: no processor of this app reads the stream. Declare one, and run it.",
    )


def _undeclared(path: str, name: str, others: Sequence[Holder], left: Mapping[str, int]) -> Iterator[Check]:
    """Warn about groups that prevent trimming of a stream and that the app does not declare."""
    for holder in others:
        unread = counted(holder.lag, "record")
        pending = f", {holder.pending:,} delivered and not acknowledged" if holder.pending else ""
        waiting = left.get(holder.name, 0)
        also = f"; {counted(waiting, 'message')} for other streams wait in its outbox" if waiting else ""
        yield warn(
            f"{name}: {holder.name}",
            f"not declared by the app; {unread} it has not read cannot be trimmed{pending}{also}",
            "Leave it if another deployment runs it. If no worker runs it any more: "
            f"streamworker repair {path} --forget-group {shlex.quote(holder.name)}",
        )


async def _group(backend: Backend, app: App, path: str, spec: ProcessorSpec) -> list[Check]:
    settings, keys, name = app.settings, group_keys(spec), f"group {spec.name}"
    damaged = await _damaged(backend, keys)
    try:
        snapshot = await take(backend, spec, settings.session_timeout_ms)
        stored = await backend.execute("HGETALL", keys.schemas)
    except StreamworkerError as error:
        return [fail(name, error.message, error.remedy or "Look at its keys."), *damaged]
    if snapshot.problems:
        # The checks below need the keys that could not be read.
        return [*(fail(name, problem, OVERWRITTEN) for problem in snapshot.problems), *damaged]
    if snapshot.unknown:
        remedy = "See the nodes of the Cluster, and look again: of these partitions nothing is known."
        return [
            *(fail(name, text, remedy) for text in snapshot.unknown),
            *damaged,
            *_troubles(name, snapshot),
        ]
    checks = [*damaged, _members(snapshot, path), _locks(snapshot, path), *of_partitions(snapshot)]
    for what, deaths in snapshot.died.items():
        verdict = fail if deaths >= DEATHS_MIN else warn
        checks.append(verdict(what, deaths_in_words(what, deaths), remedy_for(what)))
    checks += await _outbox(backend, spec, keys, snapshot, path)
    checks += [_table(table, snapshot, path) for table in snapshot.tables]
    if spec.forward:
        kept = str(spec.options.retention_of_log or "")
        views = snapshot.all_partitions
        log_bytes = await measure_sizes(backend, [keys.acked(view.partition) for view in views])
        checks += [
            _schema(snapshot, keys.schemas, stored, settings.trim_interval_ms),
            _log(snapshot, path, settings.acked_entries_max, kept, log_bytes),
            *_readers(snapshot, path, is_archived=spec.options.archive_of_log is not None),
        ]
        for p, last in (await logs_ahead(backend, keys, len(views))).items():
            ahead = log_ahead(keys.acked(p), last, str(views[p].rows))
            checks.append(fail(f"log {spec.name}", ahead.message, ahead.remedy.replace("APP", path)))
    return checks


def _table(table: TableView, snapshot: GroupSnapshot, path: str) -> Check:
    """Tell what a table holds, and warn about ends of values for which nothing is called."""
    name, ends = f"table {table.name}", ends_of(table, snapshot.taken_ms)
    told = ", ".join(filter(None, (counted(table.keys, "key"), memory(table.bytes), ends)))
    if not table.overdue:
        return ok(name, told)
    module = path.partition(":")[0]
    return warn(
        name,
        told,
        "The function at their ends waits for records that came before, or fails, or no worker owns the "
        f"partition: streamworker status {module}:{snapshot.processor}",
    )


async def _damaged(backend: Backend, keys: GroupKeys) -> list[Check]:
    """Warn if workers have replaced a damaged membership document or damaged heartbeats."""
    name = f"membership {keys.group}"
    try:
        kept = await quarantined(backend, keys)
    except StreamworkerError as error:
        return [warn(name, error.message, error.remedy or f"Look at the key {keys.damaged}.")]
    if not kept:
        return []
    return [
        warn(
            name,
            f"was damaged, and its workers repaired it; {keys.damaged} keeps the old value: {kind_of(kept)}",
            f"Another program wrote to {keys.members} (`history` says when) or to {keys.beats}. Find that "
            f"program. Then delete the old value: UNLINK {keys.damaged}",
        )
    ]


def _members(snapshot: GroupSnapshot, path: str) -> Check:
    name = f"group {snapshot.processor}"
    silent = [member for member in snapshot.members if member.state == "silent"]
    alive = sum(member.state not in ("silent", "held") for member in snapshot.members)
    partitions = counted(len(snapshot.partitions), "partition")
    counts = f"{counted(alive, 'member')}, {partitions}, lag {snapshot.lag:,}"
    if silent:
        ages = [
            f"{member.name} for {member.beat_age_ms // 1000:,} s" if member.beat_age_ms else member.name
            for member in silent
        ]
        remedy = (
            "The other members remove those that are dead; look at `history`."
            if alive
            else f"Start a worker, which takes over. Or remove them: streamworker repair {path}"
        )
        return warn(name, f"{counts}; silent: {_some(ages)}", remedy)
    if alive:
        return ok(name, counts)
    if not any(view.epoch for view in snapshot.partitions):
        return ok(name, f"has never run; {counted(snapshot.lag, 'record waits', 'records wait')} for it")
    text = f"no members, lag {snapshot.lag:,}"
    if not snapshot.lag:
        return ok(name, text)
    its = f"{snapshot.stream}.{GROUP}" if snapshot.processor == GROUP else snapshot.processor
    run = f"streamworker run {path} -p {its}"
    return warn(name, text, f"No worker runs it, so its stream is not trimmed: {run}")


def _locks(snapshot: GroupSnapshot, path: str) -> Check:
    name = f"locks {snapshot.processor}"
    members = {member.id for member in snapshot.members}
    orphans = [view for view in snapshot.partitions if view.owner and view.owner not in members]
    if not orphans:
        held = sum(view.owner is not None for view in snapshot.partitions)
        return ok(name, f"{held} of {len(snapshot.partitions)} held, each by a member")
    owners = sorted({view.owner or "" for view in orphans})
    return warn(
        name,
        f"{len(orphans)} held by {_some(owners)}, no member any more: partitions {_numbers(orphans)}",
        f"The next worker takes them; nothing is lost. To release them now: streamworker repair {path}",
    )


def of_partitions(snapshot: GroupSnapshot) -> list[Check]:
    """Return a check of each kind of trouble that partitions have, or one that says there is none."""
    name = f"partitions {snapshot.processor}"
    if found := [*_troubles(name, snapshot)]:
        return found
    paused = [view for view in snapshot.partitions if view.pause is not None]
    if not paused:
        return [ok(name, "none halted or held up")]
    first = f"partition {paused[0].partition} {held_up(paused[0], snapshot.taken_ms)}"
    return [ok(name, f"none halted or held up; {len(paused)} paused: {first}")]


def _troubles(name: str, snapshot: GroupSnapshot) -> Iterator[Check]:
    """Tell each kind of trouble, with the first partition that has it."""
    halted = [view for view in snapshot.partitions if view.state == "halted"]
    if halted:
        yield fail(
            name,
            f"{len(halted)} halted: partition {halted[0].partition}: {halted[0].reason}",
            "Correct the function or the record, then run `streamworker retry`: "
            "docs: operations, a halted partition.",
        )
    failing = [view for view in snapshot.partitions if view.retry is not None]
    if failing:
        first = f"partition {failing[0].partition} {held_up(failing[0], snapshot.taken_ms)}"
        yield warn(
            name,
            f"{len(failing)} retrying: {first}",
            "What heals goes on by itself; `streamworker retry` tries now (docs: errors).",
        )
    told = ("halted", "retrying", "unowned", "unknown")
    slow = [v for v in snapshot.partitions if v.reason and v.state not in told and not v.is_next]
    if slow:
        yield warn(
            name,
            f"{len(slow)} held up: partition {slow[0].partition}: {slow[0].reason}",
            "The log of its worker has the stack (docs: operations, a partition that stands still).",
        )
    waiting = [view for view in snapshot.partitions if view.lag and view.state in ("acquiring", "unowned")]
    if waiting and any(member.state == "active" for member in snapshot.members):
        yield warn(
            name,
            f"{len(waiting)} with records and without an owner: {_numbers(waiting)}",
            "A rebalance is under way, or a former owner has not released them: look again, and at `status`.",
        )


async def _outbox(
    backend: Backend, spec: ProcessorSpec, keys: GroupKeys, snapshot: GroupSnapshot, path: str
) -> list[Check]:
    """Tell what waits for other streams, what these have lost, and which of them wait for a person."""
    name, partitions = f"outbox {spec.name}", len(snapshot.all_partitions)
    waiting = counted(snapshot.outbox, "message")
    if not spec.may_send and snapshot.outbox:
        remedy = "Let the processor take a Context until they are gone; a worker forwards them then."
        return [
            warn(name, f"{waiting} wait, and no worker forwards them: the function sends nothing", remedy)
        ]
    if not spec.may_send or not partitions:
        return []
    checks = [
        fail(
            name,
            f"{found.to.in_words} has taken {counted(found.stands.records, 'record')} from partition "
            f"{found.partition}, which has lost some of them and goes on from {found.since.records:,}",
            "Which of its records are there already cannot be told. To go on, and have some twice: "
            f"streamworker repair {path} --accept-targets {spec.name}",
        )
        for found in await find_diverged(backend, keys, partitions)
    ]
    heads = await read_heads(backend, [keys.outbox(p) for p in range(partitions)])
    if times := sum(len(each.lost) for each in heads):
        lost = sum(each.lost_records for each in heads)
        text = f"targets lost {counted(lost, 'record')} that they had confirmed, {times} times"
        checks.append(warn(name, text, "`durability` keeps a failover from losing any (docs: chains)."))
    if not checks and any(each.last for each in heads):
        checks.append(ok(name, f"{waiting} wait"))
    return checks


def _schema(snapshot: GroupSnapshot, key: str, flat: Sequence[bytes], interval_ms: int) -> Check:
    from streamworker.redisio.data.schemas import CURRENT  # loads pyarrow

    name, stored = f"schema of {snapshot.processor}", pairs_of(flat)
    if stored.get(CURRENT) in stored:
        return ok(name, f"{len(stored) - 1} stored")
    if not any(view.epoch for view in snapshot.partitions):
        return ok(name, "not stored yet: the first worker stores it")
    return fail(
        name,
        f"{key} lacks it, so no reader can read the acked log",
        f"A running worker stores its schema within {interval_ms / 1000:g} s: look again, or start one. "
        "Rows of an earlier schema also need a worker of that version.",
    )


def _log(snapshot: GroupSnapshot, path: str, limit: int, kept: str, log_bytes: int) -> Check:
    name = f"log {snapshot.processor}"
    entries = sum(view.acked_length for view in snapshot.partitions)
    most = max((view.acked_length for view in snapshot.partitions), default=0)
    share, size = most / limit, f"{counted(entries, 'entry', 'entries')} of {memory(log_bytes)}"
    text = f"{size}, the fullest partition has {most:,} of {limit:,}"
    verdict: Verdict = "fail" if share >= LOG_FAIL else "warn" if share >= LOG_WARN else "ok"
    if kept and (snapshot.readers or not entries):
        # What was read counts as well, so the entries do not say how far behind the readers are.
        return ok(name, f"{size}, keeps {kept}; readers: {len(snapshot.readers)}")
    if snapshot.readers:
        remedy = "A reader is too slow, or has stopped: see the readers below. At the limit commits wait."
        text += f"; readers: {len(snapshot.readers)}"
        return Check(name, verdict, text, "" if verdict == "ok" else remedy)
    if not entries:
        return ok(name, "empty; no reader has registered")
    return warn(
        name,
        f"nobody reads it: {text}",
        f"Rows go after {kept or 'a day, or at the limit'}. Start its pipeline: streamworker spark {path}. "
        "Or declare forward=False, or another log_retention=.",
    )


def _history(holdings: Holdings) -> Iterator[Check]:
    """Say what retention keeps of each stream and log, and when the memory is full."""
    for each in holdings.held:
        if each.archived is not None:
            yield _archive(each.name, each.archived, holdings)
        if each.is_endless and each.records:
            rate = each.growth(holdings.taken_ms).rate * 86_400
            yield warn(
                f"stream {each.name}: unread",
                f"no group reads it, and no retention ends what it keeps: {memory(each.size)}"
                f"{f', {memory(rate)} more a day' if rate else ''}",
                "Declare its retention, which a worker of the app keeps, or a processor that reads it.",
            )
        elif each.retention:
            since = f", since {local_time(each.oldest_ms)}" if each.oldest_ms else ""
            yield ok(
                f"history of {each.name}", f"{kept(each, holdings.taken_ms)}: {memory(each.size)}{since}"
            )
    told, full_s = memory_forecast(holdings), holdings.full_in_s
    if full_s is None or full_s > FULL_WARN_S:
        yield ok("memory forecast", told)
    else:
        yield warn("memory forecast", told, "Shorten the retention, or raise maxmemory (docs: retention).")


def _archive(name: str, archived: Archived, holdings: Holdings) -> Check:
    """Say whether an archive goes on, and when the memory is full if it does not."""
    now_ms, archive = holdings.taken_ms, archived.archive
    if not (archived.is_late(now_ms) or (archived.waiting and archived.reasons)):
        upto = f"up to {local_time(archived.upto_ms)}" if archived.records else "nothing yet"
        most = objects_a_day(archived.partitions, archive.every_ms)
        only = counted(archived.only, "record")
        return ok(f"archive of {name}", f"{upto}, {only} only there; at most {most:,} files a day")
    why = f"; {_some(archived.reasons, '; ')}" if archived.reasons else ""
    full = memory_forecast(holdings.without_archives)
    since = f", the oldest for {duration(archived.waits_ms(now_ms))}" if archived.oldest_ms else ""
    return warn(
        f"archive of {name}",
        f"{counted(archived.waiting, 'record')} not archived yet{since}{why}. If it stays so: {full}",
        "See `streamworker archive status`, and the log of its worker: the store, its credentials and rights "
        "(docs: archive). Redis keeps all meanwhile.",
    )


def _readers(snapshot: GroupSnapshot, path: str, *, is_archived: bool) -> Iterator[Check]:
    for reader in snapshot.readers:
        name = f"reader {reader.name} of {snapshot.processor}"
        still_ms = snapshot.taken_ms - reader.updated_ms
        text = f"{counted(reader.lag_rows, 'row')} behind, last seen {still_ms // 1000:,} s ago"
        remedy = (
            "Start its pipeline. If it will not come back: "
            f"streamworker repair {path} --forget-reader {shlex.quote(reader.name)}"
        )
        if reader.name == GROUP and is_archived:
            remedy = "Its rows stay in Redis. The workers' log has archive_failed (docs: archive)."
        if failed := failure(reader, snapshot.taken_ms):
            if reader.name != GROUP:
                remedy = "Look at the log of `streamworker spark`; start it again if it has ended."
            yield fail(name, f"{text}; {failed}", remedy)
        elif not reader.updated_ms:
            yield warn(name, "its position cannot be read, so the log is not trimmed", remedy)
        elif still_ms < READER_STILL_MS or not reader.lag_rows:
            yield ok(name, text)
        else:
            yield warn(name, text, remedy)


def _some(texts: Sequence[str], comma: str = ", ") -> str:
    more = f"{comma}and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return comma.join(texts[:SHOWN]) + more


def _numbers(views: Sequence[PartitionView]) -> str:
    return _some([str(view.partition) for view in views])
