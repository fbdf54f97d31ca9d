"""What a processor needs in Redis before its group can work, made where it is missing."""

import pyarrow as pa

from streamworker.processors import ProcessorSpec
from streamworker.redisio import schemas, streams
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys, StreamKeys


async def declare(backend: Backend, spec: ProcessorSpec) -> None:
    """Declare a processor's stream, its group in each partition, and the schema of its rows.

    May be repeated; what is there is compared.

    Raises
    ------
    ConfigurationError
        If what is there is made otherwise.
    BackendError
        Without an answer.
    """
    stream = spec.stream
    keys = GroupKeys(stream.app, stream.name, spec.name)
    await streams.declare(backend, StreamKeys(stream.app, stream.name), stream.partitions, stream.codec)
    await streams.register(backend, keys, stream.partitions, stream.start)
    if spec.forward or spec.uses_columns:
        # The first array makes pyarrow look for pandas, 0.3 s in which nothing else runs:
        # now, and not when partitions wait.
        pa.array([0])
    if spec.forward and spec.output is not None:
        await schemas.declare_schema(backend, keys, spec.output.arrow_schema())
