"""The reason for a query's end is found in Spark's page of frames."""

from pathlib import Path

import pytest

from streamworker.spark.driver.failures import read_failure

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


@pytest.mark.parametrize(
    ("said", "message", "is_final"),
    [
        pytest.param(TRACEBACK.format(kind="DataLoss", message=LOSS), LOSS, True, id="ours, in its words"),
        pytest.param(TRACEBACK.format(kind="BackendUnavailable", message="gone"), "gone", False, id="outage"),
        pytest.param(
            TRACEBACK.format(kind="ConfigurationError", message="wrong"), "wrong", True, id="wrong setting"
        ),
        pytest.param(OF_A_USER, "ZeroDivisionError: division by zero", False, id="of the user's function"),
        pytest.param(f"{OF_SPARK}\n\tat org.apache.spark.A", OF_SPARK, False, id="of Spark, its first line"),
        pytest.param("", "no reason given", False, id="nothing"),
    ],
)
def test_a_failure_is_told_without_a_java_frame(said: str, message: str, is_final: bool) -> None:
    """And whether starting again can cure it."""
    failure = read_failure(said)
    assert (failure.message, failure.final) == (message, is_final)


def test_a_stream_that_is_not_declared_yet_is_waited_for() -> None:
    """A worker may start after Spark."""
    failure = read_failure(TRACEBACK.format(kind="ConfigurationError", message=NO_STREAM))
    assert failure.nothing_there_yet
    assert failure.kind == "ConfigurationError"


def test_a_machine_that_is_too_busy_is_told_from_a_fault() -> None:
    """It passes with the load, so a pipeline is not given up for it as soon as for others."""
    failure = read_failure(BUSY)
    assert failure.may_last
    assert not failure.final
    assert "too busy" in failure.message
    assert not read_failure(OF_SPARK).may_last


def test_a_module_that_is_missing_is_not_tried_again() -> None:
    """The next Python process would lack it, too."""
    failure = read_failure("org.apache.spark.X\nModuleNotFoundError: No module named 'pyarrow'\n\tat java")
    assert failure.final
    assert failure.message.startswith(
        "ModuleNotFoundError: No module named 'pyarrow'. Spark's Python processes need"
    )


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
