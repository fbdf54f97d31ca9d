"""How durable a write must be before it counts: in memory, on the server's disk, or at replicas.

``WAITAOF`` and ``WAIT`` cover the writes of their own connection, and block it. So they are sent in the
same round trip as the scripts that they confirm, after the last script. They are not part of a transaction:
when they return, the write is done and visible to all clients. So a count that is too low does not mean
that the write failed. It means that the write may be lost, and the caller repeats it.

A repeat finds its earlier write and would change nothing, so a wait after it would confirm nothing. So
the scripts write the same value once more when they reply ``DUP``: the wait then covers that write, which
comes after the first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.info import ServerInfo

Mode = Literal["memory", "aof", "replicas"]

WAIT_MARGIN_MS = 100
"""Time that the server may take beyond the requested wait."""


class NotDurable(BackendUnavailable):
    """A write was done, and may not survive a failure."""


@dataclass(frozen=True, slots=True)
class Undurable:
    """The reply to a script whose writes were not confirmed in time."""

    reply: Any
    reason: str

    def error(self) -> NotDurable:
        """Return the error for the unconfirmed write."""
        return NotDurable(
            f"What was written is not safe yet: {self.reason}.",
            remedy="It is there, and may be lost. It is written again until it is safe.",
        )


@dataclass(frozen=True, slots=True)
class Durability:
    """The confirmation that commits and sends wait for.

    >>> Durability("replicas", 2, 500).command
    ('WAIT', 2, 500)
    >>> Durability("memory").command
    ()
    """

    mode: Mode = "memory"
    replicas: int = 1
    """Number of replicas that must have the write, in mode ``replicas``."""
    timeout_ms: int = 2_000
    """Maximum time that the server waits before it replies with the current count."""

    command: tuple[str | int, ...] = field(init=False, repr=False)
    """The command that waits; empty in mode ``memory``."""
    longest_ms: int = field(init=False, repr=False)
    """Additional time that a call may take because of the wait."""

    def __post_init__(self) -> None:
        commands = {
            "memory": (),
            "aof": ("WAITAOF", 1, 0, self.timeout_ms),
            "replicas": ("WAIT", self.replicas, self.timeout_ms),
        }
        object.__setattr__(self, "command", commands[self.mode])
        object.__setattr__(self, "longest_ms", self.timeout_ms + WAIT_MARGIN_MS if self.command else 0)

    def shortfall(self, reply: Any) -> str:
        """Return what the reply to :attr:`command` does not confirm; empty if the write is durable."""
        if isinstance(reply, Exception):
            return f"the server does not wait: {str(reply).rstrip('.')}"
        if self.mode == "aof":
            on_disk = isinstance(reply, Sequence) and len(reply) > 0 and reply[0] == 1
            return "" if on_disk else f"it was not on the server's disk within {self.timeout_ms} ms"
        if isinstance(reply, int) and reply >= self.replicas:
            return ""
        return f"{reply} of {self.replicas} replicas had it within {self.timeout_ms} ms"

    def judged(self, replies: list[Any], waited: Any) -> list[Any]:
        """Return the replies, each wrapped in :class:`Undurable` if the wait did not confirm the writes.

        Error replies stay unchanged: those calls wrote nothing.
        """
        reason = self.shortfall(waited)
        if not reason:
            return replies
        return [each if isinstance(each, Exception) else Undurable(each, reason) for each in replies]


MEMORY = Durability()
"""A write counts once Redis has it in memory."""


def confirms_too_early(info: ServerInfo) -> bool:
    """Whether a server replies to ``WAITAOF`` before it writes to the disk, with ``everysec``.

    Since a change of 2023 (redis #12622) a server counts data as on disk once it was handed to the
    operating system, while the last write to disk is less than a second old. The change is in Redis 7.4, was
    corrected in 8.0 (redis #13793), and is in every Valkey since 8.0. Valkey 9.1.2 confirmed 33 writes
    with 4 fdatasync in three seconds (measured), and 364 writes with 364 with ``appendfsync always``.
    """
    numbers = re.match(r"(\d+)\.(\d+)", info.version)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version == (0, 0):
        return True  # The server does not report its version.
    return version >= (8, 0) if info.is_valkey else (7, 4) <= version < (8, 0)


def refusal_of_policy(policy: str | None, info: ServerInfo | None) -> ConfigurationError | None:
    """Return why a server cannot provide ``durability="aof"``, from its configuration.

    ``policy`` is its ``appendfsync``. Both arguments are None if this user may not read them.

    >>> refusal_of_policy("always", None) is None
    True
    """
    if policy == "always":
        return None
    if policy == "no":
        return ConfigurationError(
            'durability="aof" would wait for ever: with appendfsync no nothing is said to be on the disk.',
            remedy="Set appendfsync always at the server.",
        )
    if info is not None and not confirms_too_early(info):
        return None
    who = "This server" if info is None else info.name
    if policy is not None:
        return ConfigurationError(
            f'durability="aof" needs appendfsync always: with {policy}, WAITAOF of {who} is answered before '
            "the disk is written to.",
            remedy='Set appendfsync always at the server; or take Redis 8; or durability="replicas".',
        )
    return ConfigurationError(
        f'durability="aof" needs appendfsync always with {who}, and this user may not ask whether it has.',
        remedy="If the server has it, say so: appendfsync_always=True or STREAMWORKER_APPENDFSYNC_ALWAYS=1.",
    )


def refusal(durability: Durability, answer: Any) -> ConfigurationError | None:
    """Return why a server cannot confirm writes, from its answer to a first wait.

    Too few replicas are not a reason: they may come back, and until then no write is confirmed. A missing
    answer and a failover are not reasons either, and are raised.
    """
    if not isinstance(answer, BackendRefused):
        if isinstance(answer, BackendError):
            raise answer
        return None
    said = answer.message
    if "replica instances" in said:
        raise BackendUnavailable(
            f"{said.partition(': ')[0]}: it is a replica by now, and confirms nothing.",
            remedy="The next try goes to the primary that took over.",
        )
    if "unknown command" in said.lower():
        return ConfigurationError(
            f'durability="{durability.mode}" needs {durability.command[0]}, which this server does not know.',
            remedy='Redis 7.2 or Valkey 8.0, or later, have it. Or use durability="replicas", or "memory".',
        )
    if "appendonly" in said:
        return ConfigurationError(
            'durability="aof" needs an append-only file, and this server writes none.',
            remedy="Set appendonly yes at the server, and appendfsync always. "
            'Or use durability="replicas", or "memory".',
        )
    if "NOPERM" in said:
        return ConfigurationError(
            f'durability="{durability.mode}" needs the right for {durability.command[0]}, which this user '
            "has not.",
            remedy=f"Give it +{str(durability.command[0]).lower()}; `streamworker acl` prints the rules.",
        )
    return ConfigurationError(
        f'durability="{durability.mode}" does not work here: {said}', remedy=answer.remedy or "Use another."
    )
