"""The crawler that `make site` ends with names what is wrong with a site."""

from pathlib import Path

import pytest

from docs.site.crawl import crawl

SOUND = {
    "index.html": '<a href="page/#here">x</a><a href="https://example.org/">y</a><a href="">z</a>',
    "page/index.html": '<h2 id="here">B</h2><a href="..">up</a><img src="../a.svg"><link href="../a.css">',
    "a.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "a.css": "/* https://example.org */ a { background: url(a.svg) }",
    "a.js": 'make("http://www.w3.org/2000/svg")',
}


def faults(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return list(crawl(folder))


def test_a_sound_site_has_no_fault(tmp_path: Path) -> None:
    """Links to other hosts are followed by readers, not by their browsers."""
    assert faults(tmp_path, SOUND) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("index.html", '<a href="pages/">x</a>', "index.html: nothing is at pages/"),
        ("index.html", '<a href="page/#there">x</a>', "index.html: no heading is at page/#there"),
        ("index.html", '<a href="#there">x</a>', "index.html: no heading is at #there"),
        ("index.html", '<a href="../up.html">x</a>', "index.html: nothing is at ../up.html"),
        ("index.html", '<img src="b.svg">', "index.html: nothing is at b.svg"),
        (
            "index.html",
            '<script src="//cdn.example.org/a.js"></script>',
            "index.html: loads //cdn.example.org/a.js from another host",
        ),
        (
            "index.html",
            '<p style="background: url(https://example.org/a.png)">',
            "index.html: loads https://example.org/a.png from another host",
        ),
        ("a.css", "@import 'b.css'", "a.css: nothing is at b.css"),
        ("a.css", "a { src: url(https://example.org/f) }", "a.css: names the host example.org"),
        ("a.js", 'fetch("https://example.org/a")', "a.js: names the host example.org"),
    ],
)
def test_a_fault_is_named_with_its_file(tmp_path: Path, name: str, text: str, fault: str) -> None:
    """Each is planted into a site that is sound."""
    assert fault in faults(tmp_path, SOUND | {name: text})
