"""What Spark calls with each micro-batch whose rows go into a stream, and what programs make of it."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from streamworker.core.words import counted
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, DataLoss, RecordError
from streamworker.redisio.keys import check_name
from streamworker.runtime.connecting import connected
from streamworker.settings import Settings
from streamworker.spark.into.encoding import Encoder, each_headers
from streamworker.spark.into.points import NONCE, Decision, Stands
from streamworker.spark.into.publishing import Publisher
from streamworker.spark.into.staging import Done, Stages
from streamworker.spark.sinks.running import now_running
from streamworker.spark.source.connection import DEFAULT_NAME, resolve
from streamworker.spark.source.table import PLANNED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streamworker.declaring.stream import Stream

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS = 2
AT_ONCE = 300
"""Rows that ``send_rows`` has in flight."""


class StreamSink:
    """A ``foreachBatch`` function that sends each row of a micro-batch to a stream once.

    ``name`` is under what the stream's partitions keep where they stand: another sink needs another one.
    ``plans`` is where Spark keeps the plans of its batches, if that is known.
    """

    def __init__(self, spec: StreamSpec, settings: Settings, name: str, folder: str, plans: str = "") -> None:
        self._spec, self._settings, self._name = spec, settings, name
        self._folder, self._plans = folder, plans

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to a Spark Connect server without the URL of Redis: its environment has its own."""
        return _there, (self._spec, own_settings(self._settings), self._name, self._folder, self._plans)

    def __call__(self, result: Any, batch: int) -> None:
        """Send the rows of ``result`` (a DataFrame); do nothing if that was done before a crash."""
        stages = Stages(self._folder, self._plans)
        done = stages.done()
        if batch < done.batch:
            raise DataLoss(
                f"Pipeline {self._name!r} has sent batch {done.batch} to stream {self._spec.name!r}, and "
                f"Spark plans batch {batch}: its checkpoint directory is another one, or an older copy.",
                remedy="Nothing was sent. Restore it; or give the pipeline a new name, with startingOffsets "
                "for the rows that it is to send.",
            )
        if batch == done.batch:
            return
        try:
            nonce = ""
            if stages.decided(batch) is None:
                self._run(stages, Publisher.declare)  # Rows that cannot be sent are not staged.
                nonce = stages.stage(result, batch)
            self._run(stages, partial(self._publish, stages, batch, nonce))
        except (DataLoss, FileNotFoundError):
            if stages.done().batch < batch:
                raise
            log.info("pipeline %s: another driver has sent batch %d", self._name, batch)

    async def _publish(self, stages: Stages, batch: int, nonce: str, publisher: Publisher) -> None:
        """Publish the rows that were staged under a nonce, or those that were decided before."""
        await publisher.declare()
        decision, chunks = stages.decided(batch), None
        if decision is None:
            done = stages.done()
            staged = self._decision(batch, nonce, done.stands)
            try:
                chunks = publisher.encoded(staged)
            except RecordError as error:
                stages.drop(staged.rows)
                raise RecordError(
                    f"Pipeline {self._name!r} has a row for stream {self._spec.name!r} that does not fit. "
                    f"{error.message} Nothing of this micro-batch was sent.",
                    remedy=error.remedy,
                ) from None
            if chunks == [] or batch <= done.batch:  # Another driver has sent it, and forgotten it since.
                stages.drop(staged.rows)
                return
            decision = stages.decide(staged)
            chunks = chunks if decision is staged else None
        stages.mark(Done(batch, await publisher.publish(decision, chunks)))

    def begin(self, result: Any, planned: int | None = None) -> None:
        """Refuse columns that do not fit, and a stream that is not where this query left it.

        ``planned`` is the last batch that Spark has planned. Nothing is written.
        """
        check_columns(self._spec, result)
        stages = Stages(self._folder, self._plans)
        done = stages.done()
        if planned is not None and planned < done.batch:
            raise ConfigurationError(
                f"Pipeline {self._name!r} has sent batch {done.batch} to stream {self._spec.name!r}, and its "
                f"checkpoint directory has planned batch {planned} last: it was lost, or is an older copy.",
                remedy="Restore the checkpoint directory as a whole; or give the pipeline a new name.",
            )
        known = stages.up_to()
        if not known or known[-1].batch <= done.batch:  # The next batch is not decided.
            known.append(self._decision(done.batch + 1, "-" * NONCE, done.stands))

        async def look(publisher: Publisher) -> None:
            publisher.located(known, await publisher.stands())

        try:
            self._run(stages, look)
        except DataLoss as error:
            raise ConfigurationError(error.message, remedy=error.remedy) from None

    def _decision(self, batch: int, nonce: str, begins: Stands) -> Decision:
        counts, now_ms = self._spec.placement.counts, time.time_ns() // 10**6
        return Decision(batch=batch, nonce=nonce, counts=counts, begins=begins, at_ms=now_ms)

    def _run(self, stages: Stages, work: Callable[[Publisher], Awaitable[None]]) -> None:
        async def run() -> None:
            settings, spec = self._settings, self._spec
            backend = connected(settings, f"{spec.app}:spark", CONNECTIONS)
            try:
                await work(Publisher(backend, spec, settings, self._name, stages))
            finally:
                await backend.aclose()

        run_apart(run())


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own: a notebook's thread has an event loop that runs."""
    with ThreadPoolExecutor(1, "streamworker-into") as own:
        return own.submit(asyncio.run, work).result()


def own_settings(settings: Settings) -> dict[str, Any]:
    """Return what the sink needs of an app's settings elsewhere: all but where Redis is."""
    names = ("durability", "durability_replicas", "durability_timeout_ms", "entry_bytes_max")
    return {name: getattr(settings, name) for name in names}


def _settings_there(own: dict[str, Any]) -> Settings:
    """Return settings where Spark calls the sink: with the URL of the default connection of this process."""
    return Settings.from_env(redis_url=resolve(DEFAULT_NAME), **own)


def _there(spec: StreamSpec, own: dict[str, Any], *given: str) -> StreamSink:
    return StreamSink(spec, _settings_there(own), *given)


def check_columns(spec: StreamSpec, result: Any) -> None:
    """Refuse a result whose columns are not those of a stream's records."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        schema = to_arrow_schema(result.schema.toNullable(), timezone="UTC")
    except PySparkException as error:
        raise ConfigurationError(
            f"The result for stream {spec.name!r} has a column of a type that no record has: {error}",
            remedy="Cast it in the function.",
        ) from None
    Encoder(spec, 0).check(schema)


class IntoStream:
    """Sends batches of rows to a stream, each row once; :func:`into_stream` makes it."""

    def __init__(self, spec: StreamSpec, settings: Settings, name: str | None, stage: str | None) -> None:
        self._spec, self._settings, self._name, self._stage = spec, settings, name, stage

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as :class:`StreamSink` does."""
        return _into_there, (self._spec, own_settings(self._settings), self._name, self._stage)

    def __call__(self, rows: "DataFrame", query: str, batch: int) -> None:
        """Send the rows of one micro-batch; ``query`` and ``batch`` name it in all attempts."""
        pipeline = now_running()
        name, stage = self._name or query, self._stage
        if pipeline is not None:
            name = f"{pipeline.name}/{self._name}" if self._name else pipeline.name
        plans = f"{pipeline.checkpoint}/{PLANNED}" if pipeline and stage is None else ""
        if stage is None:
            if pipeline is None:
                raise ConfigurationError(
                    f"into_stream({self._spec.name}) is called outside a pipeline, and has no stage=.",
                    remedy="Give it stage=, a directory that stays: it keeps what was decided of each batch.",
                )
            stage = f"{pipeline.checkpoint}/into"
        if pipeline is not None:
            pipeline.use(f"{self._spec.name}/{name}")
        check_columns(self._spec, rows)
        folder = f"{stage}/{self._spec.name}" + (f"/named/{self._name}" if self._name else "")
        StreamSink(self._spec, self._settings, name, folder, plans)(rows, batch)


def _into_there(spec: StreamSpec, own: dict[str, Any], name: str | None, stage: str | None) -> IntoStream:
    return IntoStream(spec, _settings_there(own), name, stage)


def into_stream(stream: "Stream[Any]", *, name: str | None = None, stage: str | None = None) -> IntoStream:
    """Return a function for ``write=`` that sends rows to a stream, each once (docs: into-a-stream).

    A pipeline that sends all of its rows to one stream says ``into=`` instead. Every batch is staged first:
    one that is repeated after a crash sends what was not sent yet. The rows of a partition keep their order.

    Parameters
    ----------
    stream
        Where the rows go. Their columns are the fields of its records, and ``_headers`` if rows have headers.
    name
        Under what the stream remembers what it took; the name of the pipeline if None. Two that send to one
        stream need two names.
    stage
        A directory for the staged rows, which must outlive crashes; beside the checkpoint of the pipeline if
        None. A query of your own needs one.

    Raises
    ------
    ConfigurationError
        When it is called: if the columns do not fit, or two have one name.
    RecordError
        When it is called: if a value does not fit. Nothing of the batch is sent then.
    DataLoss
        When it is called: if the stream is not where the pipeline left it.
    StreamFull
        When it is called: if a partition has no room. The pipeline waits and begins the batch again.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App
    >>> class Alert(msgspec.Struct):
    ...     customer: str
    >>> alerts = App("shop").stream("alerts", Alert, key="customer")
    >>> send = into_stream(alerts)
    >>> def write(rows, query, batch):  # @app.pipeline(price, write=write)
    ...     send(rows.where("total > 1000").select("customer"), query, batch)
    """
    if stage is not None and "://" not in stage.removeprefix("file://"):
        stage = str(Path(re.sub("^file:(//)?", "", stage)).absolute())
    return IntoStream(stream.spec, stream.app.settings, name and check_name("sink", name), stage)


def send_rows(rows: "DataFrame", stream: "Stream[Any]", *, id: str) -> int:
    """Send the rows of a DataFrame to a stream by ``send(id=)``; return how many were not there yet.

    For a DataFrame that is no stream of micro-batches. The rows pass through the driver one after the other:
    some thousand a second, and about 300 bytes of Redis for each id, as long as the stream's ``id_window``.
    A call that is repeated within that time sends what is missing. A pipeline needs none of this: ``into=``.

    Parameters
    ----------
    rows
        Its columns are the fields of the stream's records, and ``id``.
    stream
        Where they go.
    id
        The column that names each row: the same one in each attempt, whatever Spark does. It may be a field.

    Raises
    ------
    ConfigurationError
        If the columns do not fit.
    RecordError
        If a value does not fit; the rows before it may have been sent.

    Examples
    --------
    >>> def nightly(spark, alerts):
    ...     found = spark.read.parquet("lake/suspects").select("customer", "reason", "case_id")
    ...     return send_rows(found, alerts, id="case_id")
    """
    names, spec = rows.columns, stream.spec
    if id not in names:
        raise ConfigurationError(
            f"The DataFrame has no column {id!r}.", remedy=f"It has: {', '.join(names)}."
        )
    dropped = [] if id in spec.record.fields else [id]
    check_columns(spec, rows.drop(*dropped))
    table, encoder = rows.toArrow(), Encoder(spec, 0)
    if table[id].null_count:
        raise RecordError(
            f"{counted(table[id].null_count, 'row')} of the DataFrame have no {id!r}.",
            remedy="Give each row an id of its own, the same in each attempt.",
        )

    async def send() -> int:
        new = 0
        async with stream.app:
            for batch in table.to_batches(max_chunksize=AT_ONCE):
                ids = batch.column(id).cast(pa.string()).to_pylist()
                fitting, headers = encoder.fit(batch.drop_columns(dropped))
                each = zip(spec.record.from_arrow(fitting), ids, each_headers(headers, len(ids)), strict=True)
                sends = (stream.send(one, id=name, headers=head) for one, name, head in each)
                new += sum(not sent.duplicate for sent in await asyncio.gather(*sends))
        return new

    return run_apart(send())
