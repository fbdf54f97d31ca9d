"""Reads the files of a site as a browser would: what leads nowhere, and what would come from another host."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LOADED = {"href": {"link"}, "src": {"img", "script", "iframe", "source", "video", "audio"}, "poster": {"video"}}
"""Attributes by which a page loads a file, with their tags; a link of an `<a>` only leads there."""
ELSEWHERE = re.compile(r"(?:https?:)?//")
URL = re.compile(r"""url\(\s*["']?(?!data:|#)([^)"'\s]+)|@import\s+["']([^"']+)""")
COMMENT = re.compile(r"/\*.*?\*/|!--.*?--", re.DOTALL)
NAMES_ONLY = {"www.w3.org"}
"""What names a vocabulary of XML, and is never asked."""


class Page(HTMLParser):
    """What one page has: anchors, links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at the attributes of a tag."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif tag in LOADED.get(name, ()):
                self.loaded.append(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name == "style":
                self.loaded += (match[1] or match[2] for match in URL.finditer(value))


def crawl(site: Path) -> Iterator[str]:
    """Yield each fault of a site."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links + page.loaded:
            if ELSEWHERE.match(link):
                if link in page.loaded:
                    yield f"{path.relative_to(site)}: loads {link} from another host"
            elif not re.match(r"\w+:", link):
                file, _, anchor = link.partition("#")
                target = (path.parent / unquote(file)).resolve() if file else path
                target = target / "index.html" if target.is_dir() else target
                if not target.is_file() or not target.is_relative_to(site):
                    yield f"{path.relative_to(site)}: nothing is at {link}"
                elif target in pages and unquote(anchor) not in pages[target].anchors:
                    yield f"{path.relative_to(site)}: no heading is at {link}"
    for path in sorted([*site.rglob("*.js"), *site.rglob("*.css")]):
        text = COMMENT.sub("", path.read_text("utf-8")) if path.suffix == ".css" else path.read_text("utf-8")
        for host in sorted(set(re.findall(r"https?://([\w.-]+\.\w+)", text))):
            if host not in NAMES_ONLY:
                yield f"{path.relative_to(site)}: names the host {host}"
        for match in URL.finditer(text) if path.suffix == ".css" else ():
            if not (path.parent / (match[1] or match[2])).is_file():
                yield f"{path.relative_to(site)}: nothing is at {match[1] or match[2]}"
