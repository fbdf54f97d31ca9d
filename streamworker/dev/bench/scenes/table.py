"""All scenes, and the function that runs some of them."""

import contextlib
import functools
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from streamworker.dev.bench.contest import WORKER, Contest, Contestant
from streamworker.dev.bench.figures import Row
from streamworker.dev.bench.ground import open_ground
from streamworker.dev.bench.machine import describe
from streamworker.dev.bench.report import Report
from streamworker.dev.bench.scenes.columns import columns
from streamworker.dev.bench.scenes.limits import limits
from streamworker.dev.bench.scenes.process import process
from streamworker.dev.bench.scenes.rebalance import rebalance
from streamworker.dev.bench.scenes.sending import latency, produce
from streamworker.dev.bench.scenes.spark import spark
from streamworker.dev.bench.scenes.upkeep import idle, memory, partitions
from streamworker.dev.bench.scenes.waiting import waiting
from streamworker.errors import StreamworkerError

Scene = Callable[[Contest], Awaitable[list[Row]]]

SCENES: dict[str, Scene] = {
    "produce": produce,
    "process": process,
    "limits": limits,
    "columns": columns,
    "latency": latency,
    "waiting": waiting,
    "partitions": partitions,
    "idle": idle,
    "memory": memory,
    "rebalance": rebalance,
    "spark": spark,
}
"""The scenes by their name on the command line, in the order in which ``all`` runs them."""

RUNNEL = (
    "runnel: it needs Python 3.8, and does not run here. It was measured once, on a machine of this kind "
    "with small JSON records: 2,300 to 4,000 events/s on one core."
)


async def run_bench(
    url: str,
    names: Sequence[str],
    *,
    runs: int,
    records: int,
    partitions: int,
    command: str,
    name: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    profile: Path | None = None,
) -> Report:
    """Run some scenes on a server, and remove all keys of the bench.

    Parameters
    ----------
    url
        URL of the server.
    names
        Keys of ``SCENES``.
    runs, records, partitions
        Number of runs of each contestant, of records in a run, and of partitions.
    command
        The command line that repeats the bench, for the report.
    name
        Name of the bench's app; random if None.
    say, warn
        Callbacks for progress messages, and for warnings about the figures.
    profile
        File for a profile of a worker, made in a separate run.
    """
    with _sigterm_as_ctrl_c():
        async with open_ground(url, name) as ground:
            if ground.is_shared:
                others = f"{ground.others_per_s:.0f} commands/s"
                warn(f"Other clients send {others} to this server: figures will differ.")
            rows: list[Row] = []
            left_out, failed = [RUNNEL], list[str]()
            for each in names:
                contest = Contest(ground, runs, records, partitions, functools.partial(_say, say, each))
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
            return Report(
                machine=describe(ground.server),
                rows=rows,
                left_out=left_out,
                failed=failed,
                runs=runs,
                command=command,
            )


def _say(say: Callable[[str], None], scene: str, text: str) -> None:
    say(f"{scene}: {text}")


async def _profile(contest: Contest, path: Path) -> None:
    """Run a worker under pyinstrument, which slows it, so the run gives no figure."""
    renderer = "html" if path.suffix == ".html" else "text"
    command = ("-m", "pyinstrument", "-r", renderer, "-o", str(path), *WORKER)
    keys = await contest.ground.fill_records("events", contest.records, partitions=contest.partitions)
    await contest.one(Contestant("profiled worker", command), keys)
    await contest.ground.remove_keys()


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM cancel the bench as SIGINT does, so that the bench removes its keys."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    # A shell script starts background processes with SIGINT ignored. SIGTERM must cancel them even then.
    before = signal.signal(signal.SIGTERM, on_ctrl_c if callable(on_ctrl_c) else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
