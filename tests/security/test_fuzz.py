"""Every decoder of what comes from Redis, fed with random and damaged bytes.

Each answers, or raises one of our errors: never another one, never late, never with more memory than
an entry may take. Whole logs that were forged are read right or not at all. A few seconds by default; ten
minutes, and a million forged logs, by ``pytest -m soak tests/security/test_fuzz.py``.
"""

import contextlib
import itertools
import json
import logging
import random
import resource
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis

from streamworker.core.control import ControlMessage, GroupChanged
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.events import AcquireLocks
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.joining import Applicant, JoinWanted
from streamworker.core.protocols.registry import from_fields
from streamworker.errors import DataLoss, DecodeError, StreamworkerError
from streamworker.records import RecordType
from streamworker.records.codecs import make_decoder
from streamworker.records.entries import Entries
from streamworker.redisio.data import ackedlog, columns, dead, state, streams
from streamworker.redisio.group import control, loads, locks, membership, operations_claim, readers
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys, StreamKeys, map_in
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.spark.source import logs, offsets
from tests.redisio.acked import encoded, stored
from tests.security import forged

EXAMPLES = 1_000
VIEWS = 40
SOAK_S = 200
FORGED_LOGS, FORGED_LOGS_SOAK = 500, 100_000
LATE_S = 2.0
MEMORY_MAX_KIB = 256 * 1024
HUGE = (
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"9" * 19,
    b"9" * 5_000,
    "²".encode(),
    b"[" * 3_000,
    b"\xff\xfe",
)


class Line(msgspec.Struct):
    sku: str
    amount: float | None = None


class Order(msgspec.Struct):
    id: int
    customer: str
    paid: bool = False
    note: bytes | None = None
    lines: list[Line] = []
    tags: dict[str, int] = {}


ORDER = RecordType.of(Order)
RECORD = Order(7, "ann", True, b"x", [Line("a", 1.5), Line("b")], {"k": 1})
BATCH = ORDER.to_arrow([RECORD, RECORD])
MEMBERS = Membership.empty(4, "range").with_member(Member("w1.a", "w1", "host", 1, 5))
WANTED = Applicant(
    id="w2.b", name="w2", host="host", pid=2, joined_ms=6, strategy="range", former=("w2.a",)
).message()
CHANGED = GroupChanged(9, "join", "w1.a", (0, 3))


Make = Callable[[random.Random], Any]
"""Makes one input of a decoder."""


def change(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes, or cut some out, put some in or repeat them."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.randint(0, 12))
        match rng.randrange(5):
            case 0:
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:at] + rng.choice((rng.randbytes(rng.randint(1, 8)), *HUGE)) + data[at:]
            case 3:
                data = data[:at] + data[at:to] * 3 + data[to:]
            case 4:
                data = data[:at] + rng.choice(HUGE) + data[to:]
    return data


def damaged(*whole: bytes) -> Make:
    """Return what damages one of some texts, or now and then makes one of random bytes."""

    def make(rng: random.Random) -> bytes:
        if rng.randrange(10) == 0:
            return rng.randbytes(rng.randint(0, 64))
        return change(rng, rng.choice(whole))

    return make


def damaged_fields(whole: Mapping[bytes, bytes], *only: bytes) -> Make:
    """Return what damages or drops one or two fields, of all or of some."""
    names = list(only) or sorted(whole)

    def make(rng: random.Random) -> dict[bytes, bytes]:
        fields = dict(whole)
        for name in rng.choices(names, k=rng.randint(1, 2)):
            if rng.randrange(8) == 0:
                fields.pop(name, None)
            else:
                fields[name] = change(rng, rng.choice((fields.get(name, b""), *HUGE[:4])))
        return fields

    return make


def damaged_hash(*values: bytes) -> Make:
    name, value = damaged(b"w1.a", b"3", b"last"), damaged(*values)
    return lambda rng: [part for _ in range(rng.randint(1, 3)) for part in (name(rng), value(rng))]


def flat_of(make: Make) -> Make:
    return lambda rng: [part for pair in make(rng).items() for part in pair]


def several(*makes: Make, or_none: bool = False) -> Make:
    return lambda rng: tuple(None if or_none and rng.randrange(9) == 0 else make(rng) for make in makes)


@dataclass(frozen=True)
class Decoder:
    """One decoder, and what it is given."""

    name: str
    make: Make
    call: Callable[[Any], object]


def _with_crc(fields: dict[bytes, bytes], data: bytes) -> dict[bytes, bytes]:
    """Make a damaged batch look whole: an attacker computes its sum, too."""
    fields = dict(fields)
    if data in fields:
        fields[b"crc"] = b"%d" % zlib.crc32(fields[data])
    if b"name" in fields and b"schema" in fields:
        fields[b"name"] = ackedlog._fingerprint(fields[b"schema"]).encode()
    return fields


def _rows(fields: dict[bytes, bytes]) -> list[object]:
    batch = ORDER.fit_arrow(columns.unpacked(_with_crc(fields, b"v")), extra="drop")
    return list(ORDER.from_arrow(batch))


COLUMNS = columns.Packer(BATCH.schema).fields(BATCH, "none")
ACKED = ackedlog.encode_batch(BATCH)
SCHEMAS = {ACKED.schema: BATCH.schema}


def _acked(fields: dict[bytes, bytes]) -> object:
    fields = _with_crc(fields, b"batch")
    ackedlog.entry_rows(EntryId(2, 0), fields)
    return ackedlog.decode_entry(EntryId(2, 0), fields, SCHEMAS).to_pylist()


LINK = {b"rows": b"2", b"prev": b"1-1", b"first": b"2-0", b"last": b"3-1", b"epoch": b"5"}


def _link(fields: dict[bytes, bytes]) -> object:
    return ackedlog.link_of(EntryId(2, 0), fields)


def _message(fields: dict[bytes, bytes]) -> object:
    message = from_fields(control.fields_of([part for pair in fields.items() for part in pair]))
    if isinstance(message, JoinWanted):
        applicant = Applicant.read(message)
        if applicant is not None:
            return MEMBERS.with_members([applicant.member], 7, applicant.former, applicant.strategy)
    return message


def _document(data: bytes) -> object:
    group = Membership.parse(data)
    joined = group.with_member(Member("w9.z", "w9", "host", 9, 9)).without(group.ids[:1])
    return joined.moved(group), joined.body(), joined.expired(10, joined.present_ids[0], 100)


def _offset(data: bytes) -> object:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None  # Spark reads the JSON of its checkpoint.
    return offsets.to_json(offsets.from_json(document))


def _encoded(codec: Any) -> dict[bytes, bytes]:
    encoded = ORDER.encoder(codec)(RECORD)
    return dict(encoded) if isinstance(encoded, Mapping) else {b"v": encoded}


def _bytes_of(message: ControlMessage) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in message.fields().items()}


LOCK = {
    b"owner": b"w1.a", b"epoch": b"5", b"generation": b"4", b"checkpoint": b"3-1", b"entries": b"2",
    b"rows": b"2", b"log": b"n.5", b"since": b"9", b"state": b"halted", b"reason": b"why",
    b"aside": b"7-0 by me",
}  # fmt: skip
LETTER = {b"id": b"3-1", b"error": b"no", b"attempts": b"2", b"at": b"9", b"by": b"w1.a", b"f.v": b"{}"}
READER = ReaderPosition({0: 5, 1: 6}, {0: "n.5", 1: "n.5"}, 9).text().encode()
OFFSET = json.dumps(
    offsets.to_json({0: offsets.Position(5, "n.5", "3-1"), 1: offsets.Position(0, "", "")})
).encode()
DOCUMENT = b'{"generation":7,' + MEMBERS.body().encode()[1:]


DECODERS = (
    *(
        Decoder(f"entry as {codec}", damaged_fields(_encoded(codec)), make_decoder(ORDER, codec))
        for codec in ("json", "msgpack", "fields")
    ),
    Decoder("entry as arrow", damaged_fields(columns.Packer(BATCH.schema).fields(BATCH, "zstd")), _rows),
    Decoder("entry of an acked log", damaged_fields(stored(encoded(BATCH, "lz4"))), _acked),
    Decoder("rows of an entry as arrow", damaged_fields(COLUMNS, b"v"), _rows),
    Decoder("schema of an entry as arrow", damaged_fields(COLUMNS, b"schema"), _rows),
    Decoder("rows of an acked log", damaged_fields(stored(ACKED), b"batch"), _acked),
    Decoder("rows of an acked log, none", damaged_fields(stored(encoded(BATCH, "none")), b"batch"), _acked),
    Decoder("schema", damaged(ackedlog.serialize_schema(BATCH.schema)), ackedlog.deserialize_schema),
    Decoder("membership document", damaged(DOCUMENT), _document),
    Decoder("control message", damaged_fields(_bytes_of(CHANGED)), _message),
    Decoder("wish to join", damaged_fields(_bytes_of(WANTED)), _message),
    Decoder("heartbeats", damaged_hash(b"1700|12|run|300"), membership.read_beats),
    Decoder("positions of readers", damaged_hash(READER), readers.read_readers),
    Decoder("lock", flat_of(damaged_fields(LOCK)), lambda flat: locks.lock_view(flat, 0)),
    Decoder(
        "dead letter",
        flat_of(damaged_fields(LETTER)),
        lambda flat: dead._letter(0, Entries.of([[b"5-0", flat]])[0]),
    ),
    Decoder(
        "ownership entry",
        several(damaged(b"3"), damaged(b"7|1700|1|3-1|w1.a")),
        lambda pair: operations_claim._entry(*pair),
    ),
    Decoder("id", damaged(b"1700000000000-12"), EntryId.parse),
    Decoder("number of partitions", damaged(b"16"), map_in),
    Decoder("offset of Spark", damaged(OFFSET), _offset),
    Decoder(
        "end of a log",
        several(damaged(b"5"), damaged(b"n.5"), damaged(b"3-1"), damaged(b"5 3-1 7"), or_none=True),
        lambda fields: logs._tail(*fields),
    ),
    Decoder("link of an entry to the one before", damaged_fields(LINK, *LINK), _link),
    Decoder("acked log that somebody forged", forged.make, forged.check),
)


def read(decoder: Decoder, data: Any) -> None:
    """Have a decoder read one input; raises what is not an error of ours."""
    try:
        decoder.call(data)
    except StreamworkerError:
        pass
    except BaseException as error:
        error.add_note(f"Decoder {decoder.name!r} was given {data!r}")
        raise


def fuzz(decoder: Decoder, number: int, *, examples: int) -> float:
    """Call a decoder with examples drawn from a seed; return the longest time of one, in seconds.

    Of the processor: others on this machine may keep it waiting. What hangs is ended by pytest.
    """
    rng, longest_s = random.Random(number), 0.0
    for _ in range(examples):
        data = decoder.make(rng)
        started = time.thread_time()
        read(decoder, data)
        longest_s = max(longest_s, time.thread_time() - started)
    return longest_s


@pytest.mark.parametrize("decoder", DECODERS[:-1], ids=lambda decoder: decoder.name)
def test_a_decoder_answers_or_raises_an_error_of_ours(decoder: Decoder) -> None:
    """The same bytes in each run; `-m soak` draws others. Forged logs have a test of their own."""
    assert fuzz(decoder, 1, examples=EXAMPLES) < LATE_S


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 120)
def test_decoders_answer_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a new seed in each round, and within the memory of one entry."""
    # pytest would keep what is said of forged logs: a gigabyte.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    before_kib, until_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic() + SOAK_S
    calls, longest_s = 0, 0.0
    for number in itertools.count(int(time.time())):
        for decoder in DECODERS:
            longest_s = max(longest_s, fuzz(decoder, number, examples=EXAMPLES))
            calls += EXAMPLES
        if time.monotonic() > until_s:
            break
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(f"{calls:,} calls, the longest {longest_s:.3f} s, {grown_kib / 1024:.0f} MiB more")
    assert longest_s < LATE_S
    assert grown_kib < MEMORY_MAX_KIB


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 120)
@pytest.mark.skipif(find_spec("atheris") is None, reason="pip install 'streamworker[fuzz]'")
def test_inputs_that_are_looked_for_find_nothing_in_minutes(tmp_path: Path) -> None:
    """With a new seed in each run."""
    minutes, seed = SOAK_S / 60, int(time.time())
    command = [
        "-m",
        "tests.security.guided",
        f"--minutes={minutes}",
        f"--seed={seed}",
        f"--folder={tmp_path}",
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    print(done.stderr[-500:])
    assert done.returncode == 0, done.stderr[-3_000:]


# -- logs that somebody forged ------------------------------------------------------------------


def read_forged(number: int, count: int) -> Counter[bool]:
    """Read forged logs; return how many had an answer, and how many ended in ``DataLoss``."""
    rng = random.Random(number)
    return Counter(forged.check(forged.make(rng)) for _ in range(count))


@pytest.mark.parametrize(
    "count",
    [
        FORGED_LOGS,
        pytest.param(FORGED_LOGS_SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(6 * SOAK_S)]),
    ],
)
def test_of_forged_logs_nothing_wrong_is_read(count: int) -> None:
    """Many are refused, and those that nobody changed are not; in full with a new seed in each run."""
    seed = 1 if count == FORGED_LOGS else int(time.time())
    found = read_forged(seed, count)
    print(f"seed {seed}: {found[True]:,} logs were read right, {found[False]:,} refused, and none read wrong")
    assert min(found[True], found[False]) > count // 10


@pytest.mark.parametrize("blind", ["misfit", "boundary"])
def test_a_reader_that_does_not_look_at_prev_is_found(monkeypatch: pytest.MonkeyPatch, blind: str) -> None:
    """Neither one that compares no entries, nor one that forgets where the last micro-batch ended."""
    if blind == "misfit":
        monkeypatch.setattr(ackedlog.ChainLink, "misfit", lambda link, before: "")
    else:
        monkeypatch.setattr(logs, "_before", lambda part: None)
    with pytest.raises(AssertionError, match=r"was committed|came twice"):
        read_forged(1, FORGED_LOGS)


# -- what random bytes do not find soon --------------------------------------------------------


def entry_of(batch: pa.RecordBatch) -> dict[bytes, bytes]:
    return columns.Packer(batch.schema).fields(batch, "none")


@pytest.mark.parametrize("kind", [pa.null(), pa.struct([]), pa.list_(pa.null(), 0)], ids=str)
def test_rows_that_take_no_bytes_are_bounded(kind: pa.DataType) -> None:
    """An entry of some hundred bytes would have a worker make two billions of defaults."""
    children = [pa.nulls(0)] if pa.types.is_fixed_size_list(kind) else []
    column = pa.Array.from_buffers(kind, 2**31 - 1, [None], children=children)
    fields = entry_of(pa.RecordBatch.from_arrays([column], names=["unknown"]))
    assert sum(map(len, fields.values())) < 2_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DecodeError, match="declares 2147483647 rows in"):
        columns.unpacked(fields)
    assert pa.total_allocated_bytes() - before < 2**20


@pytest.mark.parametrize("how", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_goes_off(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size that it declares; one that declares too little by what comes out."""
    batch = pa.record_batch({"id": pa.array([0] * 2**20, pa.int64())})
    fields = columns.Packer(batch.schema).fields(batch, how)
    assert len(fields[b"v"]) < len(batch.serialize()) / 20
    for size in (2**40, 2**62, 1_000, 0):
        before = pa.total_allocated_bytes()
        with pytest.raises(DecodeError):
            columns.unpacked({**fields, b"size": b"%d" % size})
        assert pa.total_allocated_bytes() - before < 2**20
    monkeypatch.setattr(ackedlog, "RAW_BYTES_MAX", 1_000)
    with pytest.raises(DecodeError, match="at most 1000 are allowed"):
        columns.unpacked(fields)


def test_a_schema_whose_names_are_no_text_is_refused() -> None:
    """Arrow reads it, and Python would fail at it later, somewhere else."""
    data = ackedlog.serialize_schema(pa.schema([("outer", pa.struct([("inner", pa.int64())]))]))
    for name in (b"outer", b"inner"):
        with pytest.raises(DataLoss, match="cannot be read"):
            ackedlog.deserialize_schema(data.replace(name, b"\xff\xfe\xfd\xfc\xfb"))


def test_types_that_would_run_code_are_refused() -> None:
    """Extension types are classes that somebody registered; pyarrow had one that unpickled."""
    schema = pa.schema([pa.field("a", pa.uuid())]) if hasattr(pa, "uuid") else None
    if schema is None:
        pytest.fail("This pyarrow has no extension type to try.")
    with pytest.raises(DataLoss, match="cannot hold"):
        ackedlog.deserialize_schema(bytes(schema.serialize().to_pybytes()))


@pytest.mark.parametrize(
    "change", [{"strategy": "best"}, {"strategy": []}, {"joined_ms": 1e999}, {"capacity": 1e999}]
)
def test_a_wish_to_join_that_cannot_be_is_not_heard(change: dict[str, Any]) -> None:
    """Whoever may write to a group's control stream must not bring all of its workers down."""
    wish = json.loads(WANTED.applicant)
    message = JoinWanted("w2", json.dumps({**wish, **change}))
    assert Applicant.read(message) is None


GROUP = GroupKeys("shop", "orders", "price")
HASHES = {
    StreamKeys("shop", "orders").meta: {b"partitions": b"2"},
    GROUP.lock(0): LOCK,
    GROUP.beats: {b"w1.a": b"1700|12|run|300"},
    GROUP.loads: {b"w1.a": b"0:3,1:5"},
    GROUP.readers: {b"table": READER},
    GROUP.of_group("claims"): {b"0": b"7|1700|1|3-1|w1.a", b"last": b"7"},
    GROUP.state(0): {b"last": b"\x01"},
    GROUP.schemas: {b"current": ACKED.schema.encode()},
}
STREAMS = {GROUP.control: _bytes_of(CHANGED), GROUP.dead(0): LETTER, GROUP.acked(0): stored(ACKED)}


async def _looked_at(backend: Backend, rng: random.Random) -> int:
    """Look at a group in each way that workers and commands do; return how many of them had an answer."""
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: take_snapshot(backend, "shop", "orders", "price"),
        lambda: loads.read_loads(backend, GROUP),
        lambda: state.read_state(backend, GROUP, 0),
        lambda: dead.list_dead(backend, GROUP, [0, 1]),
        lambda: readers.slowest_rows(backend, GROUP),
        lambda: locks.read_lock(backend, GROUP, 0),
        lambda: membership.read_members(backend, GROUP),
        lambda: membership.heartbeat(backend, [membership.Renewal(GROUP, "w1.a", 1, "run")]),
        lambda: locks.acquire(Access(backend, GROUP, 1_000), AcquireLocks((0, 1), "w1.a", 9, ("w1.a",))),
        lambda: streams.register(backend, GROUP, Placement(2), "earliest"),
    ]
    answered = 0
    for look in rng.sample(looks, len(looks)):
        with contextlib.suppress(StreamworkerError):
            await look()
            answered += 1
    return answered


@pytest.mark.anyio
async def test_a_group_whose_keys_somebody_else_wrote_can_be_looked_at(redis_url: str) -> None:
    """Wrong values and wrong types at each key: what looks answers, or raises an error of ours."""
    rng, answered = random.Random(1), 0
    with redis.Redis.from_url(redis_url) as client:
        async with Backend.open(redis_url, name="fuzz") as backend:
            for _ in range(VIEWS):
                client.flushall()
                client.set(GROUP.members, damaged(DOCUMENT)(rng))
                for key, fields in {**HASHES, **STREAMS}.items():
                    wrong = damaged_fields(fields)(rng) if rng.randrange(3) else dict(fields)
                    if rng.randrange(12) == 0:
                        client.set(key, b"another type")
                    elif wrong and key in HASHES:
                        client.hset(key, mapping=wrong)
                    elif wrong:
                        client.xadd(key, wrong)
                answered += await _looked_at(backend, rng)
    assert 5 * VIEWS < answered < 10 * VIEWS
