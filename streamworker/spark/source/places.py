"""Files beside a checkpoint directory or in a table: on a disk of this machine, or in an object store.

A store has no rename, so what decides there is a file that is put if there is none of its name. A disk does
the same by a link. Whoever is killed leaves a whole file or none.

Imports the standard library only, since with a remote Spark this module runs on the server; for a store the
server's Python needs ``streamworker[archive]``.
"""

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from streamworker.archive.store import Store


class FilePlace(Protocol):
    """A folder of files; their names are paths from it, with slashes."""

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""

    def put_new(self, name: str, body: bytes) -> bool:
        """Put a file if there is none of its name; return False if there is one. After an error, either."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in a folder and below it, in order, but for the hidden ones."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are no error."""


def place_at(url: str) -> FilePlace:
    """Return the place of a path or URL; it need not be there.

    Raises ConfigurationError if the URL is of no store that is known, or ``obstore`` is not installed.
    """
    if "://" not in url:
        return Folder(Path(url))
    from streamworker.archive.store import store_at

    return Bucket(store_at(url))


@dataclass(frozen=True)
class Folder:
    """A place on a disk; its files are on the disk before they have their names."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """As of any place."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def put_new(self, name: str, body: bytes) -> bool:
        """As of any place."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
        try:
            with fresh.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, target)
        except FileExistsError:
            return False
        finally:
            fresh.unlink(missing_ok=True)
        for folder in (target.parent, target.parent.parent):  # The disk keeps the names, too.
            found = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(found)
            finally:
                os.close(found)
        return True

    def names(self, folder: str = "") -> list[str]:
        """As of any place."""
        files = (self.path / folder).rglob("[!.]*")
        return sorted(file.relative_to(self.path).as_posix() for file in files if file.is_file())

    def delete(self, names: Iterable[str]) -> None:
        """As of any place."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Bucket:
    """A place in an object store, which raises ArchiveUnavailable while that does not answer."""

    store: "Store"

    def read(self, name: str) -> bytes | None:
        """As of any place."""
        found = self.store.get(name)
        return None if found is None else found.body

    def put_new(self, name: str, body: bytes) -> bool:
        """As of any place."""
        return self.store.put_new(name, body)

    def names(self, folder: str = "") -> list[str]:
        """As of any place."""
        found = (each.name for each in self.store.names(folder))
        return [name for name in found if not name.rpartition("/")[2].startswith(".")]

    def delete(self, names: Iterable[str]) -> None:
        """As of any place."""
        self.store.delete(names)
