"""The reason for a query's end is found in Spark's page of frames."""

from streamworker.spark.driver.failures import read_failure

TRACEBACK = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/streamworker/spark/logs.py", line 300, in report_loss
    raise DataLoss(
streamworker.errors.{kind}: {message}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


def test_an_error_of_ours_is_shown_in_its_own_words() -> None:
    """Without a Java frame."""
    failure = read_failure(TRACEBACK.format(kind="DataLoss", message="Rows 5 to 8 are missing. Restore."))
    assert failure.message == "Rows 5 to 8 are missing. Restore."
    assert failure.kind == "DataLoss"
    assert failure.final


def test_an_outage_is_worth_another_try_and_a_wrong_setting_is_not() -> None:
    """What starting again can cure."""
    assert not read_failure(TRACEBACK.format(kind="BackendUnavailable", message="gone")).final
    assert read_failure(TRACEBACK.format(kind="ConfigurationError", message="wrong")).final


def test_a_stream_that_is_not_declared_yet_is_waited_for() -> None:
    """A worker may start after Spark."""
    text = TRACEBACK.format(kind="ConfigurationError", message="There is no stream 'orders' of app 'shop'")
    assert read_failure(text).nothing_there_yet


def test_an_error_in_the_user_s_own_function_is_shown_with_its_kind() -> None:
    """The last line of the Python part."""
    failure = read_failure(
        "org.apache.spark.X\nTraceback:\n  File\nZeroDivisionError: division by zero\n\tat java"
    )
    assert failure.message == "ZeroDivisionError: division by zero"
    assert not failure.final


def test_an_error_of_spark_itself_is_shown_by_its_first_line() -> None:
    """Where no Python is involved."""
    text = "[STREAM_FAILED] Query x terminated: disk full\n\tat org.apache.spark.A"
    assert read_failure(text).message == "[STREAM_FAILED] Query x terminated: disk full"
    assert read_failure("").message == "no reason given"


def test_a_machine_that_is_too_busy_is_told_from_a_fault() -> None:
    """It passes with the load, so a pipeline is not given up for it as soon as for others."""
    failure = read_failure(
        "[STREAM_FAILED] x terminated: Python worker failed to connect back. SQLSTATE: XXKST"
    )
    assert failure.too_busy
    assert not failure.final
    assert "too busy" in failure.message
    assert not read_failure("[STREAM_FAILED] Query x terminated: disk full").too_busy
