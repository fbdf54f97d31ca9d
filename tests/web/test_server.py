"""Who gets the page, what its answers say to a browser, and what a tab gets."""

import asyncio
import re
from typing import Any, TypeVar

import anyio
import httpx
import msgspec
import pytest

from streamworker.web import broadcast
from streamworker.web.broadcast import Broadcast
from streamworker.web.server import HEADERS, STATIC, page
from tests.helpers import exchanged
from tests.web.browser import Site
from tests.web.groups import at, fed, nothing, seen

TOKEN = "a-long-token-of-a-test"
T = TypeVar("T")


def ask(
    path: str, *, app: str = "shop", token: str = "", base: str = "http://127.0.0.1:8800", **how: Any
) -> httpx.Response:
    """Return the answer to a GET, after insisting on the headers that each answer has."""

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(app=page(fed(at(0, 8, 3), app=app), token))
        async with httpx.AsyncClient(transport=transport, base_url=base, **how) as client:
            return await client.get(path)

    answer = asyncio.run(asking())
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    return answer


@pytest.mark.parametrize("host", ["127.0.0.1:8800", "localhost:8800", "localhost", "[::1]:8800"])
def test_this_machine_gets_the_page_by_its_own_name(host: str) -> None:
    assert ask("/", base=f"http://{host}").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8800", "127.0.0.1.evil.example", "localhost.evil"]
)
def test_a_foreign_name_that_leads_to_this_machine_gets_nothing(host: str) -> None:
    """A page of that name would read ours from the browser of somebody who may see it (DNS rebinding)."""
    for path in ("/", "/events", "/at", "/static/page.js"):
        answer = ask(path, base=f"http://{host}")
        assert answer.status_code == 403
        assert "--token" in answer.text


FOREIGN = [
    b"evil.example", b'a"b.evil.example', b"a`b.evil.example", b"a{b}.evil.example", b"a{b.evil.example",
    b"evil.example:99999", b"127.0.0.1.evil.example", b"localhost@evil.example", b"evil.example@localhost",
    b"[", b"", b"[::1", b"::1", b"localhost.", b"l\xf6calhost", b"localhost/evil", b"localhost evil.example",
    b"localhost, evil.example", b"localhost:", b"localhost:0", b"localhost:65536", b"localhost:8a",
]  # fmt: skip
OWN = [b"localhost", b"LocalHost:8800", b"127.0.0.1", b"[::1]:8800", b"localhost:1"]  # Tunnels have any port.


def test_what_no_library_can_read_is_a_foreign_name() -> None:
    """As bytes on a socket: clients and test kits send valid names only."""
    with Site(lambda second: seen([at(second, 8, 3)])).served() as site:
        port = int(site.url.rpartition(":")[2].strip("/"))

        def status(head: bytes, target: bytes = b"/at", version: bytes = b"1.1") -> int:
            said = b"GET %b HTTP/%b\r\n%bConnection: close\r\n\r\n" % (target, version, head)
            return int(exchanged(port, said).split()[1])

        found = {host: status(b"Host: %b\r\n" % host) for host in [*FOREIGN, *OWN]}
        assert found == dict.fromkeys(FOREIGN, 403) | dict.fromkeys(OWN, 200)
        assert status(b"", version=b"1.0") == 403
        assert status(b"Host: evil.example\r\n", b"http://localhost/at") == 403
        assert status(b"Host: localhost\r\nHost: evil.example\r\n") in (400, 403)


def test_with_a_token_nobody_else_gets_anything() -> None:
    """Not this machine either."""
    for path in ("/", "/events", "/at", "/static/page.js", "/?token=wrong", "/?token="):
        assert ask(path, token=TOKEN).status_code == 401
    wrong = (
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer"},
    )
    assert {ask("/", token=TOKEN, headers=each).status_code for each in wrong} == {401}
    cookies = ask(f"/?token={TOKEN}", token=TOKEN).cookies
    assert ask("/", token=TOKEN, cookies=dict.fromkeys(cookies, TOKEN.encode().hex())).status_code == 401


def test_a_token_is_a_bearer_or_becomes_a_cookie_that_scripts_cannot_read() -> None:
    """And is in the address no more."""
    base = "https://shop.example"
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert ask("/", token=TOKEN, base=base, headers=bearer).status_code == 200
    answer = ask(f"/?token={TOKEN}", token=TOKEN, base=base)
    assert (answer.status_code, answer.headers["location"]) == (303, ".")
    cookie = answer.headers["set-cookie"]
    assert re.search(r"; HttpOnly; SameSite=lax; Secure", cookie)
    assert TOKEN not in cookie
    assert ask("/at", token=TOKEN, base=base, cookies=dict(answer.cookies)).status_code == 200


def test_views_of_one_host_do_not_log_each_other_out() -> None:
    """Of two apps, and of two tokens of one app; behind a proxy a cookie is for the folder of the page."""
    cookies = [
        ask(f"/?token={token}", app=app, token=token).headers["set-cookie"].split("=")
        for app, token in (("shop", TOKEN), ("billing", TOKEN), ("shop", TOKEN[::-1]))
    ]
    assert len({name for name, *_ in cookies}) == 3
    assert not [each for each in cookies if "path" in str(each).lower()]  # A browser takes the folder.


def test_each_answer_has_the_headers_and_what_is_not_there_is_not_found() -> None:
    for path in ("/other", "/static/../server.py", "/static/%2e%2e/server.py", "/static/"):
        assert ask(path).status_code == 404


def test_the_matrix_of_a_time_is_asked_for_and_bad_questions_get_nothing() -> None:
    known = ask("/at?processor=price&ms=1795766400000").json()
    assert (known["state"], len(known["workers"])) == ("P...RH..", 3)
    for question in ("", "?processor=price&ms=x", "?processor=price&ms=" + "9" * 5000, "?processor=<b>&ms=1"):
        assert ask(f"/at{question}").json() is None


def taken(feed: Broadcast, acts: list[Any]) -> list[tuple[str, Any]]:
    """Return the events that a tab gets: until it waits, and then after each act."""

    async def listening() -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []

        async def listen() -> None:
            async for event in feed.events("price"):
                name, data = re.fullmatch(rb"event: (\w+)\ndata: (.*)\n\n", event).groups()  # type: ignore[union-attr]
                found.append((name.decode(), msgspec.json.decode(data)))

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            for act in acts:
                act()
                await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        return found

    return anyio.run(listening)


def test_a_tab_gets_the_last_hour_then_frames_and_facts_only_when_they_change() -> None:
    feed = fed(at(0, 8, 3), at(1, 8, 3))
    acts = [lambda: feed.arrived(seen([at(2, 8, 3)])), lambda: feed.arrived(seen([at(12, 8, 3)]))]
    events = taken(feed, acts)
    assert [name for name, _ in events] == ["hello", "facts", "frame", "frame", "facts", "frame"]
    assert len(events[0][1]["points"]["t"]) == 2
    assert events[4][1]["record"][0]["cause"] == "death"


def test_a_slow_tab_gets_the_newest_frame_and_misses_those_before() -> None:
    feed = fed(at(0, 8, 3))

    def three() -> None:
        for second in (1, 2, 3):
            feed.arrived(seen([at(second, 8, 3)]))

    frames = [data["group"]["t"] for name, data in taken(feed, [three]) if name == "frame"]
    assert [ms - frames[0] for ms in frames] == [0, 3000]


def test_a_tab_learns_that_redis_does_not_answer_and_that_it_does_again() -> None:
    """Also one that was opened before the first answer."""
    feed = fed(at(0, 8, 3))
    acts = [lambda: feed.failed("gone"), lambda: feed.arrived(seen([at(1, 8, 3)]))]
    assert [name for name, _ in taken(feed, acts)] == ["hello", "facts", "frame", "problem", "frame"]
    young = Broadcast("shop", nothing)
    events = taken(young, [lambda: young.failed("gone"), lambda: young.arrived(seen([at(1, 8, 3)]))])
    assert [name for name, _ in events] == ["problem", "problem", "hello", "facts", "frame"]


def test_a_tab_hears_something_while_there_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it could not tell a quiet server from one that hangs."""
    monkeypatch.setattr(broadcast, "BEAT_EVERY_S", 0.001)
    events = fed(at(0, 8, 3)).events("price")

    async def listening() -> list[bytes]:
        return [(await anext(events)).partition(b"\n")[0] for _ in range(5)]

    beat = b"event: beat"
    assert anyio.run(listening) == [b"event: hello", b"event: facts", b"event: frame", beat, beat]


def test_the_page_makes_elements_of_no_text() -> None:
    """Names, reasons and errors of others are set as text; scripts and styles are files of ours."""
    makes_elements = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|DOMParser"
    )
    own = {path.name: path.read_text("utf-8") for path in STATIC.glob("*.*")}
    assert {name for name, text in own.items() if makes_elements.search(text)} == set()
    assert re.findall(r"<script[^>]*>(.+?)</script>|style=|\son\w+=", own["index.html"]) == []
    assert not [name for name, text in own.items() if re.search(r"https?://(?!www\.w3\.org/)", text)]
