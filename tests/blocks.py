"""The Python blocks of docs/. Those that are no program by themselves, fragments of one, are run here.

Each runs in the namespace of :data:`SHOP`, in a module ``shop``, beside a server in memory. A page says what
its fragments need in comments, which no reader sees:

- ``<!-- given: CODE -->`` before a block: what runs before it, such as the type that it names.
- ``<!-- then: CODE -->`` behind a block: what calls what it defines, and looks at what becomes of it.
- ``<!-- run by: FILE -->`` before a block: the test that runs it.
- ``<!-- not run: REASON -->`` before a block.

A block with a mark of ``tests/following.py`` or with ``<!-- runnable: FILE -->`` is a file of a program.
"""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from streamworker.testing import MemoryServer
from streamworker.variables import URL_VARIABLE

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+):\s(?P<what>(?:(?!-->).)*?)\s-->\n)?^```python\n(?P<code>.*?)^```\n"
    r"(?:<!-- then:(?P<then>(?:(?!-->).)*?)-->)?",
    re.DOTALL | re.MULTILINE,
)
SHOP = """
from collections.abc import *
from datetime import datetime

import httpx
import msgspec
import pyarrow as pa
import pytest

from streamworker import *
from streamworker.testing import MemoryServer, local_worker

class Order(msgspec.Struct):
    order_id: int = 1
    customer: str = "ann"
    sku: str = "tea"
    quantity: int = 2
    amount: float = 5.0

class Priced(msgspec.Struct):
    order_id: int
    customer: str
    total: float

async def price(order: Order) -> Priced:
    return Priced(order.order_id, order.customer, order.amount)

app = App("shop")
orders = app.stream("orders", Order, key="customer", partitions=1)
"""
"""What pages take for granted."""


class Block(NamedTuple):
    """A Python block of a page."""

    page: str
    line: int
    mark: str
    """``given``, the name of another mark, or nothing."""
    what: str
    code: str
    then: str

    @property
    def needs_spark(self) -> bool:
        return "pyspark" in self.what + self.code

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the Python blocks of a page."""
    text, name = page.read_text("utf-8"), page.relative_to(ROOT).as_posix()
    return [
        Block(
            name,
            text.count("\n", 0, found.start("code")),
            *(found[each] or "" for each in ("mark", "what", "code", "then")),
        )
        for found in BLOCK.finditer(text)
    ]


def save(page: str, folder: Path) -> None:
    """Save the files of a page's programs as a reader does."""
    for block in ALL:
        if block.page == page and block.mark in ("save", "runnable"):
            (folder / block.what).write_text(block.code, "utf-8")


ALL = [block for page in PAGES for block in blocks(page)]
FRAGMENTS = [block for block in ALL if block.mark in ("", "given")]


async def run(block: Block, monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    """Run a fragment with what it needs, and then what looks at it."""
    shop = ModuleType("shop")
    vars(shop).update(names)
    monkeypatch.setitem(sys.modules, "shop", shop)
    with MemoryServer() as server:
        if "spark" not in names:
            monkeypatch.setenv(URL_VARIABLE, server.url)
        for code in (SHOP, block.what, block.code, block.then):
            compiled = compile(code, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.isawaitable(result := eval(compiled, vars(shop))):
                await result
        shop.app.close()
