"""Known mistakes, planted in the real code of a worker: a checker that has not caught one is not trusted.

Each is done in the worker's process after its start, as if somebody had edited a script or a function.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from streamworker.redisio import commit, locks, streams
from streamworker.redisio.scripts import Script
from streamworker.runtime import committer


@dataclass(frozen=True)
class Plant:
    """One mistake."""

    do: Callable[[], None]
    breaks: frozenset[str]
    """Promises of which at least one must be found broken."""
    needs: tuple[str, ...]
    """Names of the faults that bring it out."""


def _edit(module: Any, name: str, *changes: tuple[str, str]) -> None:
    """Change a script where a module uses it."""
    script: Script = getattr(module, name)
    text = script.text
    for old, new in changes:
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    setattr(module, name, replace(script, text=text, sha=sha))


FENCE = "if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end"
"""The line of ``commit.lua`` that fences."""


def without_a_fence() -> None:
    """Whoever was the owner once may commit."""
    _edit(commit, "COMMIT", (FENCE, ""))


def checkpoint_before_the_rows() -> None:
    """The checkpoint moves first; what refuses the rows then leaves it there."""
    _edit(
        commit,
        "COMMIT",
        ("-- Where each section of ARGV begins.", "redis.call('HSET', lock, 'checkpoint', new)\n"),
    )


def retried_commits_are_done_again() -> None:
    """A commit is not recognised when it comes again, and follows whatever is there."""
    _edit(
        commit,
        "COMMIT",
        ("if held[3] == new then return reply('DUP') end", ""),
        ("if held[3] ~= previous then return reply('GAP') end", ""),
        ("  if not found[1] or found[1][1] ~= last then return reply('GAP') end", ""),
    )


def retried_sends_are_written_again() -> None:
    """A producer's number is not looked at."""
    _edit(streams, "APPEND", ("tonumber(number) >= tonumber(ARGV[1])", "false"))


def epochs_are_not_raised() -> None:
    """Whoever takes a lock has it at the epoch of the owner before."""
    _edit(
        locks,
        "ACQUIRE",
        ("redis.call('HINCRBY', lock, 'epoch', 1)", "redis.call('HINCRBY', lock, 'epoch', 0)"),
    )


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


PLANTS: dict[str, Plant] = {
    "no-fence": Plant(without_a_fence, frozenset({"I4", "I6"}), ("worker frozen",)),
    "checkpoint-first": Plant(checkpoint_before_the_rows, frozenset({"I1", "I5"}), ("memory full",)),
    "retry-again": Plant(retried_commits_are_done_again, frozenset({"I2", "I5"}), ("replies lost",)),
    "send-again": Plant(retried_sends_are_written_again, frozenset({"I2"}), ("replies lost",)),
    "same-epoch": Plant(epochs_are_not_raised, frozenset({"I4"}), ("worker killed",)),
    "hopeful": Plant(
        unanswered_commits_count_as_done, frozenset({"I6", "I1", "I7"}), ("connections refused",)
    ),
}
