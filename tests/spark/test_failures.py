"""The reason for a query's end is found in Spark's page of frames."""

from pathlib import Path

import pytest

from streamworker.spark.driver.failures import (
    NEEDS_ROCKSDB,
    OUT_OF_MEMORY,
    PLAN,
    ROCKSDB,
    TOO_BUSY,
    read_failure,
)

TRACEBACK = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/streamworker/spark/logs.py", line 300, in report_loss
    raise DataLoss(
streamworker.errors.{kind}: {message}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""
LOSS, NO_STREAM = "Rows 5 to 8 are missing. Restore.", "There is no stream 'orders' of app 'shop'"
OF_A_USER = "org.apache.spark.X\nTraceback:\n  File\nZeroDivisionError: division by zero\n\tat java"
OF_SPARK = "[STREAM_FAILED] Query x terminated: disk full"
BUSY = "[STREAM_FAILED] x terminated: Python worker failed to connect back. SQLSTATE: XXKST"


STATE = """[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match the existing one.
Existing key_schema=StructType(StructField({},Long,true)) and new key_schema=StructType(StructField({},A)).
If you want to force it, set spark.sql.streaming.stateStore.stateSchemaCheck to false. SQLSTATE: XXKST"""
OTHER = "The state that the query keeps has other columns than its rows have now: "
FINAL, MAY_LAST, NOT_YET = "final", "may_last", "nothing_there_yet"
FULL = "target_full"
CASES = {
    "ours, in its words": (TRACEBACK.format(kind="DataLoss", message=LOSS), LOSS, {FINAL}),
    "an outage": (TRACEBACK.format(kind="BackendUnavailable", message="gone"), "gone", set()),
    "a wrong setting": (TRACEBACK.format(kind="ConfigurationError", message="wrong"), "wrong", {FINAL}),
    "a stream that no worker has declared yet": (
        TRACEBACK.format(kind="ConfigurationError", message=NO_STREAM), NO_STREAM, {FINAL, NOT_YET},
    ),
    "a full stream": (TRACEBACK.format(kind="StreamFull", message="limit"), "limit", {FULL, MAY_LAST}),
    "a server that is full": (
        TRACEBACK.format(kind="BackendRefused", message=f"OOM. {OUT_OF_MEMORY}: more"),
        f"OOM. {OUT_OF_MEMORY}: more", {FULL, MAY_LAST},
    ),
    "another refusal": (TRACEBACK.format(kind="BackendRefused", message="NOPERM"), "NOPERM", set()),
    "of the user's function": (OF_A_USER, "ZeroDivisionError: division by zero", set()),
    "of Spark, its first line": (f"{OF_SPARK}\n\tat org.apache.spark.A", OF_SPARK, set()),
    "a machine that is too busy, which passes": (BUSY, f"{TOO_BUSY} within 10 s: ", {MAY_LAST}),
    "a module that the next process would lack, too": (
        "org.apache.spark.X\nModuleNotFoundError: No module named 'pyarrow'\n\tat java",
        "ModuleNotFoundError: No module named 'pyarrow'. Spark's Python processes need", {FINAL},
    ),
    "a feature that Spark has not": (
        f"[UNSUPPORTED_FEATURE.{NEEDS_ROCKSDB}] Use RocksDB. SQLSTATE: 0A000\n{PLAN}\nplan",
        f"[UNSUPPORTED_FEATURE.{NEEDS_ROCKSDB}] Use RocksDB. SQLSTATE: 0A000 {ROCKSDB}", {FINAL},
    ),
    "a value that does not fit": (
        "org.apache.spark.SparkDateTimeException: [CAST_INVALID_INPUT] 'x' SQLSTATE: 22018\n\tat java",
        "org.apache.spark.SparkDateTimeException: [CAST_INVALID_INPUT] 'x' SQLSTATE: 22018", {FINAL},
    ),
    "a plan that holds such a text": (
        f"[STREAM_FAILED] full. SQLSTATE: XXKST\n{PLAN}\n'SQLSTATE: 42000'", "[STREAM_FAILED] full", set(),
    ),
    "one processor more than the checkpoint has": (
        "assertion failed: There are [1] sources in the checkpoint offsets and now there are [3] sources.",
        "The checkpoint is of 1 processor, and the query reads 3. Let the pipeline", {FINAL},
    ),
    "a column more in the state": (
        STATE.format("n", "n,LongType,true),StructField(extra"),
        f"{OTHER}new extra. Choose the columns that it was started with before the join", {FINAL},
    ),
    "another column in the state": (STATE.format("m", "n"), f"{OTHER}new n; gone m. ", {FINAL}),
    "nothing": ("", "no reason given", set()),
}  # fmt: skip


@pytest.mark.parametrize(("said", "message", "is_so"), CASES.values(), ids=CASES)
def test_a_failure_is_told_without_a_java_frame(said: str, message: str, is_so: set[str]) -> None:
    """And whether starting again can cure it, and how soon a pipeline is given up for it."""
    failure = read_failure(said)
    assert failure.message.startswith(message)
    assert "\n" not in failure.message
    assert {each for each in (FINAL, MAY_LAST, NOT_YET, FULL) if getattr(failure, each)} == is_so


def test_a_cause_that_stands_only_in_the_log_of_the_jvm_is_found(tmp_path: Path) -> None:
    """Python has ended, and Spark's exception says no more."""
    log = tmp_path / "spark.log"
    text = "[STREAM_FAILED] x terminated: driver worker exited unexpectedly (crashed)"
    assert "exited unexpectedly" in read_failure(text, log).message
    log.write_text(
        "ValueError: an older one\n" + "at java.X\n" * 9 + "ImportError: protobuf 5.0 or later\n at"
    )
    failure = read_failure(text, log)
    assert failure.final
    assert failure.message.startswith("ImportError: protobuf 5.0 or later. ")
    assert not read_failure("disk full", log).final
