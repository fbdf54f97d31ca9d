"""``streamworker simulate``: a rebalance protocol on virtual time, with faults."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import AsJson, print_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from streamworker.testing.batch import Summary
    from streamworker.testing.checkers import Violation
    from streamworker.testing.simulation import Outcome, Schedule

EXPLAINED = 3
"""Failures of which a transcript is printed; more of them seldom say more."""

ROWS = (
    ("schedules", "schedules"),
    ("moves", "partitions that moved"),
    ("minimum", "moves that nobody could have spared"),
    ("settled", "schedules that came to rest"),
    ("settle_median_ms", "time to balance after the faults, median, ms"),
    ("settle_longest_ms", "time to balance after the faults, longest, ms"),
    ("unowned_longest_ms", "longest time a partition had no owner, ms"),
    ("jumps", "jumps without cause"),
    ("commands_a_second", "Redis commands for each worker and second"),
    ("entries", "entries that were handled"),
    ("violations", "violations"),
)


FaultNames = Annotated[
    str,
    typer.Option(
        "--faults",
        metavar="NAMES",
        help="none, churn, workers, network, redis, all, or single faults such as kill,failover.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        min=0.01,
        help="Virtual minutes in which faults happen; drawn by the seed if not given.",
    ),
]


def simulate(
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="NAME", help="membership, claim or lease.")
    ] = "membership",
    assignment: Annotated[
        str | None,
        typer.Option(
            "--assignment",
            metavar="NAME",
            help="range, sticky or weighted, under membership; drawn by the seed if not given.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, max=1000, help="At the start; drawn by the seed if not given."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", min=1, max=16384, help="Drawn by the seed if not given."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The first seed.")] = 0,
    schedules: Annotated[
        int, typer.Option("--schedules", metavar="N", min=1, help="How many, each with the next seed.")
    ] = 200,
    faults: FaultNames = "all",
    minutes: Minutes = None,
    json: AsJson = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Print what each core was told and answered in the first schedule."),
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run all protocols on the same schedules, side by side.")
    ] = False,
    scenario: Annotated[
        Path | None,
        typer.Option("--scenario", metavar="FILE", help="Print what cores write in a scenario, and no more."),
    ] = None,
) -> None:
    """Run workers on virtual time, with faults, and judge them.

    Real cores act on a model of Redis. Whatever happens is decided by the seed: the same one gives
    the same run, event for event. No server is needed. While faults last nothing may be lost,
    repeated or reordered; after them the group must come to rest. Each violation is shown with the
    command that replays it and with the fewest faults that still lead to it.

    \b
    Examples:
      streamworker simulate --schedules 1000
      streamworker simulate --workers 4 --partitions 16 --faults failover,kill
      streamworker simulate --seed 17 --schedules 1 --trace
      streamworker simulate --scenario incident.txt
    """
    from streamworker.core.protocols import PROTOCOLS
    from streamworker.testing.simulation import Schedule

    if scenario is not None:
        _play(scenario)
        return
    _check_trace(trace, compare or json)
    _check(protocol if not compare else "membership", assignment, faults)
    plans = [
        Schedule(
            seed=seed,
            protocol=name,
            assignment=assignment if name == "membership" else None,
            workers=workers,
            partitions=partitions,
            faults=faults,
            minutes=minutes,
        )
        for name in (PROTOCOLS if compare else [protocol])
    ]
    if trace:
        _trace(plans[0])
        return
    results = [_run(plan, schedules) for plan in plans]
    _show([summary for summary, _ in results], as_json=json)
    failed = [outcome for _, outcomes in results for outcome in outcomes]
    _explain(failed)
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _check_trace(trace: bool, figures: bool) -> None:
    from streamworker.errors import ConfigurationError

    if trace and figures:
        raise ConfigurationError(
            "--trace prints what the cores of one schedule did, and no figures.",
            remedy="Leave out --compare and --json.",
        )


def _check(protocol: str, assignment: str | None, faults: str) -> None:
    from streamworker.core.membership import Membership
    from streamworker.core.protocols import PROTOCOLS
    from streamworker.errors import ConfigurationError
    from streamworker.testing.faults import kinds_of

    if protocol not in PROTOCOLS:
        raise ConfigurationError(
            f"There is no protocol {protocol!r}.", remedy=f"Use one of: {', '.join(sorted(PROTOCOLS))}."
        )
    kinds_of(faults)
    if assignment is not None and protocol != "membership":
        raise ConfigurationError(
            f"Under {protocol} nobody assigns partitions.",
            remedy="Leave out --assignment, or use --protocol membership.",
        )
    if assignment is not None:
        Membership.empty(1, assignment)  # which knows the names


def _run(schedule: "Schedule", count: int) -> "tuple[Summary, list[Outcome]]":
    from streamworker.testing.batch import run_many, summarise

    outcomes = []
    with progress_bar() as bar:
        task = bar.add_task(schedule.protocol, total=count)
        for outcome in run_many(schedule, range(schedule.seed, schedule.seed + count)):
            outcomes.append(outcome)
            bar.advance(task)
    return summarise(schedule.protocol, outcomes), [each for each in outcomes if each.violations]


def _show(summaries: "list[Summary]", *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(summary) for summary in summaries])
        return
    columns = ["", *(summary.protocol for summary in summaries)]
    print_table(columns, [[text, *(getattr(each, name) for each in summaries)] for name, text in ROWS])


def _explain(failed: "list[Outcome]") -> None:
    from streamworker.testing.simulation import explain

    for outcome in failed[:EXPLAINED]:
        say("", error=True)
        say(explain(outcome), error=True)
    if len(failed) > EXPLAINED:
        say(
            f"and more seeds: {[each.schedule.seed for each in failed[EXPLAINED:]]}",
            error=True,
        )


def _play(path: Path) -> None:
    from streamworker.errors import ConfigurationError
    from streamworker.testing.scenario import play, read

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}", remedy="Name a file like those in tests/protocol."
        ) from error
    told, violations = play(read(text))
    say(str(told).rstrip("\n"))
    _fail_if(violations)


def _fail_if(violations: "Sequence[Violation]") -> None:
    for violation in violations:
        say(str(violation), error=True)
    if violations:
        raise typer.Exit(ExitCode.FAILED)


def _trace(schedule: "Schedule") -> None:
    from streamworker.testing.simulation import run
    from streamworker.testing.transcript import Transcript

    transcript = Transcript()
    outcome = run(schedule, trace=transcript)
    for line in transcript.lines:
        say(line)
    _fail_if(outcome.violations)
