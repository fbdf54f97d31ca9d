"""What must hold in the acked logs of every scene, whatever was done to workers and servers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.redisio.data.ackedlog import decode_entry, deserialize_schema
from streamworker.redisio.keys import GroupKeys

Row = Mapping[str, Any]
"""Of a scene's app: ``n`` grows with each record that is sent, and ``key`` is what it is ordered by."""


class LogEntry(NamedTuple):
    """One entry of an acked log."""

    id: EntryId
    fields: Mapping[bytes, bytes]
    rows: list[dict[str, Any]]


def schemas_of(stored: Mapping[Any, Any]) -> dict[str, pa.Schema]:
    """Return what a group's hash of schemas holds, by fingerprint."""
    return {name.decode(): deserialize_schema(value) for name, value in stored.items() if name != b"current"}


def read_logs(client: Any, keys: GroupKeys, partitions: int) -> dict[int, list[LogEntry]]:
    """Return the entries of each partition's acked log; the client's replies are bytes."""
    schemas = schemas_of(client.hgetall(keys.schemas))
    return {
        p: [
            LogEntry(EntryId.parse(name), fields, decode_entry(name, fields, schemas).to_pylist())
            for name, fields in client.xrange(keys.acked(p))
        ]
        for p in range(partitions)
    }


def check_chain(where: str, entries: Iterable[tuple[EntryId, Mapping[bytes, bytes]]]) -> None:
    """Each entry follows the one before it, epochs only grow, and each has one owner.

    Commits without rows (dead letters alone) add no entry, and move the checkpoint.
    """
    owners: dict[int, bytes] = {}
    epoch, rows, last = 0, 0, ZERO
    for entry_id, fields in entries:
        at = f"{where}, entry {entry_id}"
        before, epoch = epoch, int(fields[b"epoch"])
        assert epoch >= before, f"{at}: epoch {epoch} after {before}"
        assert owners.setdefault(epoch, fields[b"owner"]) == fields[b"owner"], f"{at}: two owners of an epoch"
        rows += int(fields[b"rows"])
        assert entry_id.ms == rows, f"{at}: {rows - int(fields[b'rows'])} rows were before it"
        previous = EntryId.parse(fields[b"prev"])
        assert previous >= last, f"{at}: begins before {last}"
        assert EntryId.parse(fields[b"first"]) > previous, f"{at}: begins with what was committed"
        last = EntryId.parse(fields[b"last"])
        assert last >= EntryId.parse(fields[b"first"]), f"{at}: ends before it begins"


def check_rows(logs: Iterable[Iterable[Row]]) -> set[int]:
    """Nothing is in the logs twice, and each key is in the order in which it was sent.

    Returns the numbers that are there.
    """
    newest: dict[str, int] = {}
    times: Counter[int] = Counter()
    for rows in logs:
        for row in rows:
            number, key = row["n"], row["key"]
            times[number] += 1
            before, newest[key] = newest.get(key, -1), number
            assert number > before, f"key {key} went back to {number}"
    twice = sorted(number for number, count in times.items() if count > 1)
    assert not twice, f"in the acked log twice: {twice[:20]}"
    return set(times)
