"""Objects in S3, Google Cloud Storage, Azure or a folder, put if absent; made of obstore.

Each call blocks, and is made in a thread by whoever has an event loop. What the store does not do raises
:class:`~streamworker.errors.ArchiveUnavailable`, and may be repeated.

pyarrow's file systems cannot put an object only if it is absent: given the condition, they overwrite in
silence. obstore can; but its store of files never calls ``fsync``, and after a power failure a segment would
be gone whose entries Redis has trimmed. So files are written here.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from streamworker.errors import ArchiveError, ArchiveUnavailable, ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

TAIL_BYTES = 64 * 1024
"""How much of an object's end is read for its footer."""
CALL_TIMEOUT_S = 60
RETRIES_S = 20
"""How long obstore itself repeats a call; its caller repeats it further, and says so."""
PROBE = "_probe"
PROBE_BODY = b"This object shows whether the store puts an object only if it is absent."
_NEW = "_new"
"""The folder in which files are written before they get their names."""
_LEFT_S = 3600
"""How old a file gets there; a killed writer has left it."""


class Listed(NamedTuple):
    """One object as a list shows it."""

    name: str
    size: int


class Found(NamedTuple):
    """An object, and its version for a replacement."""

    body: bytes
    version: dict[str, Any]


S = TypeVar("S", bound="Store")


def _told(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method raise our errors in place of obstore's."""

    @wraps(call)
    def told(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call(store, *args, **kwargs)
        except (BaseError, OSError) as error:
            denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
            why = " ".join(str(error).partition("Debug source")[0].split())[:300].rstrip(".")
            raise ArchiveUnavailable(
                f"The store of {store.url} {'refused a call' if denied else 'did not answer'}: {why}.",
                remedy="Look at its credentials and rights (docs: archive)."
                if denied
                else "It is asked again; Redis keeps all meanwhile.",
            ) from None

    return told


class Store:
    """The objects under one URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = _opened(url)

    @_told
    def put_new(self, name: str, body: bytes) -> bool:
        """Put an object if there is none of its name; return False if there is one.

        After an error it may be there or not.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:  # In several parts the condition would not hold.
            obstore.put(self._store, name, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    @_told
    def replace(self, name: str, body: bytes, version: dict[str, Any]) -> bool:
        """Replace an object if it is still of a version; return False if it is not."""
        import obstore
        from obstore.exceptions import PreconditionError

        try:
            mode: Any = {name: value for name, value in version.items() if value is not None}
            obstore.put(self._store, name, body, mode=mode, use_multipart=False)
        except (PreconditionError, FileNotFoundError):
            return False
        return True

    @_told
    def get(self, name: str) -> Found | None:
        """Return an object; None if there is none."""
        import obstore

        try:
            found = obstore.get(self._store, name)
            meta = found.meta
            return Found(bytes(found.bytes()), {"e_tag": meta["e_tag"], "version": meta["version"]})
        except FileNotFoundError:
            return None

    @_told
    def tail(self, name: str) -> bytes | None:
        """Return the end of an object with its whole footer, if it is Parquet; None if there is none."""
        import obstore
        from obstore.exceptions import PreconditionError

        size, got, needs = 1, b"", TAIL_BYTES
        while len(got) < min(size, needs):
            try:
                about = obstore.head(self._store, name)
                if not (size := about["size"]):
                    break
                options: Any = {"range": (max(0, size - needs), size), "if_match": about["e_tag"]}
                got = bytes(obstore.get(self._store, name, options=options).bytes())
            except FileNotFoundError:
                return None
            except PreconditionError:
                got = b""  # It was replaced between the two calls.
            # Of a table with hundreds of columns the footer is longer; its length stands before its end.
            needs = max(needs, int.from_bytes(got[-8:-4], "little") + 8) if got[-4:] == b"PAR1" else needs
        return got

    @_told
    def names(self, prefix: str, after: str = "") -> list[Listed]:
        """Return the objects of a folder in order, or those whose names are above one."""
        import obstore

        pages = obstore.list(self._store, prefix, offset=after or None)
        return sorted(Listed(each["path"], each["size"]) for page in pages for each in page)

    @_told
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        import obstore

        if gone := [*names]:
            obstore.delete(self._store, gone)

    def check_conditions(self, name: str = PROBE, body: bytes = PROBE_BODY) -> None:
        """Raise ArchiveError if the store takes a name twice: then it would lose objects in silence."""
        self.put_new(name, body)
        if self.put_new(name, body):
            raise ArchiveError(
                f"The store of {self.url} ignores conditions: it took one name twice.",
                remedy="Use a store with conditional puts: S3, Google Cloud Storage, Azure, MinIO, a folder.",
            )


class FileStore(Store):
    """Files in a folder, on the disk before they have their names."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._root = Path(url.removeprefix("file://")).absolute()
        for left in self._root.glob(f"{_NEW}/*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    left.unlink()

    @_told
    def put_new(self, name: str, body: bytes) -> bool:
        """As of any store."""
        new = self._written(body)
        try:
            os.link(new, self._place(name))
        except FileExistsError:
            return False
        finally:
            new.unlink()
            # Also of a name that was taken: who has died before this has left it to whoever relies on it.
            _sync(self._place(name).parent)
        return True

    @_told
    def replace(self, name: str, body: bytes, version: dict[str, Any]) -> bool:
        """As of any store; those that replace files here at the same time wait for one another."""
        with _locked(self._root):
            found = self.get(name)
            if found is None or found.version != version:
                return False
            self._written(body).replace(self._place(name))
            _sync(self._place(name).parent)
        return True

    def _place(self, name: str) -> Path:
        place = self._root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _written(self, body: bytes) -> Path:
        new = self._place(f"{_NEW}/{uuid.uuid4().hex}")
        try:
            with new.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # A disk that is full must not fill with what each try leaves.
            new.unlink(missing_ok=True)
            raise
        return new


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one process; its end lets go, however it comes."""
    import fcntl

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _sync(folder: Path) -> None:
    """Let the disk keep the names in a folder, and that of the folder."""
    for each in (folder, folder.parent):
        found = os.open(each, os.O_RDONLY)
        try:
            os.fsync(found)
        finally:
            os.close(found)


_tests: list[str] = []


@contextmanager
def in_memory(server: str) -> Iterator[None]:
    """Let each URL name a store in memory that belongs to a server in memory, as long as a block runs.

    So a test of an app neither writes to the app's archive nor makes it one of another Redis.
    """
    _tests.append(server)
    try:
        yield
    finally:
        _tests.remove(server)


def store_at(url: str) -> Store:
    """Return the store of a URL, one for the whole process; it connects to nothing yet.

    Raises ConfigurationError if the extra ``archive`` is not installed, or the URL is none.
    """
    return _store_at(f"memory://{_tests[-1]}/{url}" if _tests else url)


@lru_cache(maxsize=256)
def _store_at(url: str) -> Store:
    is_file = "://" not in url or url.startswith("file://")
    return FileStore(url) if is_file else Store(url)


def _opened(url: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, MemoryStore, from_url
    except ModuleNotFoundError:
        raise ConfigurationError(
            "An archive or another object store needs the package obstore.",
            remedy="Install streamworker[archive].",
        ) from None
    scheme, has_scheme, path = url.partition("://")
    if not has_scheme or scheme == "file":
        return LocalStore(Path(path if has_scheme else url).absolute(), mkdir=True)
    if scheme == "memory":
        return MemoryStore()
    options: Any = {"timeout": f"{CALL_TIMEOUT_S}s", "allow_http": True}
    retry: Any = {"max_retries": 3, "retry_timeout": _delta(RETRIES_S)}
    try:
        return from_url(url, client_options=options, retry_config=retry)
    except (BaseError, ValueError) as error:
        raise ConfigurationError(
            f"{url!r} is of no store that is known: {str(error).partition('Debug source')[0].strip()}",
            remedy="See docs: archive.",
        ) from None


def _delta(seconds: int) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)
