"""The Lua scripts, read once from ``lua``; the server runs each atomically.

A script's header names its KEYS, its ARGV and its replies. Scripts reply with codes and not with error
replies, so that a refusal of the protocol differs from a refusal of the server. The remaining errors
are the server's own: out of memory, read only, no permission.

``parts/common.lua`` stands in front of each script, and so do the parts that a script or a part names in its
first line, ``-- uses: ids groups``, since Redis has no include. So does the check of the types that the
header gives to KEYS: Redis does not roll back a script that fails half-way. A script that must check them in
another way calls ``wrong_type`` itself.

Lua makes each function anew whenever a script runs: those of ``parts/trim.lua`` take a sixth of the time of
an append (measured). A function that is rarely called begins with ``-- include: trim``, and makes them.
"""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from streamworker.errors import BackendRefused

_USES = "-- uses:"
_INCLUDE = re.compile(r"^ *-- include: (\w+)\n", re.MULTILINE)
_TYPE = re.compile(r"\((hash|stream|string|zset|any)\b")


@dataclass(frozen=True, slots=True)
class Script:
    """One script; ``EVALSHA`` names it by its SHA-1."""

    name: str
    text: str
    sha: str


def load(name: str) -> Script:
    """Read a script, with its parts and the check of its keys' types in front."""
    body = _read(name)
    parts: list[str] = []
    _gather("parts/common", parts)
    _gather(name, parts)
    text = "\n".join([*map(_read, parts[:-1]), *_type_check(body), body])
    text = _INCLUDE.sub(lambda found: _included(found[1], parts), text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return (files("streamworker.redisio") / "lua" / f"{name}.lua").read_text("utf-8")


def _gather(name: str, parts: list[str]) -> None:
    """Add a file to ``parts``, after all files that it uses."""
    first = _read(name).partition("\n")[0]
    for used in first.removeprefix(_USES).split() if first.startswith(_USES) else ():
        if f"parts/{used}" not in parts:
            _gather(f"parts/{used}", parts)
    parts.append(name)


def _included(part: str, before: list[str]) -> str:
    """Return a part, and what it uses besides the parts that stand in front."""
    parts = list(before)
    _gather(f"parts/{part}", parts)
    return "\n".join(map(_read, parts[len(before) :]))


def _type_check(body: str) -> list[str]:
    keys = body[body.index("-- KEYS") :].partition("-- ARGV")[0].partition("-- reply")[0]
    types = _TYPE.findall(keys)
    if "wrong_type(" in body or set(types) == {"any"}:
        return []
    expected = ", ".join(f"'{each}'" for each in types)
    return [f"local wrong = wrong_type({{{expected}}})", "if wrong then return {'BADTYPE', wrong} end"]


STORE = load("data/store")
REGISTER = load("group/register")
ACQUIRE = load("group/acquire")
RELEASE = load("group/release")
MARK = load("group/mark")
REQUEST = load("group/request")
COMMIT = load("data/commit")
APPEND = load("data/append")
FORWARD = load("data/forward")
OPEN_OUTBOX = load("data/open_outbox")
SEND_ONCE = load("data/send_once")
LATER_PUT = load("data/later_put")
LATER_CANCEL = load("data/later_cancel")
LATER_MOVE = load("data/later_move")
TRIM = load("data/trim")
EXPIRE = load("data/expire")
CHANGE_MEMBERS = load("group/change_members")
MEND_MEMBERS = load("group/mend_members")
HEARTBEAT = load("group/heartbeat")
MOVE_CHECKPOINT = load("group/move_checkpoint")
COUNT = load("data/count")
REPLAY_DEAD = load("data/replay_dead")
REPAIR_DAMAGED = load("admin/repair_damaged")
REPAIR_LOCK = load("admin/repair_lock")
REPAIR_READER = load("admin/repair_reader")
REPAIR_LOG = load("admin/repair_log")
REPAIR_TAKEN = load("admin/repair_taken")
REPAIR_PARTITION = load("admin/repair_partition")
REPAIR_GROUP = load("admin/repair_group")
REPAIR_AHEAD = load("admin/repair_ahead")

SHARED = tuple(each for each in list(globals().values()) if isinstance(each, Script))
"""All of these; ``group.protocols`` adds those of single protocols."""

ARGS_MAX = 7_900
"""Maximum fields and values of one entry in a script: Lua's ``unpack`` fails at 8,000."""


OVERWRITTEN = (
    "Find that program, and look at the key with TYPE. Restore the former value, or move the new one away "
    "with RENAME. Do not delete a value that may hold committed rows, a checkpoint, state or dead letters."
)
"""Remedy for a key that another program overwrote."""


def wrong_type(key: bytes | str) -> BackendRefused:
    """Return the error for a key that holds another type or other fields than expected."""
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    return BackendRefused(
        f"The key {name} holds another type of value than streamworker keeps there, or other fields.",
        remedy=f"Another program wrote to it. {OVERWRITTEN}",
    )


def log_ahead(key: str, last: str, rows: str) -> BackendRefused:
    """Return the error for an acked log to which no commit can be added."""
    return BackendRefused(
        f"The acked log {key} is ahead of its lock: its last id is {last}, and its lock counts {rows} rows.",
        remedy="Another program wrote to one of them. `streamworker repair APP` repairs that, and loses no "
        "committed row. Do not delete the log.",
    )


def checked(reply: Any) -> Any:
    """Return a script's reply; raise an error that names the key if it is BADTYPE."""
    if reply[0] == b"BADTYPE":
        raise wrong_type(reply[1])
    return reply
