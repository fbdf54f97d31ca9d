"""Known mistakes, planted in the real code of a worker: a checker that has not caught one is not trusted.

Each is done in the worker's process after its start, as if somebody had edited a script or a function.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from streamworker.redisio.data import commit, outbox, streams
from streamworker.redisio.group import locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import Script
from streamworker.runtime import partitions
from streamworker.runtime.run import committer, invoke, statetables
from streamworker.runtime.run.modes import keyed, modes
from streamworker.runtime.send.producer import Producer


@dataclass(frozen=True)
class Plant:
    """One mistake."""

    do: Callable[[], None]
    breaks: frozenset[str]
    """Promises of which at least one must be found broken."""
    needs: tuple[str, ...]
    """Names of the faults that bring it out."""
    on_a_cluster: bool = False
    """Whether only a Cluster brings it out."""


def _edit(module: Any, name: str, *, before: str = "", change: tuple[str, str] = ("", "")) -> None:
    """Change a script where a module uses it: put something before it, or replace a piece of it."""
    script: Script = getattr(module, name)
    old, new = change
    assert not old or script.text.count(old) == 1, f"{name} has {old!r} {script.text.count(old)} times"
    text = f"{before}\n{script.text.replace(old, new) if old else script.text}"
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    setattr(module, name, replace(script, text=text, sha=sha))


def without_a_fence() -> None:
    """Whoever was the owner once may commit, wherever the checkpoint is."""
    as_it_stands = """
local stands = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'checkpoint')
if stands[1] then ARGV[1], ARGV[2], ARGV[3] = stands[1], stands[2], stands[3] end
"""
    _edit(commit, "COMMIT", before=as_it_stands)


def retried_commits_are_done_again() -> None:
    """A commit is not recognised when it comes again."""
    as_before = """
if redis.call('HGET', KEYS[1], 'checkpoint') == ARGV[4] then
  redis.call('HSET', KEYS[1], 'checkpoint', ARGV[3])
end
"""
    _edit(commit, "COMMIT", before=as_before)


def what_nobody_has_read_is_trimmed() -> None:
    """A commit drops entries that wait behind it."""
    _edit(commit, "COMMIT", before="redis.call('XTRIM', KEYS[3], 'MAXLEN', 2)")


def trimming_believes_the_group_of_redis() -> None:
    """What lies before the position of the consumer group is dropped, wherever somebody has moved it."""
    by_group = """
local shown = redis.pcall('XINFO', 'GROUPS', KEYS[3])
if not shown.err and shown[1] then redis.call('XTRIM', KEYS[3], 'MINID', shown[1][8]) end
"""
    _edit(commit, "COMMIT", before=by_group)


def dead_letters_are_dropped() -> None:
    """A commit goes past what cannot be handled, and keeps nothing of it."""
    plain = commit.commit_call

    def forgetful(keys: GroupKeys, request: commit.CommitRequest, *rest: Any, **options: Any) -> Any:
        request.dead = ()
        return plain(keys, request, *rest, **options)

    vars(commit)["commit_call"] = forgetful


def retried_sends_are_written_again() -> None:
    """A producer's number is forgotten."""
    _edit(streams, "APPEND", change=("redis.call('GET', sent)", "nil"))


def epochs_are_not_raised() -> None:
    """Whoever takes a lock has it at the epoch of the owner before."""
    raised = "local raised = text({})"
    change = (raised.format("math.max(now, last + 1)"), raised.format("last"))
    _edit(locks, "ACQUIRE", change=change)


def unanswered_commits_count_as_done() -> None:
    """No answer is taken for a yes."""
    plain = commit.commit_many

    async def hopeful(*arguments: Any, **options: Any) -> list[commit.CommitReply]:
        replies = await plain(*arguments, **options)
        requests = arguments[2]
        return [
            commit.CommitReply(commit.CommitCode.OK, request.epoch, request.new, 0)
            if reply.code is commit.CommitCode.UNKNOWN
            else reply
            for request, reply in zip(requests, replies, strict=True)
        ]

    vars(committer)["commit_many"] = hopeful


def losses_are_not_reported() -> None:
    """A producer says nothing of what Redis has lost."""
    vars_of: Any = Producer
    vars_of.lost = property(lambda _: ())


def foreign_cancels_pass_for_ours() -> None:
    """A CancelledError that a function raises ends the task that called it, as if we had cancelled that."""

    def believing(raised: BaseException) -> Exception:
        if isinstance(raised, asyncio.CancelledError):
            raise raised
        return invoke.as_error(raised)

    vars(invoke)["returning_errors"] = lambda function, args: function(*args)
    for module in (modes, partitions):
        vars(module)["failure"] = believing


def messages_are_taken_again() -> None:
    """A target forgets which messages of an outbox it has."""
    change = ("if stands ~= begins or stands == ends then", "if false then")
    _edit(outbox, "FORWARD", change=change)


def one_key_overlaps() -> None:
    """Records count as if they had no key."""
    vars(keyed)["canonical_key"] = lambda _: None


def writes_under_way_are_not_read() -> None:
    """A read of a table misses what a commit that is under way has written."""
    state: Any = statetables.StateWithTables
    plain = state.seal

    def forgetful(self: Any) -> Any:
        changes = plain(self)
        self._unconfirmed[-1] = {}
        return changes

    state.seal = forgetful


PLANTS: dict[str, Plant] = {
    "no-fence": Plant(without_a_fence, frozenset({"I2", "I3", "I4", "I6"}), ("worker frozen",)),
    "commits-again": Plant(retried_commits_are_done_again, frozenset({"I2", "I5"}), ("replies lost",)),
    "sends-again": Plant(retried_sends_are_written_again, frozenset({"I2"}), ("replies lost",)),
    "same-epoch": Plant(epochs_are_not_raised, frozenset({"I4"}), ("worker killed",)),
    "hopeful": Plant(unanswered_commits_count_as_done, frozenset({"I6"}), ("connections refused",)),
    "trims-unread": Plant(what_nobody_has_read_is_trimmed, frozenset({"I1"}), ("worker killed",)),
    "trims-by-group": Plant(
        trimming_believes_the_group_of_redis, frozenset({"I1"}), ("consumer group moved",)
    ),
    "silent-cancels": Plant(foreign_cancels_pass_for_ours, frozenset({"I8"}), ("poison entries",)),
    "no-dead-letters": Plant(dead_letters_are_dropped, frozenset({"I1"}), ("poison entries",)),
    "silent-losses": Plant(
        losses_are_not_reported,
        frozenset({"I1"}),
        ("primary killed, its replica had not followed",),
        on_a_cluster=True,
    ),
    "forwards-again": Plant(messages_are_taken_again, frozenset({"I2"}), ("replies lost",)),
    "keys-overlap": Plant(one_key_overlaps, frozenset({"I3"}), ("worker killed",)),
    "stale-tables": Plant(writes_under_way_are_not_read, frozenset({"I5"}), ("worker killed",)),
}
