"""All scenes, and the function that runs some of them."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.contest import Contest
from benchmarks.figures import Row
from benchmarks.measuring.figures import describe
from benchmarks.measuring.ground import open_ground
from benchmarks.measuring.programs import WORKER, Program
from benchmarks.measuring.scenes import prefixed
from benchmarks.report import Report
from benchmarks.scenes.brokers import brokers
from benchmarks.scenes.columns import columns
from benchmarks.scenes.limits import limits
from benchmarks.scenes.process import process
from benchmarks.scenes.quiet import quiet
from benchmarks.scenes.rebalance import rebalance
from benchmarks.scenes.sending import latency, produce
from benchmarks.scenes.spark import spark
from benchmarks.scenes.stored import stored
from benchmarks.scenes.upkeep import idle, memory, partitions
from benchmarks.scenes.waiting import waiting
from streamworker.errors import StreamworkerError

Scene = Callable[[Contest], Awaitable[list[Row]]]

SCENES: dict[str, Scene] = {
    "produce": produce,
    "process": process,
    "brokers": brokers,
    "limits": limits,
    "columns": columns,
    "latency": latency,
    "quiet": quiet,
    "waiting": waiting,
    "partitions": partitions,
    "idle": idle,
    "memory": memory,
    "stored": stored,
    "rebalance": rebalance,
    "spark": spark,
}
"""The scenes by their name on the command line, in the order in which ``all`` runs them."""


async def run_contests(
    url: str,
    names: Sequence[str],
    *,
    runs: int,
    records: int,
    partitions: int,
    command: str,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    profile: Path | None = None,
    before: Path | None = None,
) -> Report:
    """Run some of ``SCENES`` on a server, and remove all keys of the bench.

    ``command`` is the command line that repeats the bench, for the report; ``say`` and ``warn`` take progress
    messages, and warnings about the figures. ``profile`` profiles a worker in a separate run. ``before`` is
    another checkout, which some scenes measure, too.
    """
    rows: list[Row] = []
    left_out, failed = list[str](), list[str]()
    async with open_ground(url, warn=warn) as ground:
        for each in names:
            contest = Contest(ground, runs, records, partitions, before, prefixed(say, each))
            try:
                rows += await SCENES[each](contest)
            except StreamworkerError as error:
                if len(names) == 1:
                    raise
                warn(str(error))  # Includes the log. The results of the other scenes are kept.
                failed.append(f"{each}: {error.message}")
            left_out += contest.left_out
            await ground.remove_keys()
        if profile is not None:
            say("profile")
            await _profile(Contest(ground, 1, records, partitions), profile)
        machine = describe(await ground.server(), also=("faststream", "taskiq-redis", "rstream", "nats-py"))
    return Report(machine=machine, rows=rows, left_out=left_out, failed=failed, runs=runs, command=command)


async def _profile(contest: Contest, path: Path) -> None:
    """Run a worker under pyinstrument, which slows it, so the run gives no figure."""
    renderer = "html" if path.suffix == ".html" else "text"
    command = ("-m", "pyinstrument", "-r", renderer, "-o", str(path), *WORKER)
    keys = await contest.ground.fill_packed("events", contest.records, partitions=contest.partitions)
    await contest.handled(Program("profiled worker", command), keys)
    await contest.ground.remove_keys()
