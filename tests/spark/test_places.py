"""Files beside a checkpoint: the same on a disk, in a store in memory, and in an S3."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.spark.sinks.sink import query_id
from streamworker.spark.source.places import place_at
from streamworker.spark.source.table import PLANNED, latest_batch, read_by
from tests.stage.moto import moto_server, variables


@pytest.fixture(
    params=["disk", "memory", pytest.param("s3", marks=pytest.mark.full("starts an S3"))],
)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder that is not there yet; of the S3 by Hadoop's scheme for it."""
    if request.param == "s3":
        with moto_server() as server:
            for name, value in variables(server).items():
                monkeypatch.setenv(name, value)
            yield f"s3a://lake/{tmp_path.name}/ck"
    else:
        yield str(tmp_path / "ck") if request.param == "disk" else f"memory://{tmp_path}"


def test_a_file_is_put_once(url: str) -> None:
    place = place_at(url)
    assert place.read("stage/1/a") is None
    assert place.put_new("stage/1/a", b"first")
    assert not place.put_new("stage/1/a", b"second")
    assert place.read("stage/1/a") == b"first"
    assert place.names() == ["stage/1/a"]


def test_a_folder_lists_what_is_below_it_but_for_what_is_hidden(url: str) -> None:
    """What a killed writer leaves on a disk is hidden, as are Spark's checksums."""
    place = place_at(url)
    assert place.names() == place.names("stage") == []
    for name in ("stage/2", "stage/1/b", "stage/1/a", "other", "stage/.2.crc"):
        place.put_new(name, b"")
    assert place.names("stage") == ["stage/1/a", "stage/1/b", "stage/2"]
    assert place.names() == ["other", "stage/1/a", "stage/1/b", "stage/2"]
    place.delete(["stage/1/a", "stage/.2.crc"])
    place.delete([])
    assert place.names("stage") == ["stage/1/b", "stage/2"]


def test_what_spark_keeps_in_a_checkpoint_is_read_wherever_that_is(url: str) -> None:
    """By the files as Spark writes them: Spark itself needs hadoop-aws for a store."""
    place = place_at(url)
    assert (query_id(url), latest_batch(url, PLANNED), read_by(url, 3)) == ("", -1, {})
    place.put_new("metadata", b'{"id":"0f2f9d6e-1111"}')
    offset = json.dumps({"of": "shop:orders:price", "p": {"0": 7}})
    for batch in (3, 12):
        place.put_new(f"{PLANNED}/{batch}", f"v1\n{{}}\n{offset}".encode())
    assert (query_id(url), latest_batch(url, PLANNED)) == ("0f2f9d6e-1111", 12)
    assert read_by(url, 12) == {"price": {"0": 7}}
