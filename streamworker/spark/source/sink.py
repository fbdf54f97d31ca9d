"""Replacing a whole result atomically: a reader that resolves the link sees one version of it.

Spark's file formats can only append. A pipeline in mode ``complete`` has its whole result at
the end of each micro-batch. The sink writes the result into a new directory beside ``path``, and then
points ``path``, a symbolic link, at it in one step. A directory stays for ``KEPT_S`` after it was replaced,
for readers that resolved the link before. A reader that opens file after file through the link itself may
meet two versions: no file system replaces a directory of files under such a reader.

    lake/revenue -> .streamworker/revenue/revenue/versions/5f0c8e7a-000012
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000011
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000012

When a batch runs again after a crash, its version is either the link's target, and the sink does
nothing, or incomplete, and the sink overwrites it; no link points at an incomplete version. The query's
id precedes the number of the batch, since batches count from 0 again in a new checkpoint directory.

Imports the standard library only, since with a remote Spark this module runs on the server.
"""

import json
import os
import shutil
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from streamworker.errors import ConfigurationError

VERSIONS = "versions"
KEPT_S = 30.0
"""How long a version stays after it was replaced."""


@dataclass(frozen=True)
class WholeResult:
    """A ``foreachBatch`` function that replaces the result after each batch."""

    path: str
    """The path that readers open; becomes a symbolic link."""
    folder: str
    """The folder of the versions; on the same file system."""
    checkpoint: str
    """The query's checkpoint directory, which holds the query's id."""
    format: str
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, result: Any, batch: int) -> None:
        """Write ``result`` (a DataFrame) as the whole result after ``batch``."""
        version = f"{self._query_id()}-{batch:06d}"
        link, target = Path(self.path), Path(self.folder) / VERSIONS / version
        if link.is_symlink() and link.resolve() == target.resolve():
            return
        result.write.format(self.format).options(**self.options).mode("overwrite").save(str(target))
        self.point(link, target)
        self._clean()

    def check(self) -> None:
        """Refuse a path that holds other data, or a result that was made from another checkpoint directory.

        With another checkpoint directory, the new result would lack rows that were trimmed from the acked
        logs.
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
        is_empty = link.is_dir() and not any(link.iterdir())
        if link.exists() and not is_empty:
            raise ConfigurationError(
                f"{self.path} holds files already, and mode complete replaces the whole directory.",
                remedy="Move it away, or give the pipeline another path.",
            )

    @staticmethod
    def point(link: Path, target: Path) -> None:
        """Make ``link`` point at ``target`` atomically."""
        if link.is_dir() and not link.is_symlink():
            link.rmdir()
        fresh = target.parent / f".link-{target.name}"
        fresh.unlink(missing_ok=True)
        # Relative, so that the parent folder can be moved; renamed, since a rename is atomic.
        fresh.symlink_to(os.path.relpath(target, link.parent))
        fresh.replace(link)

    def _clean(self) -> None:
        versions = (Path(self.folder) / VERSIONS).glob("[!.]*")
        made_s = {version: version.stat().st_mtime for version in versions}
        for version, successor in pairwise(sorted(made_s, key=made_s.__getitem__)):
            if made_s[successor] < time.time() - KEPT_S:
                shutil.rmtree(version, ignore_errors=True)

    def _query_id(self) -> str:
        path = Path(self.checkpoint) / "metadata"
        return str(json.loads(path.read_text("utf-8"))["id"])[:8] if path.exists() else ""
