"""From a path on the command line to the object, and what is said if there is none."""

import sys
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
    """Module, colon, attribute; the current folder is on the path."""
    assert resolve_app("shop:app").name == "shop"


def test_an_attribute_may_have_dots(shop: Path) -> None:
    """As in uvicorn."""
    (shop / "nested.py").write_text("import shop\nclass Site:\n    app = shop.app\n", "utf-8")
    assert resolve_app("nested:Site.app").name == "shop"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("shop", "'shop' is not the path of an app. Write MODULE:ATTRIBUTE"),
        ("shop:", "Here perhaps shop:app."),
        (":app", "'.*' is not the path of an app"),
        ("shop.py", "Here perhaps shop:app."),
        ("shop.py:app", "shop.py is a file, and a module is needed. Write shop:app."),
        ("site/shop.py:app", "Write site.shop:app."),
    ],
)
def test_a_path_of_the_wrong_form_is_put_right(shop: Path, path: str, said: str) -> None:
    """The message has the path as it should be."""
    with pytest.raises(ConfigurationError, match=said):
        resolve_app(path)


def test_an_unknown_module_names_the_folder_and_what_is_there(shop: Path) -> None:
    """Most often one is in the wrong folder."""
    with pytest.raises(ConfigurationError) as raised:
        resolve_app("shoop:app")
    assert f"There is no module 'shoop' in {shop}" in str(raised.value)
    assert "Modules in that folder: shop." in str(raised.value)


def test_an_empty_folder_is_said_to_be_empty(folder: Path) -> None:
    """No modules: change the folder."""
    with pytest.raises(ConfigurationError, match="no Python modules in that folder"):
        resolve_app("shop:app")


def test_a_module_that_imports_a_missing_one_is_not_taken_for_missing(folder: Path) -> None:
    """The fault is inside the module, and is shown with its line."""
    (folder / "broken.py").write_text("import json\nimport not_installed_here\n", "utf-8")
    with pytest.raises(ConfigurationError) as raised:
        resolve_app("broken:app")
    assert raised.value.message == (
        "Importing module 'broken' failed: ModuleNotFoundError: No module named 'not_installed_here'"
    )
    (shown,) = raised.value.__notes__
    assert 'broken.py", line 2' in shown
    assert "importlib" not in shown


@pytest.mark.parametrize(
    ("code", "said"), [("1 / 0", "ZeroDivisionError: division by zero"), ("exit(0)", "SystemExit: 0")]
)
def test_an_exception_in_the_module_is_shown_as_python_shows_it(folder: Path, code: str, said: str) -> None:
    """With the user's frames and without ours; one that ends its process ends no command with 0."""
    (folder / "failing.py").write_text(f"def f():\n    return {code}\n\nf()\n", "utf-8")
    with pytest.raises(ConfigurationError) as raised:
        resolve_app("failing:app")
    (shown,) = raised.value.__notes__
    assert shown.endswith(said)
    assert "line 2, in f" in shown
    assert "importing.py" not in shown


def test_a_syntax_error_is_shown_with_its_line(folder: Path) -> None:
    """It has no frame of its own in a traceback."""
    (folder / "typo.py").write_text("x = 1\ndef f(:\n", "utf-8")
    with pytest.raises(ConfigurationError, match=r"typo' failed: SyntaxError") as raised:
        resolve_app("typo:app")
    assert 'typo.py", line 2' in raised.value.__notes__[0]


def test_a_wrong_declaration_says_where_it_stands(folder: Path) -> None:
    """The message of our own errors is kept, and the line is added."""
    (folder / "braces.py").write_text("from streamworker import App\napp = App('a{b}')\n", "utf-8")
    with pytest.raises(ConfigurationError, match=r"has '\{' as character 2") as raised:
        resolve_app("braces:app")
    assert any("braces.py, line 2" in note for note in raised.value.__notes__)


def test_a_wrong_setting_says_where_it_stands(folder: Path) -> None:
    """The line is the user's, and not one that dataclasses made."""
    (folder / "late.py").write_text("from streamworker import App\napp = App('late', hold_ms=0)\n", "utf-8")
    with pytest.raises(ConfigurationError, match="hold_ms is 0") as raised:
        resolve_app("late:app")
    assert raised.value.__notes__ == [f"At {folder / 'late.py'}, line 2: app = App('late', hold_ms=0)"]


def test_an_unknown_attribute_lists_the_apps(shop: Path) -> None:
    """There is hardly ever more than one."""
    with pytest.raises(ConfigurationError, match=r"has no 'ap'. Apps in that module: shop:app\."):
        resolve_app("shop:ap")


def test_something_else_than_an_app_is_named_by_its_type(shop: Path) -> None:
    """A stream is not an app, and neither is a function that would make one."""
    with pytest.raises(
        ConfigurationError, match=r"shop:orders is a Stream, not an App\. Apps in that module: shop:app"
    ):
        resolve_app("shop:orders")
    (shop / "factory.py").write_text("from shop import app\ndef make():\n    return app\n", "utf-8")
    with pytest.raises(ConfigurationError, match="call it in the module and name the result"):
        resolve_app("factory:make")


def test_a_stream_is_found_by_attribute_by_name_and_through_its_app(shop: Path) -> None:
    """An app with one stream needs no name for it."""
    assert resolve_stream("shop:orders").name == "orders"
    assert resolve_stream("shop:app").name == "orders"
    assert resolve_stream("shop:app", "orders").name == "orders"


def test_an_unknown_stream_lists_those_there_are(shop: Path) -> None:
    """By their paths: of the commands only send has --stream."""
    with pytest.raises(ConfigurationError, match=r"no stream 'order'\. Name one of its streams: shop:orders"):
        resolve_stream("shop:app", "order")
    with pytest.raises(ConfigurationError, match="Streams in them: orders"):
        resolve_stream("shop:order")
    with pytest.raises(ConfigurationError, match=r"is a Processor, not a Stream\. Streams there: orders"):
        resolve_stream("shop:audit")


def test_a_processor_is_found_by_its_function_and_by_its_name(shop: Path) -> None:
    """The name is the group's; the function may be called otherwise."""
    assert resolve_processor("shop:pricing")[1].name == "price"
    assert resolve_processor("shop:price")[1].name == "price"
    assert [spec.name for spec in resolve_processors("shop:app").processors] == ["audit", "price"]
    assert [spec.name for spec in resolve_processors("shop:app", ["price"]).processors] == ["price"]


def test_an_unknown_processor_lists_those_there_are(shop: Path) -> None:
    """By --processor, or behind the colon."""
    with pytest.raises(ConfigurationError, match=r"no processor 'prize'\. Its processors: audit, price"):
        resolve_processors("shop:app", ["prize"])
    with pytest.raises(ConfigurationError, match="Processors in them: audit, price"):
        resolve_processor("shop:prize")


def test_an_app_with_several_processors_is_not_one_processor(shop: Path) -> None:
    """To replay or to reset one must say whose."""
    with pytest.raises(ConfigurationError, match=r"2 processors\. Name one of them: shop:audit, shop:price"):
        resolve_processor("shop:app")


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
