"""Sinks into an object store, for tests: where they may be killed, and what each reader finds."""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.table import TableMerger
from pyarrow.fs import FileSelector, S3FileSystem

from streamworker.archive.store import Store

OPTIONS = {"allow_http": "true"}
STEPS: dict[str, tuple[Any, str]] = {
    "mark read": (Store, "get"),
    "claimed": (Store, "check_conditions"),
    "put": (Store, "put_new"),
    "marked": (Store, "replace"),
    "created": (DeltaTable, "create"),
    "written": (deltalake, "write_deltalake"),
    "merged": (TableMerger, "execute"),
}
"""What a sink calls; it is killed before or after."""
OF = {
    "batches": ("mark read", "claimed", "put", "marked"),
    "delta": ("created", "written"),
    "merged": ("created", "merged"),
}
"""The steps of each sink."""


def dying(call: Callable[..., Any], when: str, n: int, end: Callable[[], object]) -> Callable[..., Any]:
    """Return a call that ends the process before or after its nth time."""
    count = itertools.count(1)

    def dies(*args: Any, **kwargs: Any) -> Any:
        its_time = next(count) == n
        if its_time and when == "before":
            end()
        found = call(*args, **kwargs)
        if its_time:
            end()
        return found

    return dies


def in_s3(url: str) -> tuple[str, S3FileSystem]:
    """Return the path and the file system of pyarrow for a URL."""
    host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    return url.removeprefix("s3://"), S3FileSystem(endpoint_override=host, scheme="http")


def objects_in(url: str) -> list[str]:
    path, files = in_s3(url)
    found = files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(each.path for each in found if each.is_file)


def read_by_each(url: str, kind: str, names: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Read columns of a table by each reader; their rows in order."""
    if kind == "batches":
        path, files = in_s3(url)
        dataset = ds.dataset(path, filesystem=files, format="parquet")
        options = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_allow_http": "true"}
        rows, frames = dataset.to_table(), pd.read_parquet(path, filesystem=files)
        by_polars = pl.read_parquet(f"{url}/**/*.parquet", storage_options=options)
    else:
        table = DeltaTable(url, storage_options=OPTIONS)
        rows, frames = table.to_pyarrow_table(), table.to_pandas()
        by_polars = pl.read_delta(url, storage_options=OPTIONS)
    arrow = "pyarrow" if kind == "batches" else "delta-rs"
    found = {
        arrow: zip(*rows.select(names).to_pydict().values(), strict=True),
        "pandas": frames[names].itertuples(index=False),
        "polars": by_polars.select(names).iter_rows(),
        "duckdb": duckdb.from_arrow(rows).project(", ".join(names)).fetchall(),
    }
    return {reader: sorted(map(tuple, each)) for reader, each in found.items()}


def copied(url: str, kind: str, folder: Path) -> list[str]:
    """Copy the objects of a table that count to a disk: Spark needs jars for a store, which are not here."""
    path, files = in_s3(url)
    if kind == "batches":
        paths = [each for each in objects_in(url) if each.endswith(".parquet")]
    else:
        paths = [uri.removeprefix("s3://") for uri in DeltaTable(url, storage_options=OPTIONS).file_uris()]
    copies = [folder / each.removeprefix(path).replace("/", "-") for each in paths]
    folder.mkdir()
    for each, copy in zip(paths, copies, strict=True):
        with files.open_input_stream(each) as body:
            copy.write_bytes(body.read())
    return [str(copy.absolute()) for copy in copies]
