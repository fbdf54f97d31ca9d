"""The Lua scripts, read once from ``lua``; the server runs each atomically.

A script's head names its KEYS, its ARGV and its replies. Scripts reply with codes and not with error
replies, so that a refusal of the protocol differs from a refusal of the server. The remaining errors
are the server's own: out of memory, read only, no permission.

The script and its callers use these names, so that nobody counts positions. A name begins in the tenth column
or after two spaces; lines that are indented deeper are prose:

    -- KEYS  lock (hash)  events (stream)
    -- ARGV  owner  epoch: of the lock  limit (number)
    --       removed (list): ids of members
    --       fields...

From this head come the lines ``local lock, events = KEYS[1], KEYS[2]`` and so on, in front of the script. A
``number`` is one in Lua, too. ARGV has the length of a ``list``, and behind it the words of the list, which
begin at the index ``removed_at`` and end at ``removed_end``. ``fields...`` is all that is left, from
``fields_at`` on. A caller passes ``RELEASE.call(lock=..., owner=...)``, and a sequence for a list.

``parts/common.lua`` stands in front of each script, and so do the parts that a script or a part names in its
first line, ``-- uses: ids groups``, since Redis has no include. So does the check of the types that the
head gives to KEYS: Redis does not roll back a script that fails half-way. A script that must check them in
another way calls ``wrong_type`` itself.

Lua makes each function anew whenever a script runs: those of ``parts/trim.lua`` take a sixth of the time of
an append (measured). A function that is rarely called begins with ``-- include: trim``, and makes them.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any

from streamworker.errors import BackendRefused, InternalError
from streamworker.redisio.keys import OutboxKeys, StreamKeys

_USES = "-- uses:"
_INCLUDE = re.compile(r"^ *-- include: (\w+)\n", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: \((\w+)[^)]*\)|(\.\.\.)(?: \(.*\))?)?(?:: .*)?")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a script's KEYS or ARGV, in order."""

    plain: tuple[str, ...]
    lists: tuple[str, ...]
    rest: tuple[str, ...]
    """The one that takes all that is left, or none."""
    pick: Callable[[Mapping[str, Any]], Iterable[Any]] = field(repr=False)
    """Gets the values of the plain names."""

    def words(self, named: Mapping[str, Any]) -> list[Any]:
        """Return the values in the script's order."""
        words = [*self.pick(named)]
        for name in self.lists:
            words.append(len(its := named[name]))
            words += its
        for name in self.rest:
            words += named[name]
        return words


Call = tuple[Sequence[str], Sequence[Any]]
"""Keys and arguments of one call."""


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One script; ``EVALSHA`` names it by its SHA-1."""

    name: str
    text: str
    sha: str
    keys: Names
    args: Names
    count: int
    """How many names it has."""

    def call(self, **named: Any) -> Call:
        """Return one call, with each key and argument by the name that it has in the script's head."""
        return self._call(named)

    def at(self, place: StreamKeys | OutboxKeys, partition: int | None = None, /, **named: Any) -> Call:
        """Return one call; the keys that ``place`` has under their names are not given."""
        named.update(_keys_at(self, place, partition))
        return self._call(named)

    def _call(self, named: Mapping[str, Any]) -> Call:
        if len(named) != self.count:
            raise InternalError(f"{self.name}.lua takes {self.keys} and {self.args}, not {sorted(named)}.")
        return self.keys.words(named), self.args.words(named)


@cache
def _keys_at(script: Script, place: StreamKeys | OutboxKeys, partition: int | None) -> dict[str, str]:
    """Return the keys of a script that a place has; there are thousands of calls a second."""
    found = {name: getattr(place, name) for name in script.keys.plain if hasattr(place, name)}
    return found if partition is None else {name: key(partition) for name, key in found.items()}


def load(name: str) -> Script:
    """Read a script; in front come its parts, the names of its head, and the check of its keys' types."""
    body = _read(name)
    parts: list[str] = []
    _gather("parts/common", parts)
    _gather(name, parts)
    keys, args = _row(body, "KEYS"), _row(body, "ARGV")
    head = [*_locals("KEYS", keys), *_locals("ARGV", args), *_type_check(body, keys)]
    text = "\n".join([*map(_read, parts[:-1]), *head, body])
    text = _INCLUDE.sub(lambda found: _included(found[1], parts), text)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, _names(keys), _names(args), len({**keys, **args}))


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


def _row(body: str, row: str) -> dict[str, str]:
    """Return the names behind KEYS or ARGV in a head, with the word in brackets behind each, or ``...``."""
    found = re.search(rf"^-- {row}  ((?:.*\n--       )*.*)", body, re.MULTILINE)
    lines = found[1].split("\n--       ") if found else []
    names: dict[str, str] = {}
    for item in (item for line in lines if line[0] != " " for item in line.split("  ")):
        if not (parsed := _NAME.fullmatch(item)):
            raise InternalError(f"{item!r} in the head of a script is no name.")
        names[parsed[1]] = parsed[2] or parsed[3] or ""
    return names


def _names(row: Mapping[str, str]) -> Names:
    lists, rest = (tuple(name for name, kind in row.items() if kind == word) for word in ("list", "..."))
    plain = tuple(name for name in row if name not in lists + rest)
    # One name alone is no tuple to itemgetter.
    pick = itemgetter(*plain) if len(plain) > 1 else lambda named: [named[name] for name in plain]
    return Names(plain, lists, rest, pick)


def _locals(row: str, names: Mapping[str, str]) -> list[str]:
    """Return the lines of Lua that give KEYS or ARGV their names."""
    its = _names(names)
    forms = [f"tonumber({row}[{{}}])" if names[name] == "number" else f"{row}[{{}}]" for name in its.plain]
    values = [form.format(index) for index, form in enumerate(forms, start=1)]
    lines = [f"local {', '.join(its.plain)} = {', '.join(values)}"] if values else []
    end = str(len(values))
    for name in its.lists:
        lines.append(f"local {name}_at, {name}_end = {end} + 2, {end} + 1 + tonumber({row}[{end} + 1])")
        end = f"{name}_end"
    return [*lines, *(f"local {name}_at = {end} + 1" for name in its.rest)]


def _type_check(body: str, keys: Mapping[str, str]) -> list[str]:
    typed = [f"{name}, '{kind}'" for name, kind in keys.items() if kind not in ("any", "...")]
    if "wrong_type(" in body or not typed:
        return []
    return [f"local wrong = wrong_type({', '.join(typed)})", "if wrong then return {'BADTYPE', wrong} end"]


STORE = load("data/store")
SET_FIELD = load("data/set_field")
REGISTER = load("group/register")
ACQUIRE = load("group/acquire")
RELEASE = load("group/release")
MARK = load("group/mark")
STORE_TRIES = load("group/store_tries")
RISK = load("group/risk")
REQUEST = load("group/request")
COMMIT = load("data/commit")
TICK = load("data/tick")
APPEND = load("data/append")
SEAL = load("growth/seal")
FINISH = load("growth/finish")
FILL = load("growth/fill")
REMOVE = load("growth/remove")
OPEN = load("growth/open")
LEAVE_LATER = load("growth/leave_later")
TAKE_LATER = load("growth/take_later")
MOVE_MESSAGES = load("growth/move_messages")
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
GO_ON = load("group/go_on")
REPLAY_DEAD = load("data/replay_dead")
REPAIR_LOCK = load("admin/repair_lock")
REPAIR_PARTITION = load("admin/repair_partition")
REPAIR_GROUP = load("admin/repair_group")
REPAIR_AHEAD = load("admin/repair_ahead")
RETIME = load("admin/retime")

SHARED = tuple(each for each in list(globals().values()) if isinstance(each, Script))
"""All of these; ``group.operations`` adds those of single protocols."""

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


def sealed() -> BackendRefused:
    """Return the error for a partition that takes nothing any more, while it is not known what follows it."""
    return BackendRefused(
        "A partition of the stream is sealed: it takes no more records, and it is not known which partitions "
        "follow it.",
        remedy="A change of the partitions is under way: finish it (streamworker partitions), and do this "
        "again. If no release has sealed it, delete the field `sealed` of its counts (docs: redis-keys).",
    )


def log_ahead(key: str, last: str, rows: str) -> BackendRefused:
    """Return the error for an acked log to which no commit can be added."""
    return BackendRefused(
        f"The acked log {key} is ahead of its lock: its last id is {last}, and its lock counts {rows} rows.",
        remedy="Another program wrote to one of them, or restored an older lock. `streamworker repair APP` "
        "lets rows count on from the log's end: none is lost, and what the lock does not know comes again. "
        "Do not delete the log.",
    )


def checked(reply: Any) -> Any:
    """Return a script's reply; raise an error that names the key if it is BADTYPE."""
    if reply[0] == b"BADTYPE":
        raise wrong_type(reply[1])
    return reply
