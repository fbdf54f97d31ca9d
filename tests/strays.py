"""I8 after each test on a real server: its keys are those of docs/redis-keys.md, and expire as it says."""

import re
from typing import Any

from streamworker.redisio.group.operations import KEY_TABLE
from streamworker.redisio.keys import KeyRow

NO_EXPIRY, GONE = -1, -2
"""What ``TTL`` answers for keys without an end, and for keys that are not there."""


def _pattern(row: KeyRow) -> str:
    tag, _, kind = row.key.partition("}:")
    names = r"[^{}:]+:[^{}:]+" if ":GROUP" in tag else r"[^{}:]+"
    return rf"sw:\{{{names}\}}:{re.sub('[A-Z]+', '[^:]+', kind)}"


_LASTING = re.compile("|".join(_pattern(row) for row in KEY_TABLE if "expires" not in row.type))
_EXPIRING = re.compile("|".join(_pattern(row) for row in KEY_TABLE if "expires" in row.type))


def strays(client: Any) -> list[str]:
    """Return our keys that the table does not name, or that expire as it does not say; with their ``TTL``."""
    keys = [key.decode("utf-8", "replace") for key in client.scan_iter(match="sw:*", count=1_000)]
    with client.pipeline(transaction=False) as asked:
        for key in keys:
            asked.ttl(key)
        left = zip(keys, asked.execute() if keys else [], strict=True)
    unknown = [(key, ttl) for key, ttl in left if ttl != GONE and not _is_known(key, ttl)]
    return [f"{key} ({ttl})" for key, ttl in unknown if not _was_planted(client, key)]


def _is_known(key: str, ttl: int) -> bool:
    return bool((_LASTING if ttl == NO_EXPIRY else _EXPIRING).fullmatch(key))


def _was_planted(client: Any, key: str) -> bool:
    """Whether a test put a value of another type in the place of a string that expires."""
    return bool(_EXPIRING.fullmatch(key)) and client.type(key) != b"string"
