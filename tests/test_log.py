"""What a program gets of streamworker's log: by the standard library, or by its own structlog."""

import logging

import pytest
import structlog

from streamworker.log import get_logger


@pytest.fixture(autouse=True)
def unconfigured() -> None:
    structlog.reset_defaults()


def test_lines_obey_the_standard_library(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its levels and its handlers; nothing is printed beside them, and control characters are escaped."""
    log = get_logger("streamworker.example").bind(partition=3)
    with caplog.at_level(logging.INFO, "streamworker"):
        log.debug("commit_sent")
        log.info("joined", member="a\x1b[2J")
    try:
        raise ValueError("bad\x1b[2J")
    except ValueError:
        log.exception("handler_failed")
    log.info("joined")
    told = [(each.name, each.levelname, each.getMessage()) for each in caplog.records]
    assert told[0] == ("streamworker.example", "INFO", "joined partition=3 member='a\\x1b[2J'")
    assert told[1][:2] == ("streamworker.example", "ERROR") and len(told) == 2
    assert told[1][2].startswith("handler_failed partition=3\n    Traceback")
    assert "\x1b" not in told[1][2]
    assert capsys.readouterr() == ("", "")


def test_lines_go_to_the_structlog_of_a_program_that_configures_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also those of loggers that were made before, with their fields."""
    log = get_logger("streamworker.example").bind(partition=3)
    structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
    log.info("joined")
    assert capsys.readouterr().out == '{"event": "joined", "partition": 3}\n'
    structlog.reset_defaults()
