"""The protocols that keep something of their own in Redis: their operations, scripts and keys, as tables."""

from streamworker.core.events import Effect
from streamworker.redisio import keys, scripts
from streamworker.redisio.group import operations_claim, operations_lease
from streamworker.redisio.group.operation import Operation

OPERATIONS: dict[type[Effect], Operation] = {**operations_claim.OPERATIONS, **operations_lease.OPERATIONS}
SCRIPTS = (*scripts.SHARED, *operations_claim.SCRIPTS, *operations_lease.SCRIPTS)
"""All scripts."""
HASHES = (operations_claim.CLAIMS, operations_lease.GRAB, operations_lease.ALLOCATION)
"""The keys of a group that only one protocol has, see ``GroupKeys.of_group``; each is a hash."""
KEY_TABLE: tuple[keys.KeyRow, ...] = (*keys.SHARED, *operations_claim.KEYS, *operations_lease.KEYS)
"""All keys: the source of docs/redis-keys.md."""
