"""Builds the site: `make site`. Strict: a dead link, a dead anchor or a page in no section fails it.

Pages of docs/ are written for a forge as well. Here they become what the site needs: what lies outside docs/ becomes
a page where one links to it, and a block that a reader saves gets the name of its file. The site of a version is a
folder of its own, build/site/0.1; build/site/index.html leads to the newest release, and versions.json fills the
selector. To keep older versions, lay their folders there before.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from docs.site.crawl import crawl
from docs.site.words import WORDS

DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
SAVED = re.compile(r"^<!-- (?:save|runnable): (\S+) -->\n```(\w+)\n", re.MULTILINE)
OPTIONS = {"index.md": "hide: [navigation, toc]", "changelog.md": "search: {exclude: true}"}
"""What a forge would show as a table."""
TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LANGUAGES = {".py": "python", ".sh": "sh", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".lua": "lua"}
LEADS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>streamworker</title><link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">streamworker {0}</a></html>
"""
IN_NO_SECTION = re.compile(r"index\.md|decisions/\d.*|source/.*")
"""The start; and pages that others lead to."""
SAYS = re.compile(r'"""(.+)')
"""The first line of a program."""
FIELD = re.compile(r'doc-attribute">\s*<h[3-6] id="([^"]+)"')
"""A field of a class in the reference."""
TERM = re.compile(r"^\| (?!word \|)([^|-][^|]*) \| (.*) \|$", re.MULTILINE)
"""A row of the glossary."""
SEARCH = {
    'fields:[C("title",n=>n.title,{weight:3}),C("text",n=>n.text),C("path",n=>n.path,{weight:2})],plugins': (
        'fields:[C("words",n=>n.words,{weight:4}),C("title",n=>n.last?void 0:n.title,{weight:3}),'
        'C("text",n=>n.last?void 0:n.text),C("path",n=>n.last?void 0:n.path,{weight:2}),'
        'C("last",n=>n.last,{weight:.5})],plugins'
    ),
    'if(typeof o=="string")o=n(o);else return;e.index.get(o)': (
        'if(typeof o=="string"&&o.length>5)o=n(o);else return;e.index.get(o)'
    ),
}
"""What the search of the theme says, and what it says here: `words` are found and not shown, what is `last` weighs less
than any text, and a word of five letters is not taken for another one."""
FOREIGN = re.compile(r"https://(?:unpkg\.com|cdn\.jsdelivr\.net|api\.github\.com)[^\"'`$]*")


class Pages:
    """The pages of the site, by the file of the repository that each shows."""

    def __init__(self) -> None:
        self.made: dict[Path, str] = {}
        """File or folder to its place among the pages."""

    def place(self, path: Path) -> str:
        """Return where a file stands, and make its page if there is none."""
        if path in self.made:
            return self.made[path]
        name = path.relative_to(ROOT).as_posix()
        if path.is_relative_to(DOCS):
            self.made[path] = path.relative_to(DOCS).as_posix()
        elif name in TOP:
            self.made[path] = TOP[name]
        elif path.is_dir():
            self.made[path] = f"source/{name}/index.md"
        else:
            self.made[path] = f"source/{name}.md"
        self._write(path, PAGES / self.made[path])
        return self.made[path]

    def _write(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if not file.name.startswith(("__", ".")))
            rows = []
            for file in files:
                link = os.path.relpath(PAGES / self.place(file), target.parent)
                says = SAYS.match(file.read_text("utf-8")) if file.suffix == ".py" else None
                rows.append(f"- [{file.name}]({link})" + (f": {says[1]}" if says else ""))
            target.write_text(f"# {path.relative_to(ROOT)}\n\n" + "\n".join(rows) + "\n", "utf-8")
        elif path.suffix == ".md":
            text = SAVED.sub(r'```\2 title="\1"\n', path.read_text("utf-8"))
            if path == DOCS / "glossary.md":
                text = TERM.sub(lambda row: f'| <a id="{anchor(row[1])}"></a>{row[1]} | {row[2]} |', text)
            if option := OPTIONS.get(self.made[path]):
                text = f"---\n{option}\n---\n{text}"
            target.write_text(LINK.sub(lambda link: self._linked(path, link[1]), text), "utf-8")
        elif path.is_relative_to(DOCS):
            shutil.copy(path, target)
        else:
            language = LANGUAGES.get(path.suffix, "text")
            text = f"# {path.relative_to(ROOT)}\n\n````{language}\n{path.read_text('utf-8')}````\n"
            target.write_text("---\nsearch: {exclude: true}\n---\n" + text, "utf-8")

    def _linked(self, page: Path, link: str) -> str:
        target = (page.parent / link).resolve()
        if not target.exists() or (target.is_relative_to(DOCS) and page.is_relative_to(DOCS)):
            return link
        return os.path.relpath(PAGES / self.place(target), (PAGES / self.made[page]).parent)

    def in_no_section(self, here: Path) -> list[str]:
        """Return the pages that the navigation does not have."""
        start = (here / "index.html").read_text("utf-8")
        linked = set(re.findall(r'<a href="\./([^"#]+)" class="md-nav__link', start))
        return [
            f"{place}: is in no section of docs/.nav.yml"
            for place in sorted(self.made.values())
            if place.endswith(".md") and not IN_NO_SECTION.fullmatch(place)
            if place.removesuffix("README.md").removesuffix(".md").rstrip("/") + "/" not in linked
        ]


def version_name() -> str:
    """Return the folder of this version: `0.1` for all releases 0.1.x, `dev` for what is between releases."""
    whole = version("streamworker")
    return "dev" if "dev" in whole else ".".join(whole.split(".")[:2])


def build() -> Path:
    """Build the site of this version, and return its folder."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = Pages()
    for path in [*map(ROOT.joinpath, TOP), ROOT / "examples", *sorted(DOCS.rglob("*"))]:
        if path.suffix in {".md", ".svg", ".webp", ".png"} or path.name in {".nav.yml", "examples"}:
            pages.place(path)
    name = version_name()
    here = SITE / name
    shutil.rmtree(here, ignore_errors=True)
    zensical = Path(sys.executable).with_name("zensical")
    environment = os.environ | {"SITE_DIR": str(here.relative_to(ROOT))}
    done = subprocess.run([zensical, "build", "--strict", "--clean"], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise SystemExit("the site is not built: see the warnings above")
    (here / "404.html").unlink()  # its links hold only at the root of a host
    for script in here.rglob("*.js"):
        script.write_text(FOREIGN.sub("", script.read_text("utf-8")), "utf-8")
    [search] = here.glob("assets/javascripts/workers/search.*.js")
    search.write_text(changed(search.read_text("utf-8"), SEARCH), "utf-8")
    improve_search(here / "search.json")
    list_versions()
    if problems := [*crawl(here), *pages.in_no_section(here)]:
        raise SystemExit("\n".join([f"the site has {len(problems)} faults:", *problems]))
    return here


def changed(text: str, changes: dict[str, str]) -> str:
    """Return a script of the theme with our changes; a later version of it must have their places, too."""
    for before, after in changes.items():
        if text.count(before) != 1:
            raise SystemExit(f"the search of this zensical has no place for a change of ours: {before}")
        text = text.replace(before, after)
    return text


def improve_search(index: Path) -> None:
    """Let pages be found by the words of `words.py`, each word of the glossary by itself, and decisions last.

    No field of a class is found: many classes have fields of the same names.
    """
    found = json.loads(index.read_text("utf-8"))
    pages = (page.read_text("utf-8") for page in index.parent.glob("api/*/index.html"))
    fields = {name for page in pages for name in FIELD.findall(page)}
    found["items"] = [item for item in found["items"] if item["location"].partition("#")[2] not in fields]
    by_place = {item["location"]: item for item in found["items"]}
    for page, words in WORDS.items():
        by_place[page.removesuffix(".md") + "/"]["words"] = words
    for item in found["items"]:
        if re.match(r"decisions/\d", item["location"]):
            item["last"] = f"{item['title']} {item['text']}"
    for word, meaning in TERM.findall((DOCS / "glossary.md").read_text("utf-8")):
        item = {"location": f"glossary/#{anchor(word)}", "level": 2, "title": word, "text": meaning}
        found["items"].append(item | {"path": ["Reference", "Glossary"], "tags": []})
    index.write_text(json.dumps(found), "utf-8")


def anchor(word: str) -> str:
    """Return the anchor of a word of the glossary.

    >>> anchor("acquire, release")
    'acquire-release'
    """
    return re.sub(r"\W+", "-", word)


def list_versions() -> None:
    """Write which versions are there, for the selector of each page, and the page that leads to the newest."""
    names = sorted((path.name for path in SITE.iterdir() if path.is_dir()), key=rank, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in names]
    (SITE / "versions.json").write_text(json.dumps(listed), "utf-8")
    (SITE / "index.html").write_text(LEADS.format(names[0]), "utf-8")


def rank(name: str) -> tuple[int, ...]:
    """Return what versions are ordered by: `dev` comes before all releases.

    >>> sorted(["0.9", "dev", "0.10"], key=rank)
    ['dev', '0.9', '0.10']
    """
    return tuple(map(int, name.split("."))) if name != "dev" else ()


if __name__ == "__main__":
    print(build())
