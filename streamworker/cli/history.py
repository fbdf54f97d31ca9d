"""``streamworker history``: lists the rebalances of a group."""

from dataclasses import asdict

from streamworker.cli.support import (
    AsJson,
    GroupPath,
    Limit,
    Processors,
    local_time,
    print_json,
    print_table,
    say,
    snapshots,
)


def history(app: GroupPath, processor: Processors = None, limit: Limit = 50, json: AsJson = False) -> None:
    """Show rebalances: time, cause, moved partitions and duration.

    The duration of a rebalance ends when every moved partition runs again, by the server's clock.
    With coordination="claim" each claim is one line; with coordination="lease" a line holds the
    races of one second that a worker won.

    \b
    Examples:
      streamworker history shop:price
      streamworker history shop:app --limit 10 --json
    """
    taken = snapshots(app, processor)
    changes = [(snapshot, change) for snapshot in taken for change in snapshot.rebalances[-limit:]]
    problems = [problem for snapshot in taken for problem in snapshot.problems]
    say(*problems, error=True)
    if json:
        print_json([{"processor": snapshot.processor, **asdict(change)} for snapshot, change in changes])
        return
    if not changes and not problems:
        say("Nothing has changed yet: no worker has joined.")
    if not changes:
        return
    print_table(
        ("time", "processor", "generation", "cause", "member", "moved", "ms", "partitions"),
        [
            (
                local_time(change.at_ms, "milliseconds"),
                snapshot.processor,
                change.generation,
                change.cause,
                change.member,
                len(change.moved),
                "moving" if change.ms is None else change.ms,
                _ranges(change.moved),
            )
            for snapshot, change in changes
        ],
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    """Write numbers with runs shortened.

    >>> _ranges((0, 1, 2, 5, 7, 8))
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
