"""Whose archive a URL holds: the object ``_stream.json``, which is put if absent and never replaced.

Redis holds the same id beside the declaration. Two apps that archive to one URL would make one chain of two
histories, and a restored or emptied store would lose records in silence; so another id is refused until a
person decides, by ``streamworker archive adopt``.
"""

import secrets
from typing import NamedTuple

import msgspec

from streamworker.archive.store import Store
from streamworker.core.data.archives import IDENTITY
from streamworker.errors import ArchiveConflict


class ArchiveIdentity(NamedTuple):
    """What the object says."""

    app: str
    stream: str
    log: str
    """The processor whose acked log it is; empty for the stream itself."""
    codec: str
    id: str

    @property
    def whose(self) -> str:
        """Whose archive it is, in words."""
        what = f"the acked log of {self.log!r} on stream" if self.log else "stream"
        return f"{what} {self.stream!r} of app {self.app!r}"


def new_id() -> str:
    """Return an id for a new archive."""
    return secrets.token_hex(8)


def read_identity(store: Store) -> ArchiveIdentity | None:
    """Return whose archive a store holds; None if it holds none."""
    found = store.get(IDENTITY)
    if found is None:
        return None
    try:
        fields = msgspec.json.decode(found.body, type=dict[str, str])
        return ArchiveIdentity(*(fields[name] for name in ArchiveIdentity._fields))
    except (msgspec.MsgspecError, KeyError):
        raise ArchiveConflict(
            f"{store.url}/{IDENTITY} is no identity of an archive.",
            remedy="Give the archive a URL of its own, or restore the object from the store's versions.",
        ) from None


def put_identity(store: Store, mine: ArchiveIdentity) -> ArchiveIdentity:
    """Put an identity if the store has none, and return the one that it has."""
    store.put_new(IDENTITY, msgspec.json.encode(mine._asdict()))
    found = read_identity(store)
    assert found is not None
    return found
