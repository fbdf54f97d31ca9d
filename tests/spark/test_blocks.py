"""The fragments of pages that need Spark run in its session; tests/blocks.py says how."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamworker.variables import URL_VARIABLE
from tests.blocks import FRAGMENTS, Block, run
from tests.spark.conftest import Connect


@pytest.mark.anyio
@pytest.mark.full("needs a session")
@pytest.mark.parametrize("block", [each for each in FRAGMENTS if each.needs_spark], ids=str)
async def test_a_fragment_runs_with_what_its_page_gives_it(
    block: Block,
    spark: SparkSession,
    connect: Connect,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In an empty folder, which a path of the page begins with: the JVM has another one."""
    connect("default", redis_url)
    monkeypatch.setenv(URL_VARIABLE, redis_url)
    monkeypatch.chdir(tmp_path)
    here = block._replace(
        **{
            part: getattr(block, part).replace("lake/", f"{tmp_path}/lake/")
            for part in ("what", "code", "then")
        }
    )
    await run(here, monkeypatch, spark=spark)
