"""Creates what a processor needs in Redis before its group can work."""

import pyarrow as pa

from streamworker.processors import ProcessorSpec
from streamworker.records.evolution import json_schema
from streamworker.redisio.data import schemas, streams
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend


async def declare(backend: Backend, spec: ProcessorSpec) -> None:
    """Declare a processor's stream, its group in each partition, its targets, and the schema of its rows.

    It may be called again: it compares what exists with what is declared. Other declarations than those of
    the app are refused.
    """
    stream = spec.stream
    keys = GroupKeys(stream.app, stream.name, spec.name)
    schema = json_schema(stream.record)
    await streams.declare(backend, keys, stream.partitions, stream.codec_name, schema=schema)
    await streams.register(backend, keys, stream.partitions, spec.start)
    for target in spec.targets:
        await streams.declare(
            backend, StreamKeys(target.app, target.name), target.partitions, target.codec_name
        )
    if spec.forward or spec.uses_columns:
        # The first array makes pyarrow look for pandas, which blocks for 0.3 s. Do this now, and not
        # when partitions wait.
        pa.array([0])
    if spec.forward and spec.output is not None:
        await schemas.declare_schema(backend, keys, spec.output.arrow_schema())
