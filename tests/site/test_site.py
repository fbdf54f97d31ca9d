"""The site as `make site` builds it, read in Chromium."""

import functools
import html
import http.server
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from docs.site.words import WORDS
from streamworker import App
from tests.conftest import CI
from tests.web.browser import CHROMIUM, NO_SANDBOX

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PICTURES = os.environ.get("STREAMWORKER_TEST_PICTURES", "")

SEARCHED = {
    "celery": "moving/celery/",
    "retry": "errors/",
    "delay": "sending/",
    "schedule a task": "sending/",
    "idempotency": "sending/ recipes/duplicates/",
    "dead letter": "errors/ incidents/",
    "GDPR": "personal-data/",
    "delete a user": "personal-data/",
    "encrypt": "personal-data/",
    "priority": "recipes/noisy-tenant/",
    "fastapi": "sending/",
    "pydantic": "types/",
    "backpressure": "retention/",
    "large payload": "sending/",
    "blob": "sending/",
    "window": "spark/",
    "tumbling window": "windows/",
    "event time": "windows/",
    "late data": "windows/ recipes/late-data/",
    "ktable": "moving/kafka-streams/",
    "join": "recipes/join/",
    "exactly once": "guarantees/",
    "jupyter": "spark/",
    "notebook": "spark/",
    "pytest xdist": "testing/",
    "rate limit": "recipes/http-calls/",
    "session timeout": "recipes/session-timeout/",
    "Decimal": "types/",
    "replay": "incidents/ operations/",
    "backfill": "operations/",
    "async http": "recipes/http-calls/",
    "request reply": "recipes/request-and-reply/",
    "multi tenant": "recipes/noisy-tenant/",
    "graceful shutdown": "deploy/",
    "cron timezone": "timers/",
    "kubernetes": "deploy/",
    "exactly-once": "guarantees/",
    "autoscale": "deploy/ monitoring/",
    "hpa": "deploy/",
    "RecordError": "api/errors/",
    "ctx.send": "api/context/",
    "until_drained": "testing/ api/testing/",
    "STREAMWORKER_REDIS_URL": "settings/",
    "consumer group": "moving/kafka/",
    "offset": "moving/kafka/",
    "poison message": "errors/ incidents/",
    "duckdb": "spark/ spark-reference/",
    "polars": "spark/ spark-reference/",
    "django": "sending/",
    "share a stream": "recipes/share-a-stream/",
    "pip install": "getting-started/",
    "partition": "glossary/ partitions/",
    "watermark": "spark/ recipes/late-data/",
    "rebalance": "glossary/ protocol/",
    "kuberntes": "deploy/",
}
"""What somebody types, and the pages of which one is to be among the first three."""
FOUND_NOWHERE = ["xqz", "hpb"]
"""Short words are not taken for others."""

pytestmark = [
    pytest.mark.full("builds the site, and needs Chromium"),
    pytest.mark.slow,
    pytest.mark.timeout(300),  # the first waits for the build
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of this version, built anew. The build fails for each fault that its crawler names."""
    done = subprocess.run(
        [sys.executable, "docs/site/build.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where a server on loopback has all versions."""
    handler = functools.partial(Quiet, directory=str(site.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not shutil.which(CHROMIUM) and not CI:
        pytest.skip("There is no Chromium on the PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=NO_SANDBOX)
        yield browser
        browser.close()


@pytest.fixture
def scheme() -> Any:
    """The colours of the reader's system."""
    return "light"


@pytest.fixture
def start(browser: Browser, url: str, site: Path, scheme: Any) -> Iterator[Page]:
    """The start page. At the end nothing was asked of another host, and nothing stands in the console."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme) as context:
        said: list[str] = []
        context.on("request", lambda request: said.append(request.url))
        context.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
        context.on("weberror", lambda error: said.append(str(error.error)))
        page = context.new_page()
        page.goto(f"{url}{site.name}/")
        yield page
        assert [what for what in said if not what.startswith((url, "data:", "blob:"))] == []


def test_the_address_of_the_site_leads_to_the_newest_version(start: Page, url: str, site: Path) -> None:
    """A version is a folder of its own, so that an older one stays where it is."""
    assert start.locator(".md-version__current").inner_text() == site.name
    newest = json.loads((site.parent / "versions.json").read_text("utf-8"))[0]["version"]
    start.goto(url)
    start.wait_for_url(f"{url}{newest}/")


def test_a_request_to_another_host_is_refused_by_the_browser(browser: Browser, url: str, site: Path) -> None:
    """By the policy of each page, whatever a later version of the theme would like to load."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}{site.name}/")
        with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
            page.evaluate("fetch('http://127.0.0.2:9/').catch(() => null)")


@pytest.mark.parametrize("words", ["exactly once", "session timeout"])
def test_the_search_shows_titles_and_not_the_words_that_lead_to_them(
    start: Page, url: str, site: Path, words: str
) -> None:
    page = SEARCHED[words].split()[0]
    start.click(".md-search__button")
    start.get_by_role("combobox", name="Search").fill(words)
    first = start.get_by_role("option").first
    expect(first).to_have_attribute("href", re.compile(f"^{url}{site.name}/{page}"))
    title = (DOCS / f"{page.rstrip('/')}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    expect(first).to_contain_text(title)
    expect(first).not_to_contain_text(WORDS[f"{page.rstrip('/')}.md"])


def test_the_search_finds_the_right_page_among_the_first_three(site: Path) -> None:
    """By the words that people bring from elsewhere, and by those of the glossary. Decisions come last."""
    [worker] = site.glob("assets/javascripts/workers/search.*.js")
    done = subprocess.run(
        ["node", Path(__file__).with_name("search.js"), worker, site / "search.json"],
        input="\n".join([*SEARCHED, *FOUND_NOWHERE]),
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(zip([*SEARCHED, *FOUND_NOWHERE], map(json.loads, done.stdout.splitlines()), strict=True))
    first = {words: {place.partition("#")[0] for place in found[words][:3]} for words in SEARCHED}
    missed = {words for words, pages in SEARCHED.items() if not first[words] & {*pages.split()}}
    assert {words: first[words] for words in missed} == {}
    assert [found[word] for word in FOUND_NOWHERE] == [[]] * len(FOUND_NOWHERE)
    for words, places in found.items():
        are_decisions = [place.startswith("decisions/0") for place in places]
        assert are_decisions == sorted(are_decisions), (words, places)


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("rebalance", "guarantees/#i7"),
        ("offset", "protocol/#commit"),
        ("resetting offsets", "operations/#reset"),
        ("retention", "retention/"),
        ("exactly-once", "guarantees/"),
        ("scaling", "deploy/#how-many"),
    ],
)
def test_a_reader_who_knows_kafka_is_there_with_two_clicks(
    start: Page, url: str, site: Path, word: str, page: str
) -> None:
    """By way of the dictionary of the page about moving from it."""
    start.get_by_role("article").get_by_role("link", name="Kafka", exact=True).click()
    row = start.get_by_role("row").filter(has=start.get_by_role("cell", name=re.compile(f"^{word}")))
    row.get_by_role("link").first.click()
    start.wait_for_url(re.compile(f"^{url}{site.name}/{page}"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "getting-started/", "api/app/", "redis-keys/"])
def test_pages_keep_the_rules_of_accessibility(start: Page, path: str, scheme: Any) -> None:
    """Axe finds nothing serious or critical, in either colours, on a small and on a large screen. What is
    wider than a phone, such as a table, is scrolled by itself.

    With ``STREAMWORKER_TEST_PICTURES`` set to a folder, the test leaves its pictures there.
    """
    start.goto(start.url + path)
    colours = {"light": "default", "dark": "slate"}[scheme]
    expect(start.locator("body")).to_have_attribute("data-md-color-scheme", colours)
    start.add_style_tag(
        content="* { transition: none !important }"
    )  # a colour on its way is none of the theme's
    for width in (390, 1280):
        start.set_viewport_size({"width": width, "height": 900})
        assert start.evaluate("document.documentElement.scrollWidth") <= width
        if PICTURES:
            start.screenshot(path=f"{PICTURES}/{path.strip('/') or 'start'}-{width}-{scheme}.png")
        found = Axe().run(start).response
        bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert len(found["passes"]) > 15
        assert [(each["id"], each["nodes"][0]["html"]) for each in bad] == []


def test_the_reference_has_the_decorators_with_each_option(site: Path) -> None:
    """Which the class `App` takes from other modules, and a processor's options from a dataclass."""
    page = (site / "api" / "app" / "index.html").read_text("utf-8")
    signatures = re.findall(r'<div class="language-python doc-signature.*?</div>', page, re.DOTALL)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", signature)).strip() for signature in signatures]
    for decorator in ("stream", "table", "processor", "timer", "cron", "resource", "middleware", "pipeline"):
        function = inspect.unwrap(getattr(App, decorator))
        [text] = [text for text in shown if text.startswith(f"{decorator}(") and "when" not in text]
        assert all(f"{name}:" in text for name in [*inspect.signature(function).parameters][1:]), text
    assert not any(text.startswith("Processor(") for text in shown), "nobody makes one"


def test_each_attribute_in_the_reference_has_its_type(site: Path) -> None:
    """But `app`, which is the app."""
    pages = [page.read_text("utf-8") for page in (site / "api").rglob("index.html")]
    shown = [
        each for page in pages for each in re.findall(r"doc-signature.*?<code>(.*?)</code>", page, re.DOTALL)
    ]
    texts = {html.unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in shown}
    assert len(texts) > 100
    assert {text for text in texts if text.isidentifier()} <= {"app"}
