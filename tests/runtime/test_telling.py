"""Calls that fail again and again are told once a minute for each cause."""

import pytest
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from streamworker.errors import ProcessingError
from streamworker.log import get_logger
from streamworker.redisio.wire.failures import translate
from streamworker.runtime import telling

SCRIPT = (
    "ERR The user executing the script can't run this command or subcommand script: 8a1d, on @user_script:17."
)


def test_a_refusal_is_told_once_for_its_cause_and_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that only scripts need may be missing, and each partition asks five times a second."""
    monkeypatch.setattr(telling, "_told_s", {})
    log = get_logger("test")
    with capture_logs() as logs:
        for _ in range(40):
            telling.warn(log, "call_unanswered", translate(ResponseError(SCRIPT), "db1:6379"))
        telling.warn(log, "call_unanswered", translate(ResponseError("OOM no memory"), "db1:6379"))
        telling.warn(log, "marking_failed", translate(ResponseError(SCRIPT), "db1:6379"))
        for _ in range(2):
            telling.warn(log, "state_unreadable", ProcessingError("not of Redis"))
    assert [each["event"] for each in logs] == [
        *["call_unanswered"] * 2,
        "marking_failed",
        *["state_unreadable"] * 2,
    ]
    assert "`streamworker acl` prints the rights of each role." in logs[0]["error"]


def test_a_command_that_a_server_lacks_is_named_with_what_may_be_wrong() -> None:
    """As managed servers remove or rename some."""
    refused = translate(ResponseError("ERR unknown command 'INFO', with args beginning with: "), "db1:6379")
    assert "unknown command 'INFO'" in refused.message
    assert "must not rename or remove this command" in refused.remedy
