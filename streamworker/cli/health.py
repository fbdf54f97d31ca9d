"""``streamworker health`` and ``wait``: probes and deploys ask whether workers are there."""

import time
import urllib.error
import urllib.request
from enum import StrEnum
from http.client import HTTPException
from typing import Annotated

import anyio
import typer

from streamworker.cli.options import GroupPath, Processors, option, seconds_of
from streamworker.cli.output import say
from streamworker.cli.support import ask, give_up, take
from streamworker.cli.workers.serving import LOOPBACK, is_every_address, parse_address
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.text import printable_lines, storable
from streamworker.core.words import ranges
from streamworker.importing import Selection, resolve_processors
from streamworker.redisio.wire.client import Backend
from streamworker.urls import host_and_port

ANSWER_S = 5.0
LOOK_S = 0.5
JOINED = ("active", "standby")

Probe = StrEnum("Probe", ["LIVEZ", "READYZ", "STARTUPZ"])


def health(
    probe: Annotated[Probe, typer.Argument(metavar="PROBE", help="livez, readyz or startupz.")],
    health_port: Annotated[
        str, option("--health-port PORT", "What run --health-port of the worker on this machine says.")
    ],
) -> None:
    """Ask a worker on this machine a probe, for orchestrators that run a command.

    \b
    Examples:
      streamworker health readyz --health-port 8080
    """
    host, port = parse_address(health_port, "--health-port")
    address = host_and_port(LOOPBACK if is_every_address(host) else host, port)
    try:
        with urllib.request.urlopen(f"http://{address}/{probe}", timeout=ANSWER_S) as answer:
            say(*printable_lines(answer.read().decode("utf-8", "replace")))
    except urllib.error.HTTPError as problem:
        give_up(*printable_lines(problem.read().decode("utf-8", "replace")))
    except (OSError, HTTPException) as problem:
        why = getattr(problem, "reason", problem)
        give_up(f"No worker answers at {address}: {getattr(why, 'strerror', None) or storable(why)}.")


def wait(
    app: GroupPath,
    processor: Processors = None,
    joined: Annotated[int, option("--joined N", "Members that each group has at least.", min=1)] = 1,
    timeout: Annotated[str, option("--timeout TIME", "When to give up.")] = "1 minute",
) -> None:
    """Wait until enough workers have joined, and each partition has one of them as its owner.

    Workers that leave, or whose heartbeats are late, do not count. At the timeout the command ends
    with 1, and says what is missing.

    \b
    Examples:
      streamworker wait shop:app --joined 3
      streamworker wait shop:price --joined 2 --timeout "5 minutes"
    """
    selection = resolve_processors(app, processor)
    if missing := ask(selection.app, _wait, selection, joined, seconds_of(timeout, "--timeout")):
        give_up(*missing)
    names = ", ".join(spec.name for spec in selection.processors)
    say(f"{joined} or more workers have joined {names}, and every partition has an owner.")


async def _wait(backend: Backend, selection: Selection, joined: int, timeout_s: float) -> list[str]:
    """Look until nothing is missing, or the time is over; return what is missing."""
    until_s = time.monotonic() + timeout_s
    while True:
        taken = [await take(backend, spec) for spec in selection.processors]
        missing = [line for snapshot in taken for line in _missing(snapshot, joined)]
        if not missing or time.monotonic() >= until_s:
            return missing
        await anyio.sleep(LOOK_S)


def _missing(snapshot: GroupSnapshot, joined: int) -> list[str]:
    there = [member for member in snapshot.members if member.state in JOINED]
    lines = []
    if len(there) < joined:
        lines.append(f"{snapshot.processor}: {len(there)} of {joined} workers have joined.")
    owners = {member.id for member in there}
    left = [view.partition for view in snapshot.partitions if view.owner not in owners]
    if left:
        lines.append(f"{snapshot.processor}: no worker that stays owns partitions {ranges(left)}.")
    return lines
