"""The Arrow schemas of an acked log, stored once a group under their fingerprints.

Every entry of the log names its schema's fingerprint. ``current`` names the newest, which is what
readers present; entries of an older one are filled up with nulls.
"""

import pyarrow as pa

from streamworker.errors import ConfigurationError
from streamworker.records import schema_changes
from streamworker.redisio.ackedlog import deserialize_schema, schema_fingerprint, serialize_schema
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys

CURRENT = b"current"


async def declare_schema(backend: Backend, keys: GroupKeys, schema: pa.Schema) -> None:
    """Store the schema that a processor forwards; refuse one that readers could not follow.

    Raises
    ------
    ConfigurationError
        If the log holds rows of a schema that this one does not extend.
    """
    fingerprint = schema_fingerprint(schema)
    current, known = await backend.execute("HMGET", keys.schemas, CURRENT, fingerprint)
    if known is not None:
        # Current, or an older one: a worker of the last release that starts again in the middle of
        # a rolling update. Readers fill its rows up; the newest stays current.
        return
    stored = await backend.execute("HGET", keys.schemas, current) if current is not None else None
    if stored is not None:
        changes = schema_changes(deserialize_schema(stored), schema)
        if changes:
            raise ConfigurationError(
                f"Processor {keys.group!r} forwards rows of another schema than its acked log holds: "
                f"{'; '.join(changes)}.",
                remedy="Add new fields as Optional and keep the others, or give the processor a new name.",
            )
    await backend.execute("HSET", keys.schemas, fingerprint, serialize_schema(schema), CURRENT, fingerprint)
