"""What Spark calls with each micro-batch whose rows go into a stream, and what programs make of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, DataLoss, RecordError
from streamworker.redisio.keys import check_name
from streamworker.runtime.connecting import connected
from streamworker.settings import Settings
from streamworker.spark.into.encoding import Encoder
from streamworker.spark.into.points import NONCE, Decision, Stands
from streamworker.spark.into.publishing import Publisher
from streamworker.spark.into.staging import Done, Stages
from streamworker.spark.sinks.running import now_running
from streamworker.spark.source.connection import DEFAULT_NAME, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streamworker.declaring.stream import Stream

CONNECTIONS = 2
AT_ONCE = 300
"""Rows that ``send_rows`` has in flight."""


class StreamSink:
    """A ``foreachBatch`` function that sends each row of a micro-batch to a stream once.

    ``name`` is under what the stream's partitions keep where they stand: another sink needs another one.
    """

    def __init__(self, spec: StreamSpec, settings: Settings, name: str, folder: str) -> None:
        self._spec, self._settings, self._name, self._folder = spec, settings, name, folder

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to a Spark Connect server without the URL of Redis: its environment has its own."""
        own = {"durability", "durability_replicas", "durability_timeout_ms", "entry_bytes_max"}
        return _there, (
            self._spec,
            {each: getattr(self._settings, each) for each in own},
            self._name,
            self._folder,
        )

    def __call__(self, result: Any, batch: int) -> None:
        """Send the rows of ``result`` (a DataFrame); do nothing if that was done before a crash."""
        stages = Stages(self._folder)
        if batch > stages.done().batch:
            nonce = "" if stages.decided(batch) else stages.stage(result, batch)
            self._run(stages, partial(self._publish, stages, batch, nonce))

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

    def begin(self, result: Any) -> None:
        """Refuse columns that do not fit, and a stream that is not where this query left it.

        Nothing is written.
        """
        check_columns(self._spec, result)
        stages = Stages(self._folder)
        done = stages.done()
        known = stages.up_to(done.batch + 1)
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

        asyncio.run(run())


def _there(spec: StreamSpec, own: dict[str, Any], name: str, folder: str) -> StreamSink:
    """Make a sink where Spark calls it: with the URL that this process has for the default connection."""
    return StreamSink(spec, Settings.from_env(redis_url=resolve(DEFAULT_NAME), **own), name, folder)


def check_columns(spec: StreamSpec, result: Any) -> None:
    """Refuse a result whose columns are not those of a stream's records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    Encoder(spec, 0).check(to_arrow_schema(result.schema.toNullable(), timezone="UTC"))


class IntoStream:
    """Sends batches of rows to a stream, each row once; :func:`into_stream` makes it."""

    def __init__(self, stream: "Stream[Any]", name: str | None, stage: str | None) -> None:
        self._spec, self._settings = stream.spec, stream.app.settings
        self._name, self._stage = name, stage

    def __call__(self, rows: "DataFrame", query: str, batch: int) -> None:
        """Send the rows of one micro-batch; ``query`` and ``batch`` name it in all attempts."""
        pipeline = now_running()
        name, stage = self._name or query, self._stage
        if pipeline is not None:
            name = f"{pipeline.name}/{self._name}" if self._name else pipeline.name
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
        StreamSink(self._spec, self._settings, name, f"{stage}/{self._spec.name}/{name}")(rows, batch)


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
    return IntoStream(stream, name and check_name("sink", name), stage)


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
    names = rows.columns
    if id not in names:
        raise ConfigurationError(
            f"The DataFrame has no column {id!r}.", remedy=f"It has: {', '.join(names)}."
        )
    record = stream.spec.record
    dropped = [] if id in record.fields else [id]
    check_columns(stream.spec, rows.drop(*dropped))
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema.toNullable(), timezone="UTC")

    async def send() -> int:
        sent, each = 0, (row.asDict(recursive=True) for row in rows.toLocalIterator())
        async with stream.app:
            while part := list(islice(each, AT_ONCE)):
                batch = pa.RecordBatch.from_pylist(part, schema=schema)
                ids = batch.column(id).cast(pa.string()).to_pylist()
                records = record.from_arrow(record.fit_arrow(batch.drop_columns(dropped)))
                done = await asyncio.gather(
                    *(stream.send(one, id=name) for one, name in zip(records, ids, strict=True))
                )
                sent += sum(not each.duplicate for each in done)
        return sent

    return asyncio.run(send())
