"""The password of Redis is nowhere in Spark: not in plans, events, checkpoints, confs or messages."""

import contextlib
import io
import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from streamworker.dev.server import EmbeddedServer
from streamworker.spark.driver.session import Session
from tests.spark.acked import AckedLog
from tests.spark.conftest import Connect
from tests.spark.queries import batch, rows, run

EVENT_LOG_BYTES_MIN = 10_000


def printed(frame: DataFrame) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        frame.explain(extended=True)
    return out.getvalue()


def ui_pages(url: str, application: str) -> dict[str, str]:
    """Return what Spark's web pages show that could hold options or settings, and the details behind them."""
    api = f"api/v1/applications/{application}"
    paths = ["environment/", "SQL/", "StreamingQuery/", "jobs/", "stages/", "executors/"]
    paths += [f"{api}/{what}" for what in ("environment", "jobs", "stages", "sql?details=true&length=1000")]
    found = {}
    for path in paths:
        with urllib.request.urlopen(f"{url}/{path}", timeout=60) as page:
            found[path.removeprefix(f"{api}/")] = page.read().decode()
    for execution in json.loads(found["sql?details=true&length=1000"]):
        with urllib.request.urlopen(f"{url}/SQL/execution/?id={execution['id']}", timeout=60) as page:
            found[f"execution {execution['id']}"] = page.read().decode()
    return found


def test_the_password_is_nowhere_in_spark(spark_session: Session, connect: Connect, tmp_path: Path) -> None:
    """After a query that ran, one that could not reach Redis, and one whose password was wrong."""
    spark = spark_session.spark
    assert spark_session.log_path is not None
    with EmbeddedServer() as server, AckedLog(server.url, partitions=2) as acked:
        canary = server.url.partition("://:")[2].partition("@")[0]
        assert len(canary) > 20
        connect("secret", server.url)
        connect("wrong", server.url.replace(canary, canary + "x"))
        acked.fill(0, [5])
        options = acked.options(connection="secret", retryTimeout="0.2")
        query = run(spark, {**options, "reader": "canary"}, tmp_path)
        frame = batch(spark, options)
        shown = [printed(frame), str(frame.collect()), str(query.recentProgress), str(query.status)]
        with pytest.raises(PySparkException) as refused:
            rows(spark, {**options, "connection": "wrong"})
        with pytest.raises(PySparkException) as as_option:
            rows(spark, {**options, "url": server.url})
        acked.fill(0, [5])
        server.kill()
        with pytest.raises(PySparkException) as away:
            run(spark, options, tmp_path)
        server.start()
    shown += [str(refused.value), str(as_option.value), str(away.value)]
    assert "AuthenticationFailed" in shown[-3]
    assert "STREAMWORKER_CONNECTION_PROD" in shown[-2]
    assert "BackendUnavailable" in shown[-1]

    context: Any = spark.sparkContext
    shown += [f"{key}={value}" for key, value in context.getConf().getAll()]
    shown += [str(context._jvm.java.lang.System.getProperties())]
    pages = ui_pages(context.uiWebUrl, context.applicationId)
    assert str(query.id) in pages["StreamingQuery/"] and "spark.app.name" in pages["environment"]
    assert any("streamworker" in page for name, page in pages.items() if name.startswith("execution"))
    shown += pages.values()
    jvm = spark_session._jvm
    assert jvm is not None
    for process in [psutil.Process(jvm.pid), *psutil.Process(jvm.pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one too
            shown.append(" ".join(process.cmdline()))

    folder = spark_session.log_path.parent
    files = [path for place in (folder, tmp_path) for path in place.rglob("*") if path.is_file()]
    events = [path for path in files if path.name.startswith("events_") or path.name.startswith("local-")]
    assert sum(path.stat().st_size for path in events) > EVENT_LOG_BYTES_MIN
    assert any("offsets" in path.parts for path in files)

    assert [text[:200] for text in shown if canary in text] == []
    assert [path for path in files if canary.encode() in path.read_bytes()] == []
