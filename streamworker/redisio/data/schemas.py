"""The Arrow schemas of an acked log, stored once per group under their fingerprints.

Each entry of the log names the fingerprint of its schema. ``current`` names the newest schema, which
readers present; they fill the missing columns of entries with an older schema with nulls.
"""

import pyarrow as pa

from streamworker.errors import ConfigurationError
from streamworker.records.arrow import schema_changes
from streamworker.redisio.data.ackedlog import deserialize_schema, schema_fingerprint, serialize_schema
from streamworker.redisio.data.streams import store_fields
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of

CURRENT = b"current"


async def provision_schema(
    backend: Backend, keys: GroupKeys, schema: pa.Schema, *, again: bool = False
) -> None:
    """Store the schema that a processor forwards; refuse one that readers cannot handle.

    With ``again`` the log already holds rows of the schema, so a missing schema is stored even if the
    current one is newer.
    """
    fingerprint = schema_fingerprint(schema)
    current, known = await backend.execute("HMGET", keys.schemas, CURRENT, fingerprint)
    if known is not None and current is not None:
        # The schema is current, or it is an older one of a worker that restarts with the last release
        # during a rolling update. Readers fill its rows with nulls; the newest schema stays current.
        return
    changes = await changes_to(backend, keys, schema)
    if changes and not again:
        raise ConfigurationError(
            f"Processor {keys.group!r} forwards rows of another schema than its acked log holds: "
            f"{'; '.join(changes)}.",
            remedy="Add new fields as Optional and keep the others, or give the processor a new name.",
        )
    newest = {} if changes else {CURRENT.decode(): fingerprint}
    await store_fields(backend, keys.schemas, {fingerprint: serialize_schema(schema), **newest})


async def stored_schemas(backend: Backend, keys: GroupKeys) -> dict[str, pa.Schema]:
    """Return all schemas of an acked log, by their fingerprints."""
    stored = pairs_of(await backend.execute("HGETALL", keys.schemas))
    return {name.decode(): deserialize_schema(value) for name, value in stored.items() if name != CURRENT}


async def changes_to(backend: Backend, keys: GroupKeys, schema: pa.Schema) -> list[str]:
    """Return what differs from the current schema of an acked log such that its readers refuse it."""
    current = await backend.execute("HGET", keys.schemas, CURRENT)
    stored = await backend.execute("HGET", keys.schemas, current) if current is not None else None
    return [] if stored is None else schema_changes(deserialize_schema(stored), schema)
