"""Nothing that comes from outside runs as code, and no name reaches a key that is not its own."""

import ast
import re
from pathlib import Path

import pytest

import streamworker
from streamworker.errors import ConfigurationError
from streamworker.redisio.admin.rights import acl_rules
from streamworker.redisio.keys import GroupKeys, StreamKeys

ROOT = Path(streamworker.__file__).parent
RUNS_WHAT_IT_READS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "joblib", "jsonpickle"}
RUNNING_CALLS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    ("spark/driver/session.py", "cloudpickle"): "says which modules travel with a query; reads nothing",
}
"""Who may have such a thing in it, and why it is none."""


def found_in(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & RUNNING_CALLS
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            found.add("shell")
        found |= set(names) & RUNS_WHAT_IT_READS
    return found


def test_no_module_runs_what_it_reads() -> None:
    """No pickle, no YAML, no eval, no shell: a record, a message or a document is data."""
    modules = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    assert len(modules) > 100
    words = re.compile("|".join([*RUNS_WHAT_IT_READS, *RUNNING_CALLS, "shell"]))
    read = {module: found_in(ast.parse(text)) for module, text in modules.items() if words.search(text)}
    assert {(module, what) for module, found in read.items() for what in found} == set(ALLOWED)


def test_the_look_for_such_modules_finds_them() -> None:
    for source in ("import pickle", "from yaml import load", "eval('1')", "from pyspark import cloudpickle"):
        assert found_in(ast.parse(source)), source
    assert found_in(ast.parse("subprocess.run('ls', shell=True)")) == {"shell"}


@pytest.mark.parametrize(
    "name",
    [
        "", ".shop", "-shop", "a" * 65, "shop}", "{shop", "a:b", "a b", "a*", "a?", "a[b]", "a\\b", "a/b",
        "a\n", "a\r\nFLUSHALL",
        "a\x00b", "\u0455hop", "a\u200bb", "a~b", "a|b", "a,b", "a'b", 'a"b', "a%b", "(a",
    ],
)  # fmt: skip
def test_a_name_that_could_reach_another_key_is_refused(name: str) -> None:
    """Wherever a name becomes part of a key, or of a rule of an ACL."""
    for make in (
        lambda: StreamKeys(name, "orders"),
        lambda: StreamKeys("shop", name),
        lambda: GroupKeys(name, "orders", "price"),
        lambda: GroupKeys("shop", name, "price"),
        lambda: GroupKeys("shop", "orders", name),
        lambda: acl_rules(name, "worker"),
    ):
        with pytest.raises(ConfigurationError):
            make()
