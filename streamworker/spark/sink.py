"""Writing a whole result anew, so that a reader sees the old one or the new one.

Spark's file formats can only append. A pipeline in mode ``complete`` has its whole result at
the end of each micro-batch; it is written into a fresh directory beside ``path``, and ``path``,
a symbolic link, is then pointed at it in one step. The directory before stays until the next
swap, for readers that are in it.

    lake/revenue -> .streamworker/revenue/revenue/versions/5f0c8e7a-000012
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000011
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000012

A batch that runs again after a crash finds its own number under the link and does nothing, or
writes over what it left half done, which nobody was pointed at. The number is preceded by the
query's id, since a new checkpoint directory counts from 0 again.

Standard library only: with a remote Spark server this runs over there.
"""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamworker.errors import ConfigurationError

VERSIONS = "versions"


@dataclass(frozen=True)
class WholeResult:
    """A ``foreachBatch`` function that swaps in each batch's result."""

    path: str
    """What readers open: becomes a symbolic link."""
    folder: str
    """Where the versions lie; on the same file system."""
    checkpoint: str
    """The query's checkpoint directory, which knows the query's id."""
    format: str
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, result: Any, batch: int) -> None:
        """Write ``result`` (a DataFrame) as the whole result after ``batch``."""
        version = f"{self._query_id()}-{batch:06d}"
        link, target = Path(self.path), Path(self.folder) / VERSIONS / version
        if link.is_symlink() and link.resolve() == target.resolve():
            return
        before = link.resolve().name if link.is_symlink() else None
        result.write.format(self.format).options(**self.options).mode("overwrite").save(str(target))
        self.point(link, target)
        self._clean(keep={version, before})

    def check(self) -> None:
        """Refuse a path that holds something else.

        Raises
        ------
        ConfigurationError
            If ``path`` is there and is not a link of ours, or leads to what was made from another
            checkpoint directory: rows that are not in the acked logs any more would be missing from it.
        """
        link = Path(self.path)
        if link.is_symlink():
            made_by = link.readlink().name.rpartition("-")[0]
            if made_by and made_by != self._query_id():
                raise ConfigurationError(
                    f"{self.path}: its whole result was made from another checkpoint directory than "
                    f"{self.checkpoint}, which was lost or is another one.",
                    remedy="Restore the checkpoint directory. Or begin anew, with what the acked logs still "
                    "hold: remove that link, and have the pipeline's reader forgotten.",
                )
            return
        if not link.exists():
            return
        if link.is_dir() and not any(link.iterdir()):
            return
        raise ConfigurationError(
            f"{self.path} holds files already, and mode complete replaces the whole directory.",
            remedy="Move it away, or give the pipeline another path.",
        )

    @staticmethod
    def point(link: Path, target: Path) -> None:
        """Make ``link`` point at ``target``, at once for every reader."""
        if link.is_dir() and not link.is_symlink():
            link.rmdir()
        fresh = target.parent / f".link-{target.name}"
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        # Relative, so that the folder around it can be moved; renamed, since that is atomic.
        fresh.symlink_to(os.path.relpath(target, link.parent))
        fresh.replace(link)

    def _clean(self, keep: set[str | None]) -> None:
        for version in (Path(self.folder) / VERSIONS).iterdir():
            if version.name not in keep and not version.name.startswith("."):
                shutil.rmtree(version, ignore_errors=True)

    def _query_id(self) -> str:
        place = Path(self.checkpoint) / "metadata"
        return str(json.loads(place.read_text("utf-8"))["id"])[:8] if place.exists() else ""
