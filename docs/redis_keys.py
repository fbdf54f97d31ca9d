"""What each key in Redis holds, for the table of docs/redis-keys.md; the keys are those of `KEY_TABLE`."""

HOLDS = {
    "sw:{app.stream}:stream": "[its declaration](#the-declaration-of-a-stream)",
    "sw:{app.stream.P}:events": "[the records](#an-entry-of-the-source)",
    "sw:{app.stream.P}:producer:ID": (
        "the producer's last two sends: number and last entry id of each"
    ),
    "sw:{app.stream.P}:seen:ID": "[a record with an id](#records-with-an-id-and-scheduled-ones)",
    "sw:{app.stream.P}:later": "when each scheduled record is due, or forgotten (ms)",
    "sw:{app.stream.P}:delayed": "scheduled records: whether each waits, was sent or was cancelled",
    "sw:{app.stream.P}:counts": "[records beyond one an entry](#counts)",
    "sw:{app.stream.P}:taken": (
        "from each `STREAM/PARTITION/PROCESSOR`: the number of records taken, and their digest; from each "
        "`pipeline NAME`: [the batch](#rows-from-spark), its nonce, and how many of its rows are taken"
    ),
    "sw:{app.stream.P}:groups": (
        "groups that trimming waits for, with the entries that others had deleted at the last comparison; "
        "`#trimmed`: entries that trimming dropped"
    ),
    "sw:{app.stream.P}:lock:GROUP": "[the owner and the checkpoint](#a-lock)",
    "sw:{app.stream.P}:acked:GROUP": "[the acked log](#an-entry-of-the-acked-log)",
    "sw:{app.stream.P}:dead:GROUP": (
        "dead letters: id, error, attempts, end of the traceback, `at` (ms), `by`, the entry's fields as `f.<name>`"
    ),
    "sw:{app.stream.P}:state:GROUP": (
        "`ctx.state`; behind a zero byte, of timers: until when each is done, its last call, calls asked for"
    ),
    "sw:{app.stream.P}:table:TABLE": (
        "values by the canonical bytes of their keys: expiry (ms, or empty), a space, the letters of a tuple's "
        "types, MessagePack"
    ),
    "sw:{app.stream.P}:expiry:TABLE": "the keys that expire, by when",
    "sw:{app.stream.P}:due:TABLE": "of a table whose ends call a function, or of windows: keys by when they end",
    "sw:{app.stream.P}:outbox:GROUP": "[messages for other streams](#an-outbox), until they are taken",
    "sw:{app.stream.P}:heads:GROUP": "how far [the outbox](#an-outbox) has come",
    "sw:{app.stream:GROUP}:members": "the membership document, JSON: generation, members, owners",
    "sw:{app.stream:GROUP}:damaged": (
        "a quarantined value found in place of the document or the heartbeats, of a string 64 KiB, until "
        "somebody deletes it"
    ),
    "sw:{app.stream:GROUP}:control": "some 10,000 control messages; the record of rebalances",
    "sw:{app.stream:GROUP}:beats": "each member's last heartbeat: server ms, client id, the server's run id, load",
    "sw:{app.stream:GROUP}:loads": (
        '`assignment="weighted"`: each member\'s `partition:load,...` as last measured; `-` for none'
    ),
    "sw:{app.stream:GROUP}:readers": (
        "positions of readers of the acked logs, JSON, which trimming respects; `failed`: why a query failed"
    ),
    "sw:{app.stream:GROUP}:holds": "batch reads, JSON: from where, and until when, rows are kept",
    "sw:{app.stream:GROUP}:risks": "timers, resources and middleware: `at KIND NAME P`: the member that runs it in "
    "a partition, and of how many deaths it knew; `died KIND NAME` and `died KIND NAME P`: the members that died in "
    "it in a row. For a resource of a worker `at KIND NAME start-ID`: connection, run of the server, time (ms) and "
    "deaths before. `turn KIND NAME`: who runs it after how many deaths, and since when (ms)",
    "sw:{app.stream:GROUP}:schemas": (
        "Arrow schemas of the acked logs by fingerprint; `current` names the newest"
    ),
    "sw:{app.}:declared": (
        "for Spark: `processor:NAME:STREAM`, empty; `table:NAME:STREAM`, its Arrow schema"
    ),
    "sw:{app.stream:GROUP}:claims": (
        '`coordination="claim"`: each partition\'s ETag, last change (ms), owner level, checkpoint, owner; `last`: '
        "the newest ETag"
    ),
    "sw:{app.stream:GROUP}:grab": (
        '`coordination="lease"`: `generation|owner` of who won a partition and cannot be challenged yet; `last`: the '
        "newest generation"
    ),
    "sw:{app.stream:GROUP}:allocation": '`coordination="lease"`: `generation|owner` of who processes a partition',
}
