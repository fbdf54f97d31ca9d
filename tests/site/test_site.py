"""The site as `make site` builds it, read in Chromium."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.conftest import CI
from tests.web.browser import CHROMIUM, NO_SANDBOX

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.full("builds the site, and needs Chromium")


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
def start(browser: Browser, url: str, site: Path) -> Iterator[Page]:
    """The start page. At the end nothing was asked of another host, and nothing stands in the console."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        said: list[str] = []
        context.on("request", lambda request: said.append(request.url))
        context.on("console", lambda message: said.append(message.text))
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
