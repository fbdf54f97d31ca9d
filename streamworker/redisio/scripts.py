"""The Lua scripts, read once from ``lua/*.lua``; each is one step at the server.

A script's head names its KEYS, its ARGV and its replies. Replies are codes and never error
replies, so that "no" from the protocol and "no" from the server are told apart; what remains as
an error is the server's own: out of memory, read only, no permission.

Scripts share functions by naming parts in their first line, ``-- uses: types ids``; the parts
are put in front of the text, since Redis has no include.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from streamworker.errors import BackendRefused

_USES = "-- uses:"


@dataclass(frozen=True, slots=True)
class Script:
    """One script; its SHA-1 is what ``EVALSHA`` is asked for."""

    name: str
    text: str
    sha: str


def _load(name: str) -> Script:
    folder = files("streamworker.redisio") / "lua"
    body = (folder / f"{name}.lua").read_text("utf-8")
    first = body.partition("\n")[0]
    parts = first.removeprefix(_USES).split() if first.startswith(_USES) else []
    text = "\n".join([*((folder / "parts" / f"{part}.lua").read_text("utf-8") for part in parts), body])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


REGISTER = _load("register")
ACQUIRE = _load("acquire")
RELEASE = _load("release")
MARK = _load("mark")
COMMIT = _load("commit")
APPEND = _load("append")
TRIM = _load("trim")
CHANGE_MEMBERS = _load("change_members")
MEND_MEMBERS = _load("mend_members")
HEARTBEAT = _load("heartbeat")
MOVE_CHECKPOINT = _load("move_checkpoint")
COUNT = _load("count")
REPLAY_DEAD = _load("replay_dead")
CLAIM_LIST = _load("claim_list")
CLAIM_TAKE = _load("claim_take")
CLAIM_UPDATE = _load("claim_update")
CLAIM_GIVE_UP = _load("claim_give_up")
LEASE_CHALLENGE = _load("lease_challenge")
LEASE_RACE = _load("lease_race")
LEASE_UPDATE = _load("lease_update")
REPAIR_MEMBERS = _load("repair_members")
REPAIR_DAMAGED = _load("repair_damaged")
REPAIR_LOCK = _load("repair_lock")
REPAIR_READER = _load("repair_reader")
REPAIR_LOG = _load("repair_log")
REPAIR_PLACE = _load("repair_place")
REPAIR_GROUP = _load("repair_group")

ALL: tuple[Script, ...] = (
    REGISTER,
    ACQUIRE,
    RELEASE,
    MARK,
    COMMIT,
    APPEND,
    TRIM,
    CHANGE_MEMBERS,
    MEND_MEMBERS,
    HEARTBEAT,
    MOVE_CHECKPOINT,
    COUNT,
    REPLAY_DEAD,
    CLAIM_LIST,
    CLAIM_TAKE,
    CLAIM_UPDATE,
    CLAIM_GIVE_UP,
    LEASE_CHALLENGE,
    LEASE_RACE,
    LEASE_UPDATE,
    REPAIR_MEMBERS,
    REPAIR_DAMAGED,
    REPAIR_LOCK,
    REPAIR_READER,
    REPAIR_LOG,
    REPAIR_PLACE,
    REPAIR_GROUP,
)

ARGS_MAX = 7_900
"""Fields and values of one entry that a script can pass on: Lua's ``unpack`` fails at 8,000."""


def wrong_type(key: bytes | str) -> BackendRefused:
    """Return the error for a key that holds something else than ours."""
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    return BackendRefused(
        f"The key {name} holds another type of value than streamworker keeps there, or other fields.",
        remedy="Another program wrote to it. Look at it with TYPE; correct it, or delete it if it is not "
        "needed.",
    )


def checked(reply: Any) -> Any:
    """Return a script's reply, unless it is BADTYPE.

    Raises
    ------
    BackendRefused
        Naming the key of another type.
    """
    if reply[0] == b"BADTYPE":
        raise wrong_type(reply[1])
    return reply
