"""How safe a write must be before it counts: in memory, on the server's disk, or at replicas.

``WAITAOF`` and ``WAIT`` speak of what their own connection wrote, and block it. So they travel in
the round trip of the scripts that they are about, behind the last of them. They are no part of a
transaction: by the time they count, the write is done and everybody can see it. A count that is
short therefore never means "no". It means that nobody knows whether the write will survive, and
whoever made it makes it again.

A repeat finds its write there and would change nothing. To wait behind it then would be to wait for
nothing. So the scripts write what is already there once more when they answer ``DUP``: the wait is
for that write, which comes after the first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.info import ServerInfo

Mode = Literal["memory", "aof", "replicas"]

WAIT_MARGIN_MS = 100
"""What the server may take beyond the time that it was told to wait."""


class NotDurable(BackendUnavailable):
    """A write was done, and it is not known whether it will survive."""


@dataclass(frozen=True, slots=True)
class Undurable:
    """The reply to a script whose writes were not confirmed in time."""

    reply: Any
    reason: str

    def error(self) -> NotDurable:
        """Return what is wrong."""
        return NotDurable(
            f"What was written is not safe yet: {self.reason}.",
            remedy="It is there, and may be lost. It is written again until it is safe.",
        )


@dataclass(frozen=True, slots=True)
class Durability:
    """What is waited for behind commits and sends.

    Examples
    --------
    >>> Durability("replicas", 2, 500).command
    ('WAIT', 2, 500)
    >>> Durability("memory").command
    ()
    """

    mode: Mode = "memory"
    replicas: int = 1
    """How many must have it, where replicas are waited for."""
    timeout_ms: int = 2_000
    """How long the server waits before it answers with the count that there is."""

    @property
    def command(self) -> tuple[str | int, ...]:
        """The command that waits; empty where nothing is waited for."""
        match self.mode:
            case "memory":
                return ()
            case "aof":
                return ("WAITAOF", 1, 0, self.timeout_ms)
            case "replicas":
                return ("WAIT", self.replicas, self.timeout_ms)

    @property
    def longest_ms(self) -> int:
        """How much longer a call may take because of it."""
        return self.timeout_ms + WAIT_MARGIN_MS if self.command else 0

    def shortfall(self, reply: Any) -> str:
        """Return what is missing, by the reply to :attr:`command`; empty if nothing is."""
        if isinstance(reply, Exception):
            return f"the server does not wait: {str(reply).rstrip('.')}"
        if self.mode == "aof":
            on_disk = isinstance(reply, Sequence) and len(reply) > 0 and reply[0] == 1
            return "" if on_disk else f"it was not on the server's disk within {self.timeout_ms} ms"
        if isinstance(reply, int) and reply >= self.replicas:
            return ""
        return f"{reply} of {self.replicas} replicas had it within {self.timeout_ms} ms"

    def judged(self, replies: list[Any], waited: Any) -> list[Any]:
        """Return the replies, each in an :class:`Undurable` if the wait came up short.

        Error replies stay as they are: they wrote nothing.
        """
        reason = self.shortfall(waited)
        if not reason:
            return replies
        return [each if isinstance(each, Exception) else Undurable(each, reason) for each in replies]


MEMORY = Durability()
"""What Redis has is done."""


def confirms_too_early(info: ServerInfo) -> bool:
    """Whether a server's ``WAITAOF`` is answered before the disk is written to, with ``everysec``.

    A change of 2023 (redis #12622) takes what was handed to the system for what is on the disk, for as
    long as the last write to disk is less than a second old. It is in Redis 7.4, was corrected in 8.0
    (redis #13793), and is in every Valkey since 8.0: 9.1.2 confirmed 33 writes with 4 fdatasync in
    three seconds (measured), and 364 with 364 with ``appendfsync always``.
    """
    numbers = re.match(r"(\d+)\.(\d+)", info.version)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version == (0, 0):
        return True  # It does not tell.
    return version >= (8, 0) if info.is_valkey else (7, 4) <= version < (8, 0)


def refusal_of_policy(policy: str | None, info: ServerInfo | None) -> ConfigurationError | None:
    """Return why ``durability="aof"`` cannot be had, by what a server says of itself.

    Parameters
    ----------
    policy
        Its ``appendfsync``; None if this user may not ask.
    info
        The rest; None if this user may not ask for that either.

    Examples
    --------
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
    """Return why a server cannot wait as it is asked to, by its answer to a first wait.

    Too few replicas are no reason: they may come back, and until they do nothing is confirmed.

    Raises
    ------
    BackendError
        If there was no answer, or the server is no primary any more: a failover is no reason either.
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
