"""What each key in Redis holds, for docs/redis-keys.md; the keys are those of `KEY_TABLE`."""

HOLDS = {
    "sw:{app.stream}:stream": (
        "How the stream is declared: app, stream, partitions, codec, created_at (ms); schema, the JSON Schema "
        "of its records in the workers that ran last; if declared `retention`, and `retention:GROUP` of a "
        "group's acked log; `source NAME`, how far a stream of other programs was taken in."
    ),
    "sw:{app.stream.P}:events": (
        "Entries of partition P: field `v` is the payload and `h.<name>` are headers; or plain fields; or "
        "many records, see below. "
        "Before them, `sw:replayed-for` names the group of a dead letter that was replayed."
    ),
    "sw:{app.stream.P}:producer:ID": (
        "Number and last entry id of each of the producer's last two sends, so that a repeated send "
        "writes nothing; and for each of them the number of a confirmed one before it."
    ),
    "sw:{app.stream.P}:seen:ID": (
        "Of a record that was sent with an id: the id of its entry, and a name of the call that sent it; with an `id_window` below an hour also when it "
        "ends, and the calls of windows before. ID is "
        "a hash of the record's key and id."
    ),
    "sw:{app.stream.P}:later": "Scheduled records: a hash of key and id to the time (ms) at which it is due, or forgotten.",
    "sw:{app.stream.P}:delayed": (
        "The same hash to the scheduled record, and whether it waits, was sent, or was cancelled."
    ),
    "sw:{app.stream.P}:counts": (
        "If entries hold many records, how many these are beyond one an entry: `extra` those ever added, "
        "`before` those of entries that were trimmed, `folded` those that the stream's own `entries-added` "
        "includes; `chosen`, the last id that the append script chose. With retention `retained`, the records "
        "that stay although all groups have passed them, and `oldest`, the time of the first (ms)."
    ),
    "sw:{app.stream.P}:taken": (
        "`STREAM/PARTITION/PROCESSOR` that sends to this partition to how much it has taken of that: the number "
        "of records, and a digest of all of them."
    ),
    "sw:{app.stream.P}:groups": (
        "Name of each group whose lock trimming asks, to the number of entries that others had deleted "
        "when its count was last compared with the stream; `#trimmed` counts the entries that trimming "
        "dropped."
    ),
    "sw:{app.stream.P}:lock:GROUP": (
        "owner, epoch, generation, checkpoint, entries, rows, log, since, state, reason; tail, the last "
        "entry of the log by rows, source id and epoch; gone, where others deleted entries before the "
        "group had committed them; with retention of the log dropped, its rows that went, and oldest, the "
        "time of its first (ms); reset, the epoch at which the checkpoint was last moved by hand; "
        "ordered, the version of the operators' requests, and obeyed, the version that the last acquisition "
        "returned; from_epoch, the epoch at which the owner acquired it; paused_at, paused_by, paused_why while an "
        "operator's pause stands; aside, a line for each record to set aside; "
        "retry, the failed attempts of a record that is tried again, with the times of the first and the next; "
        "tries, attempts at records that owners go on counting, with 'alone' while a record is called alone; deaths, "
        "a checkpoint at which an owner died, and how many died in a row in the call of the record behind it; "
        "tick:TIMER, behind a byte 0, the planned time up to which a timer is done (ms), for viewers; "
        "wanted_since, wanted_at, wanted_in while somebody waits for it. Never expires."
    ),
    "sw:{app.stream.P}:acked:GROUP": "The acked log: one Arrow record batch an entry, whose id is the rows of the log up to it.",
    "sw:{app.stream.P}:copy:GROUP": (
        "During a repair of an acked log that another program wrote to: a copy of what is committed in "
        "it, which takes its place."
    ),
    "sw:{app.stream.P}:dead:GROUP": "Dead letters: id, error, attempts, the end of the traceback, at (ms), by, and the entry's own fields as `f.<name>`.",
    "sw:{app.stream.P}:state:GROUP": "Keyed state that the processor saved with its commits; and, under names that "
    "begin with a zero byte, up to which planned time each timer is done, its last call, and calls asked for.",
    "sw:{app.stream.P}:table:TABLE": (
        "Values of a table, by the canonical bytes of their key: expiry (ms; empty for none), a space, for a "
        "key of several parts the letters of their types, MessagePack."
    ),
    "sw:{app.stream.P}:expiry:TABLE": "The same keys by their expiry, of those that have one.",
    "sw:{app.stream.P}:outbox:GROUP": (
        "Messages for other streams: to (`STREAM/PARTITION`), since and through (where that partition must "
        "stand, and stands then), data (msgpack: its limit, and what its append takes). They are deleted once "
        "they are taken."
    ),
    "sw:{app.stream.P}:heads:GROUP": (
        "Of the outbox: `#`, the id of the last message; `STREAM/PARTITION` to how far what was sent there "
        "has come; `lost:STREAM/PARTITION:FIRST` to the last record that it lost after it had taken it."
    ),
    "sw:{app.stream:GROUP}:members": "The membership document, JSON: generation, members, owners of the partitions.",
    "sw:{app.stream:GROUP}:damaged": (
        "A damaged value that workers found in place of the membership document, and quarantined: the "
        "last one, of a string the first 64 KiB; or in place of the heartbeats, while there is none yet. "
        "`streamworker repair APP --drop-damaged GROUP` removes it."
    ),
    "sw:{app.stream:GROUP}:control": "Control messages, about the last 10,000; also the record of rebalances.",
    "sw:{app.stream:GROUP}:beats": "Member id to its last heartbeat: server ms, client id, run id of the server, load.",
    "sw:{app.stream:GROUP}:loads": (
        'With `assignment="weighted"`: member id to `partition:load,...` as it last measured; `-` for '
        "none."
    ),
    "sw:{app.stream:GROUP}:readers": (
        "Name of a reader of the acked logs to its positions, JSON; they guard trimming. `failed` says why its "
        "query failed since."
    ),
    "sw:{app.stream:GROUP}:holds": (
        "Name of a running batch read of the acked logs to where it begins and until when workers keep "
        "its rows, JSON; workers delete what is over."
    ),
    "sw:{app.stream:GROUP}:schemas": (
        "Fingerprint to Arrow schema of the acked logs; `current` names the newest. Workers restore "
        "theirs."
    ),
    "sw:{app.}:declared": (
        "What workers have declared, for Spark's readers: `processor:NAME:STREAM`, empty; and `table:NAME:STREAM`, "
        "the Arrow schema of the table's columns."
    ),
    "sw:{app.stream:GROUP}:claims": (
        'With `coordination="claim"`: partition to its ownership entry: ETag, time of the last change '
        "(ms), owner level, checkpoint, owner; `last` is the newest ETag."
    ),
    "sw:{app.stream:GROUP}:grab": (
        'With `coordination="lease"`: partition to `generation|owner` of whoever won the race for it and '
        "cannot be challenged yet; `last` is the newest generation."
    ),
    "sw:{app.stream:GROUP}:allocation": 'With `coordination="lease"`: partition to `generation|owner` of whoever processes it.',
}

PACKED_ENTRY = '''\
### Entries of many records

Records that a producer sends together share entries, unless the stream is declared with
`single_entries=True` or `codec="fields"`. Such an entry has these fields, in this order:

| field | holds |
|---|---|
| `sw:first` | id of its first record |
| `extra` | records beyond one an entry that the stream ever got, with those of this entry |
| `n` | its records, at most 1,000 |
| `codec`, `size` | `none` or `zstd`, and the size of `v` before compression: some 64 KiB at most, and more than 1 MiB is refused |
| `crc` | CRC-32 of `v`, decimal |
| `v` | the records as one JSON or MessagePack array, and behind it their headers, if one has any |
| `h` | the size of these headers before compression; only if one has any |

The headers are a MessagePack array with an item a record: a map of texts to bytes, or nil.

The entry has the id of its **last** record. Its other records have the ids before it, with the same
milliseconds and consecutive sequence numbers: entry `1732186412345-9` with 3 records holds the records
`1732186412345-7` to `1732186412345-9`. Every record has an id of its own in this way, so a checkpoint, a dead
letter and `reset` name records and not entries. A reader that goes on behind a record within an entry asks
`XREAD` for what follows that id, gets the entry again, and passes over the records up to the id.

A worker refuses an entry whose id, first id and number of records do not agree. So nobody may copy such an
entry with `XADD key *`: its records would have the ids of others. What is refused counts as one record that
cannot be decoded, and its error names the entry and says what is wrong.

This program reads both kinds, and writes them as a producer does. Only one program at a time may write like
this, as the steps are not one script; `append.lua` of this project is that script.

```python
import json, zlib
import msgspec
import redis
import zstandard


def records(client: redis.Redis, key: str, after: str = "0-0"):
    """Yield the id, the record and the headers of each record behind an id."""
    for entry, fields in client.xrange(key, f"({after}"):
        if b"sw:first" not in fields:
            headers = {name[2:].decode(): value for name, value in fields.items() if name[:2] == b"h."}
            yield entry.decode(), json.loads(fields[b"v"]), headers
            continue
        ms, last = map(int, entry.split(b"-"))
        n, data, size = int(fields[b"n"]), fields[b"v"], int(fields[b"size"])
        assert fields[b"sw:first"] == b"%d-%d" % (ms, last - n + 1) and zlib.crc32(data) == int(fields[b"crc"])
        if fields[b"codec"] == b"zstd":
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        array, its_headers = data, [None] * n
        if b"h" in fields:
            end = size - int(fields[b"h"])
            array, its_headers = data[:end], msgspec.msgpack.decode(data[end:])
        for index, (record, headers) in enumerate(zip(json.loads(array), its_headers, strict=True)):
            id_ = (ms, last - n + 1 + index)
            if id_ > tuple(map(int, after.split("-"))):
                yield f"{ms}-{id_[1]}", record, headers or {}


def append(client: redis.Redis, partition: str, payloads: list[bytes], headers: list[dict]) -> None:
    """Append records, the first as an entry of its own: Redis chooses its id, and the others follow it."""
    first = {"v": payloads[0]} | {f"h.{name}": value for name, value in headers[0].items()}
    ms, seq = client.xadd(f"{partition}:events", first).decode().split("-")
    if n := len(payloads) - 1:
        data = b"[%b]" % b",".join(payloads[1:])
        behind = msgspec.msgpack.encode([each or None for each in headers[1:]]) if any(headers[1:]) else b""
        extra = client.hincrby(f"{partition}:counts", "extra", n - 1)
        fields = {"sw:first": f"{ms}-{int(seq) + 1}", "extra": extra, "n": n, "codec": "none"}
        fields |= {"size": len(data + behind), "crc": zlib.crc32(data + behind), "v": data + behind}
        fields |= {"h": len(behind)} if behind else {}
        client.xadd(f"{partition}:events", fields, id=f"{ms}-{int(seq) + n}")
```

The array `[{"n":1},{"n":2}]` has `size` 17 and `crc` 1622518592 with `codec` `none`. If the second of these
records has a header `trace` with the value `x`, the bytes `92 c0 81 a5 74 72 61 63 65 c4 01 78` follow the
array, and the entry has `size` 29, `crc` 3097716429 and `h` 12.

`redis-cli` and RedisInsight show an entry of many records as one entry, compressed ones as bytes. A
`single_entries=True` stream keeps what they show readable, at ten times the memory. `XLEN` counts entries;
the lag in `XINFO GROUPS` counts records, since commits set the stream's `entries-added` to them.
'''
