"""Creates what a processor needs in Redis before its group can work."""

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from structlog.stdlib import BoundLogger

from streamworker.core.data.archives import GROUP, LOG_COLUMNS, Archive
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.data.retention import Retention
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import ConfigurationError
from streamworker.records.evolution import json_schema
from streamworker.redisio.data import maps, retention, schemas, streams
from streamworker.redisio.data.ackedlog import log_schema
from streamworker.redisio.data.retention import Retentions
from streamworker.redisio.group import following
from streamworker.redisio.group.archiving import archiver_keys
from streamworker.redisio.keys import GroupKeys, StreamKeys, declaration, declared_by
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import ms_of


async def provision_retention(
    backend: Backend, stream: StreamSpec, group: str, of_log: Retention | None, log: BoundLogger, again: bool
) -> None:
    """Store the declared retention of a stream and of a group's acked log, and log what that changes."""
    keys, mine = GroupKeys(stream.app, stream.name, group), Retentions(stream.retention, of_log)
    before = await retention.provision(backend, keys, stream.placement.total, mine, again=again)
    names = (f"stream {keys.stream}", f"acked log of {keys.group}")
    for of, was, now in zip(names, before, mine, strict=True):
        if was and now and was != now and not again:
            log.warning("retention_changed", of=of, before=str(was), now=str(now))


async def provision_unread(backend: Backend, stream: StreamSpec, log: BoundLogger, *, again: bool) -> None:
    """Store the retention of a stream that no processor of the app reads; ``again`` if it may have grown."""
    has_grown = _become(stream, await maps.stored_map(backend, StreamKeys(stream.app, stream.name)))
    if has_grown or not again:
        await provision_retention(backend, stream, stream.name, None, log, again)


def _become(stream: StreamSpec, counts: tuple[int, ...]) -> bool:
    # A failover may have lost the end of a map that this process has read.
    if has_grown := len(counts) > len(stream.placement.counts):
        stream.placement.become(*counts)
    return has_grown


async def _declare(
    backend: Backend, keys: StreamKeys, stream: StreamSpec, schema: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    return await streams.provision(
        backend, keys, stream.declared_partitions, stream.codec_name, schema=schema
    )


async def provision(backend: Backend, spec: ProcessorSpec, log: BoundLogger, *, again: bool = False) -> int:
    """Store a processor's name, stream, retention, group in each partition, targets, and schema of its rows.

    It may be called again: it compares what exists with what is declared. Other declarations than those of
    the app are refused. But of two values of the retention the later counts; ``again`` says that this program
    has declared its value before.

    The result is how many partitions the group is registered in: those of the stream's map, and those that
    follow while it grows.
    """
    stream = spec.stream
    keys = GroupKeys(stream.app, stream.name, spec.name)
    schema = json_schema(stream.record)
    _become(stream, await _declare(backend, keys, stream, schema))
    _, after = await following.read_maps(backend, keys)
    placement = Placement(*max(stream.placement.counts, after, key=len))
    await streams.register(backend, keys, placement, spec.options.start)
    if stream.has_records:
        mine = {declaration("processor", spec.name, stream.name): b""}
        for table in spec.tables:
            mine[declaration("table", table.name, stream.name)] = table.schema().serialize().to_pybytes()
        await streams.store_fields(backend, declared_by(stream.app), mine)
    if stream.archive is not None:
        await streams.store_fields(backend, keys.meta, {"archive": stream.archive.url})
    elif await backend.execute("HEXISTS", archiver_keys(keys).lock(0), "before"):
        # What is archived may be trimmed, and who cannot read it there would skip it.
        raise ConfigurationError(
            f"Stream {stream.name!r} has an archive, which this program does not declare.",
            remedy="Declare archive=; or end the archive: `streamworker repair APP --forget-group archive`.",
        )
    for target in spec.targets:
        _become(target, await _declare(backend, StreamKeys(target.app, target.name), target))
    await provision_retention(backend, stream, spec.name, spec.options.retention_of_log, log, again)
    if spec.forward or spec.uses_columns:
        # The first array makes pyarrow look for pandas, which blocks for 0.3 s. Do this now, and not
        # when partitions wait.
        pa.array([0])
    if spec.forward and spec.output is not None:
        await schemas.provision_schema(backend, keys, log_schema(spec))
    if spec.options.archive_of_log is not None:
        await _provision_log_archive(backend, keys, spec, spec.options.archive_of_log)
    return placement.total


async def _provision_log_archive(
    backend: Backend, keys: GroupKeys, spec: ProcessorSpec, archive: Archive
) -> None:
    """Store where the acked log is archived, and register its archiver as a reader: trimming waits for it."""
    if taken := sorted({*LOG_COLUMNS} & {*log_schema(spec).names}):
        raise ConfigurationError(
            f"The acked log of {spec.name!r} cannot be archived: its rows have a column {taken[0]!r}.",
            remedy="Rename the field: a segment has a column of this name beside those of the rows.",
        )
    url = archive.url if "://" in archive.url else os.path.abspath(archive.url)  # noqa: ASYNC240, PTH100
    field = f"archive:{spec.name}"
    stored = await backend.execute("HGET", keys.meta, field)
    if stored != url.encode():
        await streams.store_fields(backend, keys.meta, {field: url})
    if await backend.execute("HGET", keys.readers, GROUP) is None:
        # Without rows of any partition: nothing of any is trimmed, until some of it is archived.
        new = ReaderPosition({}, {}, ms_of(await backend.execute("TIME")), begins=True)
        await streams.store_fields(backend, keys.readers, {GROUP: new.text()}, again=False)
