"""``streamworker pause``, ``resume`` and ``retry``: requests to owners of partitions, without a restart."""

import getpass
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import anyio

from streamworker.cli.options import Partitions, ProcessorPath, option, seconds_of
from streamworker.cli.output import say
from streamworker.cli.support import ask, give_up, group_keys, wanted_partitions
from streamworker.core.words import counted, name_of, ranges
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import BackendError, StreamworkerError
from streamworker.importing import resolve_processor
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.group.requests import Given, Request, make_request
from streamworker.redisio.group.risks import forget_deaths
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import check_holds_keys

POLL_S = 0.05
FAILING = ("halted", "retrying")
BY_TIME = ("timer ", "function ")
REFUSED = "Redis refused, or its node did not answer; nothing was asked of it, so repeat the command"
STANDS = "The request was written, and stands; whether it is obeyed by now is not known."
DONE: dict[Request, str] = {"pause": "Paused", "resume": "Resumed", "retry": "Retried"}

T = TypeVar("T")
Locks = dict[int, LockView | BackendError | None]

Why = Annotated[str, option("--why TEXT", "The reason, for `status` and `history`.")]
Wait = Annotated[str, option("--wait TIME", "How long to wait until the workers have done it.")]


def pause(
    processor: ProcessorPath, partition: Partitions = None, why: Why = "", wait: Wait = "10 seconds"
) -> None:
    """Let a processor start no more calls, until `resume`.

    Calls that run are finished and committed. A pause survives restarts and rebalances. The command
    ends when the owner of each partition has confirmed it.

    \b
    Examples:
      streamworker pause shop:price --why "the mail server moves"
      streamworker pause shop:price --partition 3 --partition 4
      streamworker pause shop:orders.archive --why "the bucket moves"
    """
    _order(processor, "pause", partition, why, wait)


def resume(
    processor: ProcessorPath, partition: Partitions = None, why: Why = "", wait: Wait = "10 seconds"
) -> None:
    """Let a paused processor go on.

    \b
    Examples:
      streamworker resume shop:price
    """
    _order(processor, "resume", partition, why, wait)


def retry(
    processor: ProcessorPath, partition: Partitions = None, why: Why = "", wait: Wait = "10 seconds"
) -> None:
    """Try again now what has failed: end the wait between two attempts, or restart a halted partition.

    Calls that run are finished and committed before. Records that were not committed may be handled
    again.

    \b
    Examples:
      streamworker retry shop:price --partition 7
    """
    _order(processor, "retry", partition, why, wait)


def _order(path: str, request: Request, partitions: list[int] | None, why: str, wait: str) -> None:
    app, spec = resolve_processor(path, or_archiver=True)
    ask(app, _give, spec, request, partitions, why, seconds_of(wait, "--wait"), of=spec.stream)


async def _give(
    backend: Backend, spec: ProcessorSpec, request: Request, among: list[int] | None, why: str, wait_s: float
) -> None:
    """Make a request, wait until it is obeyed, and say what was done; fail if not everything was."""
    wanted = wanted_partitions(spec.stream, among, "--partition")
    keys, name = group_keys(spec), spec.called
    check_holds_keys(await backend.info())  # One node of a Cluster would obey for its own partitions alone.
    before = await read_locks(backend, keys, wanted)
    again = await forget_deaths(backend, keys) if request == "retry" else []
    if again:
        say(f"Held back no more: {', '.join(again)}.")
    given = await make_request(backend, keys, wanted, request, who=operator(), why=why)
    if not given and again:
        return  # Workers have died before they ran any partition.
    never = [p for p, lock in before.items() if lock is None]
    left = [
        f"Partition {p}: {'the group has never run in it' if p in never else REFUSED}."
        for p in wanted
        if p not in given
    ]
    if not given and len(never) == len(wanted):
        raise StreamworkerError(
            f"{name} has never run in these partitions, so there is nothing to {request}.",
            remedy="Start a worker first, or look at `streamworker status`.",
        )
    news = {p: each for p, each in given.items() if each.is_new}
    if not news:
        kept = f"Not paused: {counted(len(given), 'partition')} of {name}: {ranges(given)}."
        give_up(*([kept] if given else []), *left)

    async def look() -> tuple[Locks, list[int]]:
        locks = await read_locks(backend, keys, list(news))
        return locks, [p for p, each in news.items() if not _is_obeyed(locks.get(p), each)]

    read, open_ = await last_look(look, lambda seen: not seen[1], wait_s)
    locks = {p: lock for p, lock in read.items() if isinstance(lock, LockView)}
    done = [p for p in news if p not in open_]
    free = [p for p in done if not locks[p].owner]
    # Where nobody has the partition, a pause stands there by itself, and a retry is nothing yet.
    obeyed = done if request != "retry" else [p for p in done if p not in free]
    changed = [p for p in obeyed if request != "retry" or _fails(before.get(p))]
    if changed:
        say(f"{DONE[request]} {counted(len(changed), 'partition')} of {name}: {ranges(changed)}.")
    if others := [p for p in obeyed if p not in changed]:
        say(f"Neither halted nor retrying: {ranges(others)}.")
    if free:
        say(f"Nobody owns {ranges(free)} now; it holds for the worker that takes them.")
    if request == "retry" and (paused := [p for p in done if locks[p].pause is not None]):
        say(f"An operator has paused {ranges(paused)}: it stays so until `streamworker resume`.")
    late = [f"Partition {p}: {_why_open(read.get(p))}" for p in open_]
    if late or left:
        give_up(*late, *left)


async def last_look(look: Callable[[], Awaitable[T]], is_enough: Callable[[T], bool], wait_s: float) -> T:
    """Look until a look finds enough, or the time is over; return what the last one found.

    What a command says of a request comes from a look. So there is always one, whatever the time, and where
    one fails or Ctrl-C ends it, the command says that the request stands.
    """
    until_s = anyio.current_time() + wait_s
    try:
        while True:
            found = await look()
            if is_enough(found) or anyio.current_time() >= until_s:
                return found
            await anyio.sleep(POLL_S)
    except BaseException:
        say(STANDS, error=True)
        raise


def _why_open(lock: LockView | BackendError | None) -> str:
    """Say why it is not known that a request is obeyed, by what was read of the lock at the last look."""
    match lock:
        case LockView(owner=owner):
            return (
                f"{name_of(owner)} has not confirmed it yet: a call runs, or the worker is away. "
                "The request stands, and is obeyed then."
            )
        case BackendError():
            return f"{STANDS} {lock.message}"
        case _:
            return "its lock is gone, or another program wrote to it: see `streamworker doctor`."


def _fails(lock: object) -> bool:
    """Whether a record, a timer, or a function at the ends of values is what a retry is for."""
    return isinstance(lock, LockView) and (lock.state in FAILING or lock.reason.startswith(BY_TIME))


def _is_obeyed(lock: LockView | BackendError | None, given: Given) -> bool:
    """Whether the owner has obeyed a request, or nobody owns the partition, and the next owner will."""
    return isinstance(lock, LockView) and (lock.obeyed >= given.version or not lock.owner)


def operator() -> str:
    """Return the name of the user who runs this command, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may have a user without a name.
        return f"uid {os.getuid()}"
