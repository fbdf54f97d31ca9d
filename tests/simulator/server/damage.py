"""Damage to the membership document and its neighbouring keys, for the simulator."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from streamworker.core.protocols.membership.document import FORMATS

LATER = "is of a later release"
"""Workers do not touch such a document; the simulator later restores the previous one."""


def _with(document: bytes, **fields: object) -> bytes:
    """Return a document with some fields replaced; the generation stays the first field."""
    return json.dumps({**json.loads(document), **fields}, separators=(",", ":")).encode()


def _members(document: bytes) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = json.loads(document)["members"]
    return members


DAMAGES: Mapping[str, Callable[[bytes], bytes | None]] = {
    "is empty": lambda _: b"",
    "is cut off": lambda document: document[: len(document) // 2],
    "is cut off in its generation": lambda document: document[:18],
    "is no UTF-8": lambda document: document.replace(b'"', b"\xff", 3),
    "is other JSON": lambda _: b"[1,2,3]",
    "is of another type": lambda _: None,
    "has a generation and nothing else": lambda _: b'{"generation":99999999999999999999}',
    "has each member twice": lambda document: _with(document, members=_members(document) * 2),
    "has members without ids": lambda document: _with(
        document, members=[{**each, "id": None} for each in _members(document)]
    ),
    "has no owners": lambda document: _with(document, owners=[]),
    "has owners that there are not": lambda document: _with(
        document, owners=[99 for _ in json.loads(document)["owners"]]
    ),
    "gives all to the last": lambda document: _with(
        document, owners=[len(_members(document)) - 1 for _ in json.loads(document)["owners"]]
    ),
    "has another format": lambda document: _with(document, v=0),
}
"""From a description of the damage to the function that makes it; None stands for a value that is no
string."""
WRITTEN: Mapping[str, Callable[[bytes], bytes | None]] = {
    **DAMAGES,
    LATER: lambda document: _with(document, v=FORMATS[-1] + 1),
}
"""All values that the simulator writes: damage, which the group repairs, and a document of a later
release, which the group must not touch."""
LATER_FROM = 910
"""Picks from this number on, of a thousand, are documents of a later release; the others are damage."""


def damaged(document: bytes, pick: int) -> tuple[str, bytes | None]:
    """Return a description of the damage, and the damaged document.

    If the document is already too damaged for the chosen damage, a character is appended to it.

    >>> damaged(b"{}", 0)
    ('is empty', b'')
    >>> damaged(b"[1,2,3]", tuple(DAMAGES).index("has no owners"))
    ('is damaged once more', b'[1,2,3]?')
    """
    what = LATER if pick >= LATER_FROM else tuple(DAMAGES)[pick % len(DAMAGES)]
    try:
        return what, WRITTEN[what](document)
    except (ValueError, LookupError, TypeError):
        return "is damaged once more", document + b"?"


PLACES = (
    *(("document",), ("heartbeats",), ("document", "loads"), ("loads",)),
    *(("document",), ("document", "heartbeats"), ("heartbeats", "loads")),
)
"""The keys that another program overwrites together. Heartbeats and loads get another type."""


def places(pick: int) -> tuple[str, ...]:
    """Return the keys to damage.

    >>> places(0), places(len(DAMAGES))
    (('document',), ('heartbeats',))
    """
    return PLACES[pick // len(DAMAGES) % len(PLACES)]
