"""What each kind of Redis user does and is refused, for docs/security.md; the rights are those of `ROLES`."""

ROLES_IN_WORDS = {
    "worker": (
        "Runs processors, and `schema check`: reads, commits, shares partitions, forwards, sends, trims what all "
        "groups have committed.",
        "Delete a group, a dead letter, or a key but the membership document and the heartbeats; overwrite "
        "a stream; touch another app.",
    ),
    "producer": (
        "Sends records, schedules them and cancels those, and declares streams.",
        "Read a record but a scheduled one, trim, commit, see a group, a lock, state or a dead letter.",
    ),
    "reader": (
        "Runs Spark's queries and `streamworker spark`: reads acked logs, tables and their schemas, and keeps its "
        "own position.",
        "Run a script, write a log or a table, read source entries, `ctx.state`, dead letters or members.",
    ),
    "pipeline": (
        "Runs pipelines that send into streams: what a reader may, and appends records of pipelines.",
        "Read source entries, trim, write a log, a table, a lock or `ctx.state`, see dead letters or members.",
    ),
    "viewer": (
        "Shows: `status`, `size`, `lag`, `top`, `wait`, `history`, `exporter`, `web`.",
        "Write anything, run a script, read a record, a forwarded row, state or a dead letter.",
    ),
    "lookup": (
        "Reads tables: `get`, `scan` and `count` in a web service or a script, `streamworker table`.",
        "Write anything, run a script, read a record, a forwarded row, `ctx.state` or a dead letter.",
    ),
    "operator": (
        "Runs commands: what a worker may, and `pause`, `dead put`, `dead replay`, `dead drop`, `reset`, "
        "`doctor`, `erase`, `archive adopt`.",
        "Delete a source entry, or a key but the membership document, the heartbeats and tables; overwrite "
        "a stream; touch another app or the server.",
    ),
}
"""By role: who uses it and for what, and the actions that Redis refuses to it."""
