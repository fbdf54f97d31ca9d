"""docs/tutorials/production.md, followed word for word from an empty folder."""

import re
import shutil
from pathlib import Path

import pytest

from tests.chaos.forked import ROOT
from tests.following import Reader
from tests.stage.server import free_ports

PAGE = ROOT / "docs/tutorials/production.md"
PORT = re.compile(r"(?<=\bport )\d{4}\b|(?<=-p )\d{4}\b|(?<=localhost:)\d{4}\b")


class Operator(Reader):
    """One who leaves out those of these tools that the machine lacks."""

    def run(self, command: str) -> str:
        tool = command.partition(" ")[0]
        return "" if tool in {"kubectl", "promtool"} and not shutil.which(tool) else super().run(command)


@pytest.mark.full("starts a Redis with TLS, four workers, an exporter and forty commands")
@pytest.mark.timeout(600)
def test_the_way_to_production_is_as_the_page_says(tmp_path: Path) -> None:
    """On free ports in place of its own."""
    text = PAGE.read_text("utf-8")
    named = sorted(set(PORT.findall(text)))
    free = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    page = tmp_path / PAGE.name
    page.write_text(PORT.sub(lambda found: free[found[0]], text), "utf-8")
    with Operator(page, tmp_path) as reader:
        shutil.copytree(ROOT / "deploy", reader.folder / "deploy")
        assert sum(1 for _ in reader.follow()) > 20
