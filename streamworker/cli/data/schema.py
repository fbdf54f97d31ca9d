"""``streamworker schema``: says before a deploy what becomes of the records that are stored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import typer

from streamworker.app import App
from streamworker.cli.options import AppPath, AsJson
from streamworker.cli.output import print_found, say
from streamworker.cli.support import ask, group_keys
from streamworker.core.data.placement import Placement
from streamworker.core.text import in_words
from streamworker.declaring.specs import ProcessorSpec, StreamSpec, TableSpec
from streamworker.errors import ConfigurationError, ProcessingError, RecordError, StreamworkerError
from streamworker.importing import resolve_app, with_pipelines
from streamworker.records.entries import REPLAYED_FOR, Entries, readable_fields
from streamworker.records.evolution import changes, json_schema, may_hold
from streamworker.records.statetables import alive
from streamworker.records.types import RecordKind
from streamworker.redisio.data import schemas, streams
from streamworker.redisio.data.ackedlog import log_schema
from streamworker.redisio.data.maps import stored_map
from streamworker.redisio.data.statetables import count_values
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of

app = typer.Typer(no_args_is_help=True, help="Compare record types with what is stored.")

SAMPLE = 20
"""Entries that are decoded from each end of each partition."""

WITHOUT_VALUES = ("Expected ", "Object missing ", "JSON is malformed")
"""How errors of msgspec begin that quote nothing of a record."""


class Finding(NamedTuple):
    """One difference between the program and what is stored."""

    where: str
    what: str
    effect: str
    breaks: bool


@app.callback()
def root() -> None:
    """Keep `check` a word of its own: typer would take a single command for the group."""


@app.command()
def check(path: AppPath, json: AsJson = False) -> None:
    """Compare the program's record types with what is stored, before a deploy.

    It compares record types with those of the workers that ran last, and forwarded rows with the
    acked logs, and decodes stored entries and some values of each table. It changes nothing, and
    ends with an error if a change breaks something.

    \b
    Examples:
      streamworker schema check shop:app
    """
    app = with_pipelines(resolve_app(path))
    found, unknown = ask(app, _check, app)
    nothing, missing = "Every record type is the one that is stored.", ""
    if unknown.issuperset(app.registry.streams):
        missing = f"No worker of {app.name} has stored its record types here yet: "
        nothing = missing = missing + "there is nothing to compare with."
    elif unknown:
        missing = f"No worker has stored those of {', '.join(sorted(unknown))} yet."
        nothing = f"Every record type that is stored is the same. {missing}"
    if missing and (found or json):
        say(missing, error=True)
    facts, rows = [each._asdict() for each in found], [each[:3] for each in found]
    print_found(json, facts, nothing, ("where", "change", "effect"), rows)
    if broken := [each for each in found if each.breaks]:
        verb = "breaks" if len(broken) == 1 else "break"
        raise ConfigurationError(
            f"{len(broken)} of {len(found)} changes {verb} what is stored.",
            remedy="Change the types as the table says, or give what breaks a new name.",
        )


async def _check(backend: Backend, app: App) -> tuple[list[Finding], set[str]]:
    """Return what has changed, and the streams and rows of which there is nothing to compare with."""
    found: list[Finding] = []
    unknown: set[str] = set()
    for stream in app.registry.streams.values():
        stored = await streams.stored_schema(backend, StreamKeys(app.name, stream.spec.name))
        unknown |= set() if stored else {stream.spec.name}
        found += await _stream(backend, stream.spec, stored)
    for spec in app.registry.processors.values():
        if spec.forward and spec.output is not None:
            reading = [each.name for each in app.registry.pipelines.values() if spec.name in each.reads]
            found += await _log(backend, spec, reading)
            if await backend.execute("HGET", group_keys(spec).schemas, schemas.CURRENT) is None:
                unknown.add(f"{spec.name} (rows)")
        for table in spec.tables:
            found += await _table(backend, table)
    return found, unknown


async def _stream(backend: Backend, spec: StreamSpec, stored: Mapping[str, Any]) -> Iterable[Finding]:
    keys = StreamKeys(spec.app, spec.name)
    told = changes(stored, json_schema(spec.record), spec.record.name) if stored else []
    found = [Finding(spec.name, *each) for each in told]
    declared, made = spec.declared_partitions, await stored_map(backend, keys)
    if made and declared not in (made[0], made[-1]):
        effect = f"breaks: workers refuse to start; declare {made[-1]}, or take a new stream"
        found.append(Finding(spec.name, f"partitions: {Placement(*made)} -> {declared}", effect, True))
    bad = await _unreadable(backend, spec, keys, stored)
    for breaks, effect in ((True, "breaks"), (False, "already unreadable")):
        if such := [why for was_readable, why in bad if was_readable is breaks]:
            what = f"{len(such)} of the sampled records cannot be read"
            found.append(Finding(spec.name, what, f"{effect}: {such[0]}", breaks))
    return found


async def _unreadable(
    backend: Backend, spec: StreamSpec, keys: StreamKeys, stored: Mapping[str, Any]
) -> list[tuple[bool, str]]:
    """Return why records at both ends of the partitions cannot be decoded, and whether they could before."""
    if spec.codec == "arrow":
        return []
    decode = spec.record.decoder(spec.codec)
    found: list[tuple[bool, str]] = []
    for partition in spec.placement.all:
        oldest = await backend.execute("XRANGE", keys.events(partition), "-", "+", "COUNT", SAMPLE)
        newest = await backend.execute("XREVRANGE", keys.events(partition), "+", "-", "COUNT", SAMPLE)
        for _, reply in sorted({bytes(each[0]): each for each in (*oldest, *newest)}.items()):
            for entry in Entries.of([reply]):
                if REPLAYED_FOR in entry.fields:
                    continue
                try:
                    decode(readable_fields(entry))
                except RecordError as error:
                    was_readable = _could_be_read(spec, stored, entry.fields)
                    found.append((was_readable, f"{partition}/{entry.id}: {_reason(error)}"))
    return found


def _could_be_read(spec: StreamSpec, stored: Mapping[str, Any], fields: Mapping[bytes, bytes]) -> bool:
    """Return whether the stored type could read an entry; yes where nothing says otherwise."""
    form: Any = {"json": msgspec.json, "msgpack": msgspec.msgpack}.get(spec.codec_name)
    if not stored or form is None:
        return True
    try:
        value = form.decode(fields[streams.PAYLOAD])
    except (KeyError, ValueError):
        return False
    return may_hold(stored, value, stored.get("$defs", {}), spec.record.kind is RecordKind.PYDANTIC)


def _reason(error: StreamworkerError) -> str:
    """Return why a record cannot be read, without its contents: the output of a check is kept by others."""
    cause = error.__cause__
    text = error.message if cause is None else in_words(cause, named=False)
    if cause is None or text.startswith(WITHOUT_VALUES):
        return text
    _, at, path = text.rpartition(" - at `")
    if not at and callable(errors := getattr(cause, "errors", None)):  # pydantic's
        first = errors()[0]
        at, path = (
            ("at", f"{first['loc'][0]}`") if first["loc"] and first["type"] != "extra_forbidden" else ("", "")
        )
    return type(cause).__name__ + (f" at `{path}" if at else "")


async def _log(backend: Backend, spec: ProcessorSpec, pipelines: Sequence[str]) -> list[Finding]:
    told = await schemas.changes_to(backend, group_keys(spec), log_schema(spec))
    readers = f"; its pipelines are {', '.join(pipelines)}" if pipelines else ""
    effect = f"breaks: workers refuse to start, since the acked log holds other rows{readers}"
    return [Finding(f"{spec.name} (rows)", each, effect, True) for each in told]


async def _table(backend: Backend, spec: TableSpec) -> list[Finding]:
    """Say whether some values of each partition can be decoded."""
    keys, partitions = StreamKeys(spec.stream.app, spec.stream.name), spec.stream.placement.all
    bad: list[str] = []
    for partition in partitions:
        _, flat = await backend.execute("HSCAN", keys.table(partition, spec.name), 0, "COUNT", SAMPLE)
        for field, stored in pairs_of(flat).items():
            try:
                spec.form.value_of(field, alive(stored, 0) or b"")
            except ProcessingError as error:
                bad.append(_reason(error))
    if not bad:
        return []
    count = sum((await count_values(backend, keys, {spec.name: spec.lifetime}, partitions)).values())
    what = f"{len(bad)} of the sampled values cannot be read"
    return [Finding(spec.name, what, f"breaks: {count:,} stored values; {bad[0]}", True)]
