"""``python -m tests.simulator``: runs a rebalance protocol on virtual time, with faults.

::

    make simulate SEED=17 SCHEDULES=1000
    python -m tests.simulator --workers 4 --partitions 16 --faults failover,kill
    python -m tests.simulator --seed 17 --schedules 1 --trace
    python -m tests.simulator --scenario incident.txt
"""

from pathlib import Path
from typing import Annotated

import typer

from streamworker.cli.options import option
from streamworker.cli.output import print_table, progress_bar, say
from streamworker.cli.support import errors_reported, give_up
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.registry import PROTOCOLS, entry_of
from streamworker.errors import ConfigurationError
from tests.simulator.batch import figures_of, run_many
from tests.simulator.scenario import play, read
from tests.simulator.simulation import Outcome, Schedule, explain, run
from tests.simulator.transcript import Transcript

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

EXPLAINED = 3
"""Number of failures whose transcript is printed; further transcripts rarely help."""


@app.command()
@errors_reported()
def simulate(
    protocol: Annotated[str, option("--protocol NAME", f"One of: {', '.join(PROTOCOLS)}.")] = "membership",
    assignment: Annotated[
        str | None,
        option(
            "--assignment NAME",
            "range, sticky or weighted, for membership only; drawn from the seed if not given.",
        ),
    ] = None,
    workers: Annotated[
        int | None, option("--workers N", "At the start; drawn from the seed if not given.", min=1, max=1000)
    ] = None,
    partitions: Annotated[
        int | None, option("--partitions N", "Drawn from the seed if not given.", min=1, max=16384)
    ] = None,
    seed: Annotated[int, option("--seed N", "The first seed.", min=0)] = 0,
    schedules: Annotated[int, option("--schedules N", "How many, each with the next seed.", min=1)] = 200,
    faults: Annotated[
        str,
        option(
            "--faults NAMES",
            "none, churn, workers, network, redis, operator, all, or single faults such as kill,failover.",
        ),
    ] = "all",
    minutes: Annotated[
        float | None,
        option("--minutes M", "Virtual minutes with faults; drawn from the seed if not given.", min=0.01),
    ] = None,
    trace: Annotated[
        bool, option("--trace", "Print the events and effects of each core in the first schedule.")
    ] = False,
    compare: Annotated[
        bool, option("--compare", "Run all protocols on the same schedules, side by side.")
    ] = False,
    scenario: Annotated[
        Path | None, option("--scenario FILE", "Only print the transcript of this scenario.")
    ] = None,
) -> None:
    """Run workers on virtual time, with faults, and check them.

    The protocol code of real workers runs against the scripts that ship, on a store in memory. No server
    is needed. The seed decides everything: the same seed gives the same run, event for event. While
    faults last, no entry may be lost, repeated or reordered; after them the group must settle. For each
    violation the command prints the command that replays it, and the fewest faults that still cause it.
    """
    if scenario is not None:
        _play(scenario)
        return
    entry_of(protocol)  # Raises for an unknown name, as the next line does.
    Membership.empty(1, assignment or "range")
    plans = [
        Schedule(
            seed=seed,
            protocol=name,
            assignment=assignment if PROTOCOLS[name].has_document else None,
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
    results = {plan.protocol: _run(plan, schedules) for plan in plans}
    columns = [figures_of(outcomes) for outcomes in results.values()]
    print_table(["", *results], [[name, *(each[name] for each in columns)] for name in columns[0]])
    failed = [outcome for outcomes in results.values() for outcome in outcomes if outcome.violations]
    _explain(failed)
    if failed:
        give_up()


def _run(schedule: Schedule, count: int) -> list[Outcome]:
    with progress_bar() as bar:
        runs = run_many(schedule, range(schedule.seed, schedule.seed + count))
        return list(bar.track(runs, total=count, description=schedule.protocol))


def _explain(failed: list[Outcome]) -> None:
    for outcome in failed[:EXPLAINED]:
        say("", *explain(outcome).splitlines(), error=True)
    if len(failed) > EXPLAINED:
        say(f"and more seeds: {[each.schedule.seed for each in failed[EXPLAINED:]]}", error=True)


def _play(path: Path) -> None:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}", remedy="Name a file like those in tests/protocol."
        ) from error
    transcript, violations = play(read(text))
    say(*str(transcript).splitlines())
    if violations:
        give_up(*map(str, violations))


def _trace(schedule: Schedule) -> None:
    transcript = Transcript()
    outcome = run(schedule, trace=transcript)
    say(*transcript.lines)
    if outcome.violations:
        give_up(*map(str, outcome.violations))


if __name__ == "__main__":
    app(prog_name="python -m tests.simulator")
