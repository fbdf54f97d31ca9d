"""The events of log lines: collected from the code, with one meaning each, for docs/logging.md."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "streamworker"
LEVELS = ("debug", "info", "warning", "error", "exception")
NAMES_IT = {
    "warn": (1, "warning"),
    "Note": (0, "info"),
    "tell_lost": (1, "error"),
    "_tell": (0, "error"),
    "_say_soon": (0, "info"),
}
"""Functions that log for others: which of their arguments is the event, and the level."""


@cache
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
            if isinstance(name, ast.Name) and name.id == "event":
                either = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                yield from (str(each.value) for each in either if isinstance(each, ast.Constant))


MEANINGS = {
    "acked_log_full": "A commit waits until a reader has read rows of the acked log.",
    "archive_begins_later": "The archive has no segment from a group's position on: those before were expired, and it goes on "
    "behind them.",
    "archive_held_up": "A segment cannot be archived now, for the error in the line; Redis keeps the records, and it is tried "
    "again.",
    "archive_passed": "The archive was further than its checkpoint, by another owner or a put without an answer; what Redis "
    "has of it is the same.",
    "archive_unknown": "Redis did not tell how far an archive is; it is asked again.",
    "archive_unread": "The archive of a stream cannot be read; the group waits there, and it is tried again.",
    "archive_failed": "Rows of an acked log were not archived, for the reason in the line; they stay in Redis, and it is "
    "tried again.",
    "archive_went_on": "Another owner had archived these rows; the archiver goes on behind them.",
    "attempts_not_stored": "The number of attempts at failing records could not be stored; the next owner counts from the "
    "last stored number.",
    "call_cancelled": "A call was cancelled, and not by its worker: perhaps an earlier call has left what did so. It is made "
    "again at once, and does not count.",
    "call_unanswered": "A call about members or locks had no answer from Redis; it is made again.",
    "claim_lost": 'Another worker owns the partition now (coordination="claim").',
    "commit_answered": "Redis has answered a commit.",
    "commit_held_up": "A commit waits and is sent again; the line says why.",
    "commit_not_durable": "Too few disks or replicas have confirmed a commit; it is sent again.",
    "commit_refused": "Redis refused a commit, for the code in the line: of a lost partition, or of a stream that was "
    "changed.",
    "commit_sent": "A commit goes to Redis.",
    "commit_unanswered": "A commit had no answer; it is sent again, and done once.",
    "control_stream_readable": "Messages of the group can be read again.",
    "control_stream_unreadable": "Messages of the group cannot be read; changes are noticed by heartbeats meanwhile.",
    "declare_failed": "The declarations of a stream and a processor were not stored; they are tried again.",
    "entries_deleted": "Another program deleted entries that this group had not committed.",
    "event_loop_blocked": "The event loop has not run for `max_processing_time_ms`; the line names the task that holds "
    "it.",
    "expire_failed": "Expired values of tables were not removed; it is tried again.",
    "expiry_skipped": "A function at the ends of values raised `Skip` about one, which is removed.",
    "fetch_failed": "A read of entries failed; it is tried again.",
    "fetch_refused": "Redis refused a read; the worker looks which partition is the cause, and reads the others.",
    "flush_failed": "Sending failed by a bug in streamworker: please report it.",
    "forward_sealed": "What waits for a partition that takes no more cannot be moved yet; the line says why.",
    "forward_unanswered": "A stream does not take the messages of an outbox; they are sent again, and arrive once.",
    "forwarded_records_lost": "Redis lost records that had been forwarded to another stream.",
    "finish_failed": "Redis did not note that the group is done with old partitions; it is tried again.",
    "grace_period_over": "A call did not end within `grace_period_ms`, and was cancelled; the next owner makes it "
    "again.",
    "growth_lost": "A failover has lost a step of a growth, named in the line; it is made again.",
    "handler_failed": "A function raised an error; the line has the policy that applies.",
    "heartbeat_failed": "Heartbeats do not reach Redis; told every few seconds.",
    "heartbeat_refused": "Redis refused a heartbeat, for the error in the line.",
    "heartbeats_answered": "Heartbeats reach Redis again.",
    "heartbeats_late": "The worker begins no batch until a heartbeat gets through.",
    "heartbeats_mended": "Another program overwrote the heartbeats; they begin anew.",
    "joined": "The worker is a member of the group.",
    "keeper_failed": "The thread of the heartbeats ended by a bug: please report it. Peers take over.",
    "key_of_another_type": "Another program wrote to a key of streamworker.",
    "key_right_again": "That key holds what it should again.",
    "lags_unread": "The balancer of `weighted` could not read the lag; it looks again.",
    "lease_lost": 'Another worker owns the partition now (coordination="lease").',
    "lease_overtaken": 'The worker takes a partition that it has won; the owner in the line did not answer (coordination="lease").',
    "lock_acquired": "The worker holds the lock of a partition.",
    "lock_released": "The worker gave the lock of a partition back.",
    "log_archived": "Rows of an acked log were archived.",
    "map_unread": "Redis did not say which partitions a stream has; it is asked again.",
    "marking_failed": "What `status` shows of a partition was not written; it is tried again.",
    "membership_lost": "The group removed this worker, which joins again under a new id.",
    "membership_unreadable": "The list of members is damaged; the members repair it.",
    "orders_unreadable": "Requests of operators could not be read; the worker looks again.",
    "outbox_diverged": "A target has records that the outbox does not know; a person must decide: `streamworker "
    "doctor`.",
    "outbox_full": "A commit waits for streams that do not take what the processor sends.",
    "messages_moved": "What waited in an outbox for old partitions of a stream that has grown goes to its new ones.",
    "messages_not_moved": "What waits for old partitions of a stream that has grown was not moved; it is tried again.",
    "outbox_not_trimmed": "Forwarded messages were not deleted from the outbox; it is tried again.",
    "outbox_unreadable": "The outbox of a partition could not be read; it is tried again.",
    "partition_fenced": "A commit was refused, since another worker owns the partition.",
    "page_failed": "A page of metrics or probes failed by a bug; its client got 500.",
    "partition_halted": "The partition stands at a record until an operator or a deploy helps.",
    "partition_readable": "The stream of the partition is there again.",
    "partition_rolled_back": "Redis lost commits of this partition; the worker goes on from what is there.",
    "partition_started": "The worker begins with one partition.",
    "partition_stopped": "The worker has stopped one partition.",
    "partition_unreadable": "The key of the partition's entries holds another type.",
    "partitions_go_on": "Partitions that stood still go on.",
    "partition_waits": "The group handles nothing of a partition yet; the line says with which others it must be done.",
    "partitions_done": "The group is done with these partitions of a stream that has grown.",
    "partitions_stalled": "Partitions have entries and commit none; the line says what they wait for.",
    "partitions_started": "The worker handles these partitions now.",
    "partitions_stopped": "The worker does not handle these partitions any more.",
    "posting_failed": "A message to the group was not sent; heartbeats tell the same.",
    "rebalance": "Members or owners have changed: the cause, the member and the partitions that move.",
    "record_dead": "A record became a dead letter.",
    "record_skipped": "A record was skipped, as its policy says.",
    "records_late": "Records came when all of their windows were over: how many since the last such line, and by how "
    "much the newest of them missed (docs: windows). One line a minute for each partition.",
    "replicas_missing": "Too few replicas are connected: nothing is confirmed until they are.",
    "resource_ended": "The generator of a resource of a partition has ended; the partition starts anew from its last commit, "
    "and makes it again.",
    "resource_not_closed": "Closing a resource failed or took too long.",
    "retention_changed": "This worker's retention replaced another one that was stored.",
    "retention_differs": "Another program stored another retention than this worker's, and it is followed.",
    "risk_not_taken_back": "A timer or a resource has ended, and Redis did not take its name back. If this worker "
    "dies, that counts as a death in it.",
    "rollback_unknown": "Locks cannot be read, so nobody knows whether commits were lost; it is tried again.",
    "rows_not_routed": "Rows for a stream that has grown have no key that can be read; they go to one of its new partitions.",
    "rows_refused": "A row cannot be stored; its records are handled again.",
    "runner_cancelled": "A function or middleware has left something that cancelled a partition between "
    "two calls; it starts anew from its last commit, or halts.",
    "runner_failed": "A partition halts by a bug in streamworker: please report it.",
    "scheduled_not_sent": "Records that are due were not sent; it is tried again.",
    "scheduled_sent": "Records that were due were sent.",
    "schema_unreadable": "The schema of the rows could not be compared or stored; it is tried again.",
    "scrape_failed": "Redis did not answer the exporter, whole or for the partitions in the line; `streamworker_up` is 0.",
    "segment_archived": "The next segment of a partition is in the store.",
    "send_not_confirmed": "Too few disks or replicas have confirmed a send; it is sent again.",
    "send_sealed": "A partition takes no more, and nothing says yet which follow it; the records wait.",
    "send_unanswered": "A send had no answer; it is sent again, and written once.",
    "sends_lost": "Redis lost records whose sends had been confirmed.",
    "serving_troubled": "The server of probes and metrics has no file descriptor left; it goes on once it has.",
    "serving": "Probes, metrics or both are served at this address, and who reaches it.",
    "signal_taken_back": "Code of the app replaced the worker's handler of SIGTERM or SIGINT; the worker installed its own again.",
    "source_read_again": "Redis went back, so entries of an adopted source are read again.",
    "source_trimmed": "Entries of an adopted source were dropped before they were taken.",
    "source_unread": "An adopted source could not be read; it is tried again.",
    "source_went_back": "An adopted source is not what it was; nothing is taken until it is right.",
    "stall_not_shown": "That partitions stand still was not written for `status`.",
    "start_delayed": "The worker cannot start yet, and tries again.",
    "stream_went_back": "A stream ends before entries that were read: Redis went back, or it was made anew.",
    "stream_grown": "The worker has learned that its stream has other partitions; the line has the map.",
    "streams_form_a_cycle": "Processors send to each other in a ring, which may fill up.",
    "threads_left_behind": "Calls exceeded their `timeout` and still run in threads; the process ends without them.",
    "timer_failed": "A timer raised an error, and is called again.",
    "timer_held_back": "Three workers died in a row in a timer, so it is called no more until "
    "`streamworker timers run-now`.",
    "timer_missed": "A planned time passed without a run, as `missed=` says.",
    "timer_skipped": "A timer raised `Skip`: this run is left out.",
    "timers_wait": "Timers could not read the server's time or their state, or could not be named "
    "before a call; they are tried again.",
    "tracing_is_off": "Traces are asked for, and the process has no TracerProvider.",
    "trim_failed": "Entries that nobody needs were not dropped; it is tried again.",
    "using_server_of_dev": "The app names no Redis, and uses that of the `streamworker dev` in its folder.",
    "watchdog_failed": "A look for stalls failed by a bug; the next look follows.",
    "worker_ended_untold": "Code of the program ended the worker without a signal.",
    "worker_forced_to_end": "`shutdown_timeout_ms` is over, or a second signal came; the line names what held the "
    "process.",
    "worker_left": "The worker has left all groups.",
    "worker_started": "The worker runs; the line names its processors.",
    "worker_stopping": "A signal came; batches under way are finished.",
    "workers_died_in_call": "Workers died in the call of one record; its records are called one by one. With `of`: "
    "in a timer, resource or middleware, which runs while nothing else does.",
}
"""What each event says."""


TOLD = {"error": "Errors", "warning": "Warnings", "info": "Information"}
"""The levels of the page. Events at level debug are for those who look into streamworker itself."""


def table() -> str:
    """Return the lists of docs/logging.md: the events of each level."""
    found = sorted(events().items())
    return "\n\n".join(
        f"### {title}\n\n"
        + "\n".join(f"- `{event}`: {MEANINGS[event]}" for event, (its, _) in found if its == level)
        for level, title in TOLD.items()
    )
