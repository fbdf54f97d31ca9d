"""The page in the distribution's Chromium: what it shows, to whom, and what it costs the browser.

With ``STREAMWORKER_TEST_PICTURES`` set to a folder the pictures of docs/web.md are made there.
"""

import os
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from streamworker.web.broadcast import Seen
from streamworker.web.history import HOUR_MS
from tests.cli.test_hostile_text import HOSTILE, SEEN
from tests.conftest import CI
from tests.helpers import wait_for
from tests.web.browser import CHROMIUM, NO_SANDBOX, Proxy, Site
from tests.web.groups import START_MS, at, edges, seen

pytestmark = [pytest.mark.full("needs Chromium, which is a package of the system"), pytest.mark.slow]

PICTURES = os.environ.get("STREAMWORKER_TEST_PICTURES", "")
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"

UNTIL_DRAWN = """(count) => new Promise((done) => {
    const look = () => (framesDrawn.count > count ? done() : setTimeout(look, 1));
    look();
})"""

COUNT_CHANGES = """() => {
    window.changes = 0;
    const all = { subtree: true, childList: true, characterData: true, attributes: true };
    new MutationObserver((found) => (changes += found.length)).observe(document, all);
}"""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not shutil.which(CHROMIUM) and not CI:
        pytest.skip("There is no Chromium on the PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        options = [*NO_SANDBOX, "--js-flags=--expose-gc", "--enable-precise-memory-info"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open the page in a browser of its own; at the end no error may stand in its console."""
    said: list[str] = []

    def open_at(
        site: Site, width: int = 1280, height: int = 900, scheme: Any = "light", clock: bool = False
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        site.before_end.append(context.close)
        page = context.new_page()
        if clock:
            page.clock.install()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(site.url)
        page.wait_for_selector(".cell[data-s]")
        return page

    yield open_at
    assert said == []


def of(partitions: int, workers: int, killed: int = 10) -> Callable[[int], Seen]:
    return lambda second: seen([at(second, partitions, workers, killed)])


def drawn(page: Page) -> int:
    return int(page.evaluate("framesDrawn.count"))


def go_on(site: Site, pages: list[Page], seconds: int = 1) -> None:
    """Let seconds pass, and wait after each until all pages have drawn it."""
    for _ in range(seconds):
        before = [drawn(page) for page in pages]
        site.go_on()
        for page, count in zip(pages, before, strict=True):
            page.evaluate(UNTIL_DRAWN, count)


def hostile(second: int) -> Seen:
    """Return a group in which each text of others is hostile, to a browser and to a terminal."""
    text, group = HTML + HOSTILE, at(second, 8, 3)
    members = tuple(replace(each, name=text, host=text) for each in group.members)
    views = tuple(replace(each, reason=text) if each.state == "halted" else each for each in group.partitions)
    readers = (replace(group.readers[0], name=text, failed=text),)
    changes = tuple(replace(each, member=text, cause=text) for each in group.rebalances)
    found = replace(
        group, members=members, partitions=views, readers=readers, rebalances=changes, problems=(text,)
    )
    letter = {
        "processor": "price",
        "letter": text,
        "at_ms": START_MS,
        "attempts": 1,
        "error": text,
        "value": text,
    }
    failing = {"processor": "price", "partition": 5, "entry": "1795766400000-0", "value": f"value {text}"}
    timer = dict.fromkeys(("timer", "runs", "on", "last", "next", "took", "failing"), text)
    archive = {"stream": text, "url": text, "why": text, "upto_ms": 0, "only": 1, "waiting": 2, "waits_ms": 3}
    facts = {"streams": {text: 8}, "letters": [letter], "failing": [failing], "timers": [timer], "hidden": {}}
    facts["archives"] = [archive]
    return Seen([found], [{**edge, "end": f"{text}()", "failed": text} for edge in edges(found)], facts)


def test_text_of_others_is_shown_as_text(open_page: Open) -> None:
    """It becomes no element, and what would hide or turn around text is shown as an escape."""
    with Site(hostile).served() as site:
        page = open_page(site)
        go_on(site, [page], 12)
        assert page.locator("img, main script, iframe").count() == 0
        for part in ("matrix", "held", "letters", "record", "readers", "graph", "archives", "timers"):
            text = page.evaluate(f"document.getElementById('{part}').textContent")
            assert HTML[:20] in text, part
            assert not [char for char in text if not char.isprintable() and not char.isspace()], part
        assert SEEN in page.inner_text("#held")
        assert f"value {HTML}" in page.inner_text("#held")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_keeps_the_rules_of_accessibility(open_page: Open, scheme: str) -> None:
    """Axe finds nothing serious or critical, in either colours, on a small and on a large screen."""
    with Site(of(64, 8)).served() as site:
        for width in (390, 1280):
            page = open_page(site, width, scheme=scheme)
            go_on(site, [page], 3)
            found = Axe().run(page).response
            bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
            assert len(found["passes"]) > 15
            assert [(each["id"], each["nodes"][0]["html"]) for each in bad] == []


def test_all_is_reached_by_the_keyboard(open_page: Open) -> None:
    """Tabs, the matrix, and the slider into the past and back."""

    def two(second: int) -> Seen:
        group = at(second, 8, 3)
        return seen([group, replace(group, processor="audit")])

    with Site(two).served() as site:
        page = open_page(site)
        go_on(site, [page], 12)
        page.focus("[role=tab][aria-selected=true]")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("[role=tab][aria-selected=true] >> text=audit")
        assert page.url.endswith("#audit")
        page.focus(".cell[tabindex='0']")
        for key, partition in (("ArrowRight", 1), ("ArrowDown", 4), ("End", 7), ("ArrowUp", 5), ("Home", 0)):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.partition") == partition, key
            assert page.inner_text("#detail").startswith(f"Partition {partition} ")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.focus("#scrub")
        page.keyboard.press("Home")
        page.wait_for_selector("#live.past")
        page.wait_for_selector("#matrix >> text=w2")
        go_on(site, [page], 2)
        assert page.is_visible("#live.past")
        page.focus("#now")
        page.keyboard.press("Enter")
        wait_for(lambda: page.locator("#matrix >> text=w2").count() == 0, "it shows the present again")


def test_a_phone_scrolls_in_one_direction(open_page: Open) -> None:
    with Site(of(64, 8)).served() as site:
        page = open_page(site, 390, 800)
        go_on(site, [page], 12)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        boxes = page.locator(".scroll:visible, #matrix").all()
        hidden = [each.evaluate("(box) => box.scrollWidth - box.clientWidth") for each in boxes]
        assert len(hidden) > 2
        assert max(hidden) == 0


def test_an_outage_is_told_and_the_last_frame_stays(open_page: Open) -> None:
    """Until Redis answers again, however often it does not."""
    with Site(of(8, 3)).served() as site:
        page = open_page(site)
        for _ in range(3):
            site.fail("Cannot connect.")
            page.wait_for_selector("#banner >> text=Cannot connect.")
        assert page.locator(".cell[data-s]").count() >= 8
        go_on(site, [page])
        page.wait_for_selector("#banner", state="hidden")


def test_a_page_that_hears_nothing_any_more_says_so(open_page: Open) -> None:
    """A server that hangs closes no connection, and neither does a network that is gone."""
    with Site(of(8, 3)).served() as site:
        page = open_page(site, clock=True)
        page.clock.run_for(14_000)
        assert not page.is_visible("#banner")
        page.clock.run_for(3_000)
        page.wait_for_selector("#banner >> text=The server of this page has sent nothing for 1")
        go_on(site, [page])
        page.wait_for_selector("#banner", state="hidden")


def test_the_page_comes_back_by_itself_behind_a_proxy_and_after_a_new_token(browser: Browser) -> None:
    """An answer that is no stream ends what a browser does by itself. The page says the cause meanwhile."""
    first, second = "the-first-token-of-a-test", "the-second-token-of-a-test"
    with Site(of(8, 3), first).served() as site, browser.new_context() as context:
        proxy = Proxy(site)
        with proxy.served() as url:
            page = context.new_page()
            page.goto(f"{url}?token={first}")
            page.wait_for_selector(".cell[data-s]")
            proxy.go_away()
            page.wait_for_selector("#banner >> text=cannot be reached: the answer is 502")
            proxy.is_away = False
            page.wait_for_selector("#banner", state="hidden")
            site.use_token(second)
            proxy.go_away(for_long=False)
            page.wait_for_selector("#banner >> text=needs another token")
            context.request.get(f"{url}?token={second}")
            page.wait_for_selector("#banner", state="hidden")
            site.before_end.append(context.close)


def test_times_are_in_utc_and_have_a_date_unless_they_are_of_today(browser: Browser) -> None:
    """Wherever the browser is, and also when a day ends while the page is open."""
    letter = {"processor": "price", "letter": "3/1", "attempts": 1, "error": "ValueError", "value": None}

    def of_two_days(second: int) -> Seen:
        found = of(8, 3)(second)
        letters = [{**letter, "at_ms": START_MS}, {**letter, "at_ms": START_MS - 7 * 86_400_000}]
        return replace(found, facts={**found.facts, "letters": letters})

    with Site(of_two_days).served() as site:
        page = browser.new_context(timezone_id="Asia/Tokyo").new_page()
        site.before_end.append(page.context.close)
        page.clock.set_fixed_time(START_MS / 1000)
        page.goto(site.url)
        page.wait_for_selector("#letters >> text=2026-11-20 08:00:00")
        times = "td:nth-child(2)"
        assert page.locator(f"#letters {times}").all_inner_texts() == ["08:00:00", "2026-11-20 08:00:00"]
        assert page.inner_text("#clock") == "08:00:01 UTC"
        page.clock.set_fixed_time(START_MS / 1000 + 86_400)
        go_on(site, [page])
        shown = page.locator(f"#letters {times}").all_inner_texts()
        assert shown == ["2026-11-27 08:00:00", "2026-11-20 08:00:00"]


def test_a_thousand_partitions_freeze_no_tab(open_page: Open) -> None:
    """A frame changes only what has changed, and is laid out once, also while a worker dies.

    What is counted does not depend on what else the machine does. A page that drew each cell anew, or asked
    for a size after each, would stand still for as long as it took.
    """
    partitions, seconds = 1024, 30
    with Site(of(partitions, 64)).served() as site:
        page = open_page(site)
        page.evaluate(COUNT_CHANGES)
        performance = page.context.new_cdp_session(page)
        performance.send("Performance.enable")

        def counts() -> dict[str, float]:
            """Return how often something happened until now."""
            found = performance.send("Performance.getMetrics")["metrics"]
            return {"changes": page.evaluate("changes"), **{each["name"]: each["value"] for each in found}}

        before = counts()
        go_on(site, [page], seconds)
        after = counts()
        took = median(page.evaluate("framesDrawn.took"))
        each = {
            name: (after[name] - before[name]) / seconds
            for name in ("changes", "LayoutCount", "RecalcStyleCount")
        }
        print(f"1,024 partitions, 64 workers: a frame takes {took:.1f} ms, and makes {each}")
        assert each["changes"] < partitions / 4
        assert each["LayoutCount"] < 5
        assert each["RecalcStyleCount"] < 5


def test_memory_is_steady_over_an_hour(open_page: Open) -> None:
    """With a look in each four seconds. The hour before is full already, so nothing that is kept may grow."""
    looks = HOUR_MS // 4_000
    with Site(lambda look: seen([at(4 * look, 64, 8)])).served() as site:
        site.go_on(looks)
        page = open_page(site)
        heap = []
        for _ in range(4):
            done = drawn(page) + looks // 4
            site.go_on(looks // 4)
            page.evaluate(UNTIL_DRAWN, done - 1)
            page.evaluate("gc()")
            heap.append(page.evaluate("performance.memory.usedJSHeapSize"))
        print(f"JavaScript heap after each quarter of an hour: {[f'{size / 1e6:.2f} MB' for size in heap]}")
        assert drawn(page) >= looks
        assert heap[-1] < 1.06 * heap[0]


@pytest.mark.parametrize(
    ("name", "width", "height", "partitions", "workers", "scheme"),
    [
        ("phone", 390, 844, 8, 3, "dark"),
        ("screen", 1280, 900, 64, 8, "light"),
        ("wall", 2560, 1200, 1024, 64, "dark"),
    ],
)
def test_a_kill_is_seen_at_once(
    open_page: Open,
    name: str,
    width: int,
    height: int,
    partitions: int,
    workers: int,
    scheme: str,
    tmp_path: Path,
) -> None:
    """The worker is gone, and what it owned is on its way to others; the docs show it, after five minutes."""
    killed = 300 if PICTURES else 12
    with Site(of(partitions, workers, killed)).served() as site:
        site.go_on(killed - (3 if partitions > 8 else 2))
        page = open_page(site, width, height, scheme)
        go_on(site, [page], 3)
        assert page.locator("[data-state=nobody] .cell[data-s=A]").count() > 0
        assert page.locator(".cell.ghost").count() > 0
        shown = page.context.new_cdp_session(page).send(
            "Page.captureScreenshot", {"format": "webp", "quality": 80}
        )
        (Path(PICTURES or tmp_path) / f"web-{name}.webp").write_bytes(b64decode(shown["data"]))
