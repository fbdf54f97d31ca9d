"""What `run` and others write to stderr as JSON: each line is one object, whoever caused it."""

import json
import subprocess
import sys

import pytest

TROUBLE = """
import asyncio, gc, logging, threading, warnings
import structlog
from streamworker.cli import logs

logs.configure("info", "json")

class Bad:
    def __del__(self): raise OSError("not closed")
    def __repr__(self): raise ValueError("no text")

def fail(): raise OSError("thread died")

async def leave_a_task():
    asyncio.ensure_future(asyncio.to_thread(fail))
    await asyncio.sleep(0.1)

warnings.warn("an option is old")
logging.getLogger("a.library").warning("%d records", "many")
structlog.get_logger("mine").info("odd", rate=float("nan"), by={(1, 2): 3}, line="a\\nb\\u2028c")
structlog.get_logger("mine").info("bad", value=Bad())
gc.collect()
thread = threading.Thread(target=fail, name="reader")
thread.start()
thread.join()
asyncio.run(leave_a_task())
gc.collect()
raise OSError("the end")
"""


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def lines() -> list[dict[str, str]]:
    done = subprocess.run([sys.executable, "-c", TROUBLE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return [json.loads(line, parse_constant=_no_constant) for line in done.stderr.splitlines()]


def test_each_line_is_json_whatever_goes_wrong(lines: list[dict[str, str]]) -> None:
    """Where Python would print a traceback by itself, and where a value does not fit into JSON."""
    assert all({"event", "level", "logger", "timestamp"} <= line.keys() for line in lines)
    told = " | ".join(line["event"] for line in lines)
    for part in (
        "an option is old",
        "cannot be formatted",
        "odd",
        "bad",
        "in thread reader",
        "in the program",
    ):
        assert part in told, part
    traced = [line["exception"].rpartition("OSError: ")[2] for line in lines if "exception" in line]
    assert sorted(traced) == ["not closed", "the end", "thread died", "thread died"]


def test_what_json_cannot_hold_is_text(lines: list[dict[str, str]]) -> None:
    odd = next(line for line in lines if line["event"] == "odd")
    assert (odd["rate"], odd["by"], odd["line"]) == ("nan", "{(1, 2): 3}", "a\nb\u2028c")
