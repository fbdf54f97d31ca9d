"""What each key in Redis holds, for docs/redis-keys.md; the keys are those of `KEY_TABLE`."""

HOLDS = {
    "sw:{app.stream}:stream": "How the stream is declared: app, stream, partitions, codec, created_at (ms).",
    "sw:{app.stream.P}:events": (
        "Entries of partition P: field `v` is the payload and `h.<name>` are headers; or plain fields. "
        "Before them, `sw:replayed-for` names the group of a dead letter that was replayed."
    ),
    "sw:{app.stream.P}:producer:ID": (
        "Number and last entry id of each of the producer's last two sends, so that a repeated send "
        "writes nothing; and the number before them."
    ),
    "sw:{app.stream.P}:groups": (
        "Name of each group whose lock trimming asks, to the number of entries that others had deleted "
        "when its count was last compared with the stream; `#trimmed` counts the entries that trimming "
        "dropped."
    ),
    "sw:{app.stream.P}:lock:GROUP": (
        "owner, epoch, generation, checkpoint, entries, rows, log, since, state, reason; tail, the last "
        "entry of the log by rows, source id and epoch; gone, where others deleted entries before the "
        "group had committed them; wanted_since, wanted_at, wanted_in while somebody waits for it. Never "
        "expires."
    ),
    "sw:{app.stream.P}:acked:GROUP": "The acked log: one Arrow record batch an entry, whose id is the rows of the log up to it.",
    "sw:{app.stream.P}:copy:GROUP": (
        "During a repair of an acked log that another program wrote to: a copy of what is committed in "
        "it, which takes its place."
    ),
    "sw:{app.stream.P}:dead:GROUP": "Dead letters: id, error, attempts, at (ms), by, and the entry's own fields as `f.<name>`.",
    "sw:{app.stream.P}:state:GROUP": "Keyed state that the processor saved with its commits.",
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
    "sw:{app.stream:GROUP}:readers": "Name of a reader of the acked logs to its positions, JSON; they guard trimming.",
    "sw:{app.stream:GROUP}:holds": (
        "Name of a running batch read of the acked logs to where it begins and until when workers keep "
        "its rows, JSON; workers delete what is over."
    ),
    "sw:{app.stream:GROUP}:schemas": (
        "Fingerprint to Arrow schema of the acked logs; `current` names the newest. Workers restore "
        "theirs."
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
