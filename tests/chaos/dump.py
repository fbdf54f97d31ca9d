"""What Redis holds at the end of a run, taken with a plain client and kept as JSON.

Nothing of the project is imported: the acked logs are decoded here a second time, from their description in
docs/redis-keys.md, with pyarrow, zlib and msgspec alone.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

Id = tuple[int, int]
PAGE = 1_000


def parse_id(text: str) -> Id:
    ms, _, seq = text.partition("-")
    return int(ms), int(seq or 0)


class Row(NamedTuple):
    producer: str
    key: str
    seq: int
    source: Id
    """The entry that it was made of."""

    def __str__(self) -> str:
        return f"record {self.seq} of {self.producer}"


class Entry(NamedTuple):
    id: Id
    rows: int
    first: Id
    last: Id
    prev: Id
    epoch: int
    owner: str
    values: tuple[Row, ...]
    bad: str = ""
    """What is wrong with its bytes."""

    def __str__(self) -> str:
        return f"entry {self.id[0]}-{self.id[1]} of the log"


@dataclass(frozen=True)
class Part:
    checkpoint: Id
    owner: str
    log: Sequence[Entry]
    dead: Mapping[Id, str]
    """Dead letters: source id to the error."""
    waiting: int = 0
    """Records behind the checkpoint."""
    packed: int = 0
    """Records beyond one an entry that the stream ever got."""
    outbox: int = 0
    """Messages for other streams that are yet to be forwarded."""
    state: Mapping[str, int] = field(default_factory=dict)
    """Numbers that the processor keeps."""
    totals: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """What its table keeps of each key: how many records, and a checksum of their order."""

    @property
    def cuts(self) -> int:
        """Batches that ended within an entry: the next record has the next id, and none began an append."""
        return sum(0 < a.last[1] == b.first[1] - 1 and a.last[0] == b.first[0] for a, b in pairwise(self.log))

    def rows_by_id(self) -> dict[Id, Row]:
        return {row.source: row for entry in self.log for row in entry.values}


@dataclass(frozen=True)
class Dump:
    partitions: Mapping[int, Part]
    members: Sequence[str] = ()
    beats: Sequence[str] = ()
    connections: Sequence[str] = ()
    """Connections of workers that are still there."""
    control: int = 0
    """Messages in the control stream."""
    table: Mapping[int, tuple[int, list[tuple[int, str, str, int]]]] = field(default_factory=dict)
    """Of each partition: rows that Spark committed, and its table: row number, producer, key, seq."""
    others: Mapping[str, "Dump"] = field(default_factory=dict)
    """Of those who take what is passed on, and of the timers of the app, by their groups."""


# -- from Redis ------------------------------------------------------------------------------------

RowOf = Callable[[Mapping[str, Any]], list[Any]]


def _row_of_soak(row: Mapping[str, Any]) -> list[Any]:
    return [row["producer"], row["key"], row["seq"], row["source"]]


def take_dump(
    client: Any,
    *,
    app: str,
    stream: str,
    group: str,
    partitions: int,
    row_of: RowOf = _row_of_soak,
    table: str = "",
) -> dict[str, Any]:
    """Read everything about a group, and its table; ``client`` is redis-py's, with bytes as answers.

    ``row_of`` makes producer, key, seq and source of a row's columns, where those are others.
    """
    tag = f"sw:{{{app}.{stream}:{group}}}:"
    schemas = {
        name: pa.ipc.read_schema(pa.py_buffer(value))
        for name, value in client.hgetall(f"{tag}schemas").items()
        if name != b"current"
    }
    document = client.get(f"{tag}members")
    return {
        "partitions": {
            str(p): _partition(client, f"sw:{{{app}.{stream}.{p}}}:", group, schemas, row_of, table)
            for p in range(partitions)
        },
        "members": _members(document),
        "beats": [name.decode() for name in client.hkeys(f"{tag}beats")],
        "control": client.xlen(f"{tag}control"),
        "connections": [],
    }


def _members(document: bytes | None) -> list[str]:
    if document is None:
        return []
    try:
        return [member["id"] for member in json.loads(document)["members"]]
    except (ValueError, TypeError, KeyError):
        return ["a document that cannot be read"]


def _partition(
    client: Any, prefix: str, group: str, schemas: Mapping[bytes, pa.Schema], row_of: RowOf, table: str
) -> dict[str, Any]:
    lock = {k.decode(): v.decode() for k, v in client.hgetall(f"{prefix}lock:{group}").items()}
    checkpoint = lock.get("checkpoint", "0-0")
    return {
        "checkpoint": checkpoint,
        "owner": lock.get("owner", ""),
        "log": [
            _entry(entry_id.decode(), fields, schemas, row_of)
            for entry_id, fields in _pages(client, f"{prefix}acked:{group}")
        ],
        "dead": {f[b"id"].decode(): f[b"error"].decode() for _, f in _pages(client, f"{prefix}dead:{group}")},
        "waiting": sum(
            _records_behind(entry_id.decode(), fields, checkpoint)
            for entry_id, fields in _pages(client, f"{prefix}events", checkpoint)
        ),
        "packed": int(client.hget(f"{prefix}counts", "extra") or 0),
        "outbox": client.xlen(f"{prefix}outbox:{group}"),
        "state": {
            name.decode(): value
            for name, stored in client.hgetall(f"{prefix}state:{group}").items()
            if name[:1] != b"\0" and isinstance(value := msgspec.msgpack.decode(stored), int)
        },
        "totals": {
            key.decode(): msgspec.msgpack.decode(stored.partition(b" ")[2])
            for key, stored in client.hgetall(f"{prefix}table:{table}").items()
        },
    }


def _pages(client: Any, key: str, after: str = "0-0") -> Any:
    while page := client.xrange(key, f"({after}", "+", PAGE):
        yield from page
        after = page[-1][0].decode()


def _records_behind(entry_id: str, fields: Mapping[bytes, bytes], checkpoint: str) -> int:
    """Return how many records of an entry follow an id; the entry has the id of the last."""
    if b"sw:first" not in fields:
        return 1
    (ms, seq), (at_ms, at_seq) = entry_id.split("-"), checkpoint.split("-")
    return min(int(fields[b"n"]), int(seq) - int(at_seq)) if ms == at_ms else int(fields[b"n"])


def _types_of(kinds: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    for kind in kinds:
        yield kind
        yield from _types_of(kind.field(each).type for each in range(kind.num_fields))


def _dense(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Decode a batch that is stored as numbers and buffers: docs/decisions/0058."""
    types = list(_types_of(schema.types))
    count = 2 * len(types) + sum(kind.num_buffers for kind in types)
    numbers = struct.unpack_from(f"<{count}H", data)
    rows, nulls, sizes = iter(numbers[: 2 * len(types) : 2]), iter(numbers[1 : 2 * len(types) : 2]), []
    at = 2 * count
    for size in numbers[2 * len(types) :]:
        sizes.append(data[at : at + size])
        at += size
    assert at == len(data)
    buffers = iter(sizes)

    def array(kind: pa.DataType) -> pa.Array:
        length, missing = next(rows), next(nulls)
        own = [pa.py_buffer(next(buffers)) for _ in range(kind.num_buffers)]
        children = [array(kind.field(each).type) for each in range(kind.num_fields)]
        validity = own[0] if missing else None
        return pa.Array.from_buffers(kind, length, [validity, *own[1:]], missing, children=children)

    return pa.RecordBatch.from_arrays([array(kind) for kind in schema.types], schema=schema)


def _entry(
    entry_id: str, fields: Mapping[bytes, bytes], schemas: Mapping[bytes, pa.Schema], row_of: RowOf
) -> dict[str, Any]:
    text = {name.decode(): value.decode() for name, value in fields.items() if name != b"batch"}
    values: list[list[Any]] = []
    bad = ""
    data = fields[b"batch"]
    if zlib.crc32(data) != int(text["crc"]):
        bad = "its CRC is wrong"
    else:
        codec, schema = text["codec"], schemas[fields[b"schema"]]
        if codec == "dense":
            batch = _dense(zlib.decompress(data), schema)
        else:
            if codec != "none":
                data = pa.decompress(data, int(text["size"]), codec=codec, asbytes=True)
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
        values = [row_of(row) for row in batch.to_pylist()]
    return {
        **{name: text[name] for name in ("first", "last", "prev", "owner")},
        **{name: int(text[name]) for name in ("rows", "epoch")},
    } | {"id": entry_id, "values": values, "bad": bad}


# -- from a file -----------------------------------------------------------------------------------


def read_dump(path: Path) -> Dump:
    return dump_of(json.loads(path.read_text("utf-8")))


def dump_of(found: Mapping[str, Any]) -> Dump:
    return Dump(
        partitions={int(p): _part_of(part) for p, part in found["partitions"].items()},
        members=found["members"],
        beats=found["beats"],
        connections=found["connections"],
        control=found["control"],
        table={
            int(p): (part["committed"], [tuple(row) for row in part["rows"]])
            for p, part in found.get("table", {}).items()
        },
        others={group: dump_of(its) for group, its in found.get("others", {}).items()},
    )


def _entry_of(e: Mapping[str, Any]) -> Entry:
    first, last, prev = (parse_id(e[name]) for name in ("first", "last", "prev"))
    values = tuple(Row(who, key, seq, parse_id(source)) for who, key, seq, source in e["values"])
    return Entry(parse_id(e["id"]), e["rows"], first, last, prev, e["epoch"], e["owner"], values, e["bad"])


def _part_of(part: Mapping[str, Any]) -> Part:
    return Part(
        checkpoint=parse_id(part["checkpoint"]),
        owner=part["owner"],
        log=[_entry_of(e) for e in part["log"]],
        dead={parse_id(entry_id): error for entry_id, error in part["dead"].items()},
        waiting=part["waiting"],
        packed=part.get("packed", 0),
        outbox=part.get("outbox", 0),
        state=part.get("state", {}),
        totals=part.get("totals", {}),
    )
