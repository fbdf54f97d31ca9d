"""Stacks are looked at from another thread, while what is looked at goes on."""

import subprocess
import sys

ENDS_MEANWHILE = """
import gc
from streamworker.runtime import stacks

class Waits:
    def __await__(self):
        yield

class Runner:
    invoker = None
    async def step(self):
        await Waits()

runner = Runner()
step = runner.step()
step.send(None)
frame = step.cr_frame
kept = [{} for _ in range(300)]  # No dict is left that could be used again, so that one is made.
ends = []

def at_collection(phase, info):
    if not ends:
        ends.append(phase)
        step.close()

gc.callbacks.append(at_collection)
gc.set_threshold(1)
stacks._is_of(frame, runner)
gc.set_threshold(700)
assert gc.isenabled()
print("alive")
"""


def test_a_function_that_ends_while_it_is_looked_at_ends_no_process() -> None:
    """A garbage collection lets it end in the midst of that: it did with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", ENDS_MEANWHILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
