"""The events of log lines: collected from the code, with one meaning each, for docs/logging.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "streamworker"
LEVELS = ("debug", "info", "warning", "error", "exception")
NAMES_IT = {"warn": (1, "warning"), "Note": (0, "info"), "_tell": (0, "error"), "_say_soon": (0, "info")}
"""Functions that log for others: which of their arguments is the event, and the level."""


def events() -> dict[str, tuple[str, str]]:
    """Return the level and the module of each event that the code logs."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for event, level in _in(ast.parse(path.read_text("utf-8"))):
            found.setdefault(event, (level, module))
    return found


def _in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((event, "warning") for event in _assigned(node))
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        at, level = NAMES_IT.get(name, (0, name))
        if name == "_say" and len(node.args) > 1 and isinstance(node.args[0], ast.Attribute):
            at, level = 1, node.args[0].attr
        if name == "commit" and ast.unparse(node.func) == "trail.commit":
            level = "debug"
        if level not in LEVELS or len(node.args) <= at:
            continue
        event = node.args[at]
        if isinstance(event, ast.Constant) and isinstance(event.value, str) and event.value.isidentifier():
            yield event.value, "error" if level == "exception" else level


def _assigned(node: ast.Assign) -> Iterator[str]:
    """Yield what is assigned to a variable ``event``, which is logged later."""
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            if isinstance(name, ast.Name) and name.id == "event" and isinstance(value, ast.Constant):
                yield str(value.value)


MEANINGS = {
    "acked_log_full": "A commit waits: no reader has read the rows of the acked log.",
    "attempts_not_stored": "The number of calls of failing records was not stored; the next owner counts anew.",
    "call_unanswered": "Redis gave no answer to a call about the group, which is repeated.",
    "claim_lost": 'Another worker has claimed the partition (coordination="claim").',
    "commit_answered": "Redis has answered a commit.",
    "commit_held_up": "A commit waits, for the reason in the line.",
    "commit_refused": "Redis refused a commit; the partition tries again.",
    "commit_sent": "A commit goes to Redis.",
    "control_stream_readable": "Messages of the group can be read again.",
    "control_stream_unreadable": "Messages of the group cannot be read; heartbeats tell of changes meanwhile.",
    "declare_failed": "The declaration of a stream or processor was not stored; it is tried again.",
    "entries_deleted": "Another program deleted entries that this group had not handled.",
    "event_loop_blocked": "Code held the event loop; the line names what ran.",
    "expire_failed": "Values of tables whose time is over were not removed; it is tried again.",
    "fetch_failed": "A read of entries failed; it is repeated.",
    "fetch_refused": "Redis refused to read a partition.",
    "flush_failed": "The task that sends records failed.",
    "forward_unanswered": "Redis gave no answer to messages of an outbox, which are sent again.",
    "forwarded_records_lost": "A failover lost records that had been forwarded to another stream.",
    "grace_period_over": "A call did not end in time and was cancelled.",
    "handler_failed": "A function raised an error for a record; the policy of the line applies.",
    "heartbeat_failed": "A heartbeat did not reach Redis.",
    "heartbeat_refused": "Redis refused a heartbeat.",
    "heartbeats_answered": "Heartbeats reach Redis again.",
    "heartbeats_late": "Heartbeats are so late that no batch is begun.",
    "heartbeats_mended": "Another program overwrote the heartbeats, and they were begun anew.",
    "joined": "The worker is a member of the group.",
    "keeper_failed": "The thread of heartbeats failed, and begins anew.",
    "key_of_another_type": "Another program wrote to a key of streamworker.",
    "key_right_again": "That key is right again.",
    "lags_unread": "The lag could not be read for the observer.",
    "lease_lost": 'The lease of a partition ended (coordination="lease").',
    "lease_overtaken": 'Another worker has won the race for a partition (coordination="lease").',
    "lock_acquired": "This worker holds the lock of a partition.",
    "lock_released": "The lock was given back.",
    "marking_failed": "The state of a partition was not written for `status`.",
    "membership_lost": "The group has removed this worker, which joins again.",
    "membership_unreadable": "The list of members cannot be read; the group mends it.",
    "orders_unreadable": "Operators' requests could not be read; the worker looks again.",
    "outbox_diverged": "The outbox and its target do not agree about what was forwarded.",
    "outbox_full": "A commit waits: streams that it sends to are behind.",
    "outbox_not_trimmed": "Messages that were forwarded stay in the outbox for now.",
    "outbox_unreadable": "The outbox of a partition cannot be read.",
    "partition_fenced": "A commit was refused: another worker owns the partition.",
    "partition_halted": "The partition stands still at a record until an operator acts.",
    "partition_readable": "The partition can be read again.",
    "partition_rolled_back": "A failover has lost commits of this partition; it goes back to them.",
    "partition_started": "The worker begins to handle a partition.",
    "partition_stopped": "The worker has stopped to handle a partition.",
    "partition_unreadable": "The stream of a partition is missing or damaged.",
    "partitions_go_on": "Partitions that stood still go on.",
    "partitions_stalled": "Partitions have records and do not move; the line says why.",
    "partitions_started": "The worker handles these partitions now.",
    "partitions_stopped": "The worker handles these partitions no longer.",
    "posting_failed": "A message to the group was not posted; heartbeats tell the same.",
    "rebalance": "The group has changed; the line says why and which partitions move.",
    "record_dead": "A record became a dead letter.",
    "record_skipped": "A record was skipped, as its policy says.",
    "replicas_missing": "Fewer replicas confirm writes than durability asks for.",
    "resource_not_closed": "Closing a resource failed or took too long.",
    "retention_changed": "The declared retention differs from the stored one, and replaces it.",
    "retention_differs": "Another program has declared another retention.",
    "rollback_unknown": "It cannot be told whether a failover has lost commits.",
    "rows_refused": "Results do not fit the processor's type.",
    "runner_failed": "The task of a partition failed by an error of streamworker.",
    "scheduled_not_sent": "Records that are due were not sent; it is tried again.",
    "scheduled_sent": "Records that were due were sent.",
    "schema_unreadable": "The stored record type cannot be read.",
    "send_not_confirmed": "A send in the background was not confirmed in time.",
    "send_unanswered": "Redis gave no answer to a send, which finds out and is not written twice.",
    "sends_lost": "A failover lost records that had been confirmed.",
    "serving": "Probes, metrics or both are served at this address.",
    "source_read_again": "A source is read again after a fault.",
    "source_trimmed": "Entries of an adopted source went before they were taken.",
    "source_unread": "An adopted source could not be read; it is tried again.",
    "source_went_back": "An adopted source has an older end than before.",
    "stall_not_shown": "That a partition stands still was not written for `status`.",
    "start_delayed": "The worker cannot start yet, and tries again.",
    "stream_went_back": "A stream has an older end than before: a failover, or it was made anew.",
    "streams_form_a_cycle": "Processors send to each other in a ring.",
    "threads_left_behind": "Threads still run calls, and the process ends without them.",
    "timer_failed": "A timer raised an error, and is called again.",
    "timer_missed": "A timer did not run at a planned time.",
    "timer_skipped": "A planned time is left out, as `missed=` says.",
    "timers_wait": "Timers could not be read or committed; they wait.",
    "tracing_is_off": "`tracing=True`, and nobody would get the spans: the process has no TracerProvider.",
    "trim_failed": "Entries that nobody needs were not dropped; it is tried again.",
    "using_server_of_dev": "The app names no Redis, and uses that of the `streamworker dev` in its folder.",
    "watchdog_failed": "The task that looks for stalls failed, and begins anew.",
    "worker_ended_untold": "The worker ends without a signal, because code of the program ended it.",
    "worker_forced_to_end": "The time to shut down is over; the line names what held the process.",
    "worker_left": "The worker has left all groups.",
    "worker_started": "The worker runs; the line names its processors.",
    "worker_stopping": "A signal came; batches under way are finished.",
    "workers_died_in_call": "Workers died in the call of one record, which is called with care.",
}
"""What each event says."""


def table() -> str:
    """Return the table of docs/logging.md."""
    rows = [
        f"| `{event}` | {level} | `{module}` | {MEANINGS[event]} |"
        for event, (level, module) in sorted(events().items())
    ]
    return "\n".join(["| event | level | module | meaning |", "|---|---|---|---|", *rows])
