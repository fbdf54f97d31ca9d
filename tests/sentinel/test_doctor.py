"""What ``doctor`` says of sentinels, and of what they know."""

from dataclasses import replace

import pytest

from streamworker.cli.doctor.command import in_redis
from streamworker.cli.doctor.server import of_sentinels
from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.primaries import Answer, SentinelView
from tests.stage.trio import SERVICE, Trio

GOOD = SentinelView("s1:26379", Answer(("db1", 6379), 3), 2, 3, 2, 30_000)
AWAY = SentinelView("s2:26379", BackendUnavailable("The sentinel at s2:26379 cannot be reached."))


@pytest.mark.anyio
async def test_sentinels_that_agree_are_well(calm: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what they would do, and when; the server says who follows it."""
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", calm.url)
    found = {check.name: check for check in await in_redis(None, "")}
    said = found["sentinels"]
    assert said.verdict == "ok", said
    assert f"3 of 3 name a primary: 127.0.0.1:{calm.primary.port}; if 2 of 3 find it silent for" in said.found
    assert "they promote one of 2 replicas" in said.found
    assert found["role"].found == "primary, followed by 2 replicas"
    assert calm.password not in str(found)
    assert calm.sentinel_password not in str(found)


@pytest.mark.anyio
async def test_a_name_that_no_sentinel_knows_is_said(calm: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", calm.url.replace(f"service={SERVICE}", "service=other"))
    found = {check.name: check for check in await in_redis(None, "")}
    assert found["sentinels"].verdict == "fail"
    assert "knows no primary" in found["sentinels"].found


@pytest.mark.parametrize(
    "views, verdict, said",
    [
        ([GOOD, GOOD], "ok", "2 of 2 name a primary: db1:6379"),
        ([GOOD, AWAY], "warn", "s2:26379 cannot be reached"),
        ([AWAY, AWAY], "fail", "0 of 2 name a primary"),
        ([GOOD, replace(GOOD, answer=Answer(("db2", 6379), 4))], "warn", "db1:6379 and db2:6379"),
        ([replace(GOOD, answer=Answer(("db1", 6379), 3, is_down=True))], "fail", "report as down"),
        ([replace(GOOD, quorum=4)], "fail", "4 must find it down, but there are only 3"),
        ([replace(GOOD, replicas=0)], "warn", "one of 0 replicas"),
        ([SentinelView("s1:26379", GOOD.answer)], "ok", "may not ask for more"),
    ],
)
def test_each_thing_that_is_wrong_has_its_verdict(views: list[SentinelView], verdict: str, said: str) -> None:
    check = of_sentinels(views)
    assert (check.verdict, said in check.found) == (verdict, True), check
    assert bool(check.remedy) == (verdict != "ok")
