"""From a path on the command line to the object, and what is said if there is none."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamworker import ConfigurationError
from streamworker.importing import (
    resolve_app,
    resolve_processor,
    resolve_processors,
    resolve_stream,
    resolve_timer,
    with_pipelines,
)
from streamworker.runtime.worker import Worker
from streamworker.variables import REDIS_URL_OVERRIDE
from tests.cli.conftest import Invoke


def test_an_app_is_found_as_uvicorn_would_find_it(shop: Path) -> None:
    """Module, colon, attribute, which may have dots; the current folder is on the path."""
    assert resolve_app("shop:app").name == "shop"
    (shop / "nested.py").write_text("import shop\nclass Site:\n    app = shop.app\n", "utf-8")
    assert resolve_app("nested:Site.app").name == "shop"


def test_a_stream_is_found_by_attribute_by_name_and_through_its_app(shop: Path) -> None:
    """An app with one stream needs no name for it."""
    assert resolve_stream("shop:orders").name == "orders"
    assert resolve_stream("shop:app").name == "orders"
    assert resolve_stream("shop:app", "orders").name == "orders"


def test_a_processor_is_found_by_its_function_and_by_its_name(shop: Path) -> None:
    """The name is the group's; the function may be called otherwise."""
    assert resolve_processor("shop:pricing")[1].name == "price"
    assert resolve_processor("shop:price")[1].name == "price"
    assert [spec.name for spec in resolve_processors("shop:app").processors] == ["audit", "price"]
    assert [spec.name for spec in resolve_processors("shop:app", ["price"]).processors] == ["price"]


FACTORY = "from shop import app\ndef make():\n    return app\n"


@pytest.mark.parametrize(
    ("resolve", "path", "said"),
    [
        pytest.param(resolve_app, "shop", "Write MODULE:ATTRIBUTE", id="no colon"),
        pytest.param(resolve_app, "shop:", "Here perhaps shop:app.", id="no attribute"),
        pytest.param(resolve_app, ":app", "':app' is not the path of an app", id="no module"),
        pytest.param(resolve_app, "shop.py", "Here perhaps shop:app.", id="a file alone"),
        pytest.param(resolve_app, "shop.py:app", "shop.py is a file, and a module", id="a file"),
        pytest.param(resolve_app, "site/shop.py:app", "Write site.shop:app.", id="a file in a folder"),
        pytest.param(resolve_app, "shoop:app", "folder: factory, shop.", id="an unknown module"),
        pytest.param(resolve_app, "shop:ap", "no 'ap'. Apps in that module: shop:app.", id="no app"),
        pytest.param(resolve_app, "shop:orders", "is a Stream, not an App. Apps in that", id="a stream"),
        pytest.param(resolve_app, "factory:make", "call it in the module", id="what makes an app"),
        pytest.param(resolve_stream, "shop:order", "Streams in them: orders", id="an unknown stream"),
        pytest.param(resolve_stream, "shop:audit", "is a Processor, not a Stream. Streams", id="a processor"),
        pytest.param(resolve_processor, "shop:prize", "them: audit, price", id="an unknown processor"),
        pytest.param(
            resolve_processor, "shop:app", "Name one of them: shop:audit, shop:price", id="several processors"
        ),
        pytest.param(
            lambda path: resolve_stream(path, "order"), "shop:app", "streams: shop:orders", id="--stream"
        ),
        pytest.param(
            lambda path: resolve_processors(path, ["prize"]), "shop:app", "audit, price", id="--processor"
        ),
        pytest.param(
            lambda path: resolve_processors(path, ["audit"]),
            "shop:price",
            "is processor 'price' alone, and --processor names audit",
            id="--processor of another",
        ),
    ],
)
def test_a_path_of_nothing_says_what_there_is(
    shop: Path, resolve: Callable[[str], object], path: str, said: str
) -> None:
    """The message has the path as it should be, or the names that there are."""
    (shop / "factory.py").write_text(FACTORY, "utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        resolve(path)


def test_an_unknown_module_names_the_folder_also_an_empty_one(folder: Path) -> None:
    """Most often one is in the wrong folder."""
    with pytest.raises(ConfigurationError, match=f"no module 'shop' in {folder}") as raised:
        resolve_app("shop:app")
    assert "no Python modules in that folder" in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message", "shown"),
    [
        pytest.param(
            "import json\nimport not_installed_here\n",
            "Importing module 'mine' failed: ModuleNotFoundError: No module named 'not_installed_here'",
            'mine.py", line 2',
            id="a module that is missing",
        ),
        pytest.param("def f():\n    return 1 / 0\n\nf()\n", "failed: ", "line 2, in f", id="an exception"),
        pytest.param("x = 1\ndef f(:\n", "mine' failed: SyntaxError", 'mine.py", line 2', id="its syntax"),
        pytest.param(
            "from streamworker import App\napp = App('a{b}')\n",
            "has '{' as character 2",
            "mine.py, line 2",
            id="a declaration of ours",
        ),
        pytest.param(
            "from streamworker import App\napp = App('late', hold_ms=0)\n",
            "hold_ms is 0",
            "mine.py, line 2: app = App('late', hold_ms=0)",
            id="a setting of ours",
        ),
    ],
)
def test_what_is_wrong_in_the_module_is_shown_with_its_line(
    folder: Path, source: str, message: str, shown: str
) -> None:
    """With the user's frames and without ours, nor those of importlib and dataclasses."""
    (folder / "mine.py").write_text(source, "utf-8")
    with pytest.raises(ConfigurationError) as raised:
        resolve_app("mine:app")
    (note,) = raised.value.__notes__
    assert message in raised.value.message and shown in note
    assert not re.search(r"import(ing\.py|lib)|dataclasses", note)


TIMERS = """
import parts

@parts.app.timer(every="1 hour")
async def sweep() -> None: ...

@parts.keep.timer(every="1 hour")
async def flush() -> None: ...

@parts.app.timer(every="1 hour")
async def both() -> None: ...

@parts.keep.timer(every="1 hour")
async def both() -> None: ...
"""


def test_a_timer_of_an_included_module_is_found_by_its_name(shop: Path) -> None:
    """As processors are, unless two timers have the name."""
    parts = PARTS.replace('include_spark=["lake"]', 'include=["times"]').replace("FORWARD", "None")
    (shop / "parts.py").write_text(parts, "utf-8")
    (shop / "times.py").write_text(TIMERS, "utf-8")
    found = [resolve_timer(f"parts:{name}") for name in ("sweep", "flush")]
    assert [(group.name, timer.name) for _, group, timer in found] == [("timers", "sweep"), ("keep", "flush")]
    with pytest.raises(ConfigurationError, match="has no 'both'"):
        resolve_timer("parts:both")


def test_the_server_of_dev_wins_over_the_one_that_an_app_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `streamworker dev` could not run an app that names its production server."""
    source = "from streamworker import App\napp = App('a', redis_url='rediss://production:6379/0')\n"
    (folder / "fixed.py").write_text(source, "utf-8")
    monkeypatch.setenv(REDIS_URL_OVERRIDE, "redis://localhost:1/0")
    assert resolve_app("fixed:app").settings.redis_url == "redis://localhost:1/0"


PARTS = """
import msgspec
from streamworker import App

app = App("parts", include_spark=["lake"])

class Row(msgspec.Struct):
    n: int

rows = app.stream("rows", Row, partitions=1)

@app.processor(rows, forward=FORWARD)
async def keep(row: Row) -> None: ...
"""
LAKE = """
from parts import app, keep, rows

@app.pipeline(keep, path="lake")
def table(frame):
    return frame
"""
MORE = """
@app.processor(rows)
async def more(row): ...
"""


def test_what_needs_no_pipelines_does_not_import_their_modules(shop: Path) -> None:
    """A worker forwards all the same, since its processor says so."""
    (shop / "parts.py").write_text(PARTS.replace("FORWARD", "True"), "utf-8")
    (shop / "lake.py").write_text(LAKE, "utf-8")
    found = resolve_app("parts:app")
    Worker(found)
    assert "lake" not in sys.modules and not found.registry.pipelines
    before = dict(found.registry.processors)
    assert list(with_pipelines(found).registry.pipelines) == ["table"]
    assert found.registry.processors == before and before["keep"].forward


@pytest.mark.parametrize(("forward", "lake", "name"), [("None", LAKE, "keep"), ("True", LAKE + MORE, "more")])
def test_a_module_for_spark_changes_nothing_that_workers_know(
    forward: str, lake: str, name: str, shop: Path
) -> None:
    """They would run the app without the processor, or without its rows, and nobody would know."""
    (shop / "parts.py").write_text(PARTS.replace("FORWARD", forward), "utf-8")
    (shop / "lake.py").write_text(lake, "utf-8")
    with pytest.raises(ConfigurationError, match=f"Processor '{name}' is declared, or told to forward") as no:
        with_pipelines(resolve_app("parts:app"))
    assert "with forward=True" in str(no.value)


@pytest.mark.parametrize("command", ["spark", "graph", "schema check", "dev", "top"])
def test_commands_about_pipelines_import_their_modules(command: str, shop: Path, invoke: Invoke) -> None:
    """The error shows it: here the package is missing that such a module needs."""
    (shop / "parts.py").write_text(PARTS.replace("FORWARD", "True"), "utf-8")
    (shop / "lake.py").write_text("import pyspark_of_tomorrow\n", "utf-8")
    result = invoke(*command.split(), "parts:app", env={"STREAMWORKER_REDIS_URL": "redis://127.0.0.1:1"})
    said = "Importing module 'lake' failed: ModuleNotFoundError: No module named 'pyspark_of_tomorrow'"
    assert (said in result.stderr) == (command != "top"), result.stderr
