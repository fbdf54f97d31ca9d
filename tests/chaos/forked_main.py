"""The process that workers are forked from; started by ``forked.py``, which says why.

It loads what a worker loads, and then makes a copy of itself for each worker or command that is asked for: a
line of JSON on its standard input. What becomes of them it tells on its standard output, a line each.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from streamworker.cli.exit_codes import code_for
from streamworker.errors import StreamworkerError

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


def main() -> None:
    """Fork until the standard input ends, then end all that was forked."""
    libc = ctypes.CDLL(None)
    _load(sys.argv[1])
    assert threading.active_count() == 1, "a thread of ours would not be in the copies"
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    living: set[int] = set()
    waiting = b""
    _tell({"ready": os.getpid()})
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            living -= _reap()
        if 0 in readable:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                living.add(_fork(json.loads(line), libc, (woken, waking)))
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _load(app: str) -> None:
    """Load all that a worker needs, so that a copy begins at once."""
    for name in ("streamworker.cli.logs", "streamworker.runtime.worker", app):
        importlib.import_module(name)
    try:
        importlib.import_module("streamworker.runtime.run.modes.columns")
    except ModuleNotFoundError:  # The release before, which runs beside this one, has it elsewhere.
        importlib.import_module("streamworker.runtime.columns")
    import pyarrow as pa

    pa.array([0])  # Loads pandas where that is installed, which takes a second.


def _load_commands() -> None:
    """Load once what the command line needs, but for the module that looks whether it is on a terminal."""
    if "streamworker.tui.app" not in sys.modules:
        for name in ("streamworker.cli.root", "streamworker.tui.app"):
            importlib.import_module(name)
        del sys.modules["streamworker.cli.root"]


def _reap() -> set[int]:
    gone: set[int] = set()
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return gone
        if not pid:
            return gone
        gone.add(pid)
        _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(order: dict[str, Any], libc: Any, pipe: tuple[int, int]) -> int:
    if "arguments" in order:
        _load_commands()
    pid = os.fork()
    if pid:
        _tell({"forked": pid, "order": order["order"]})
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in pipe:
        os.close(descriptor)
    if "ROWS_ONE_SESSION" not in order["environ"]:
        # As if each was started by itself: Linux shares its cores out by sessions first.
        os.setsid()
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _open_streams(order["log"], order.get("terminal"))
    if "arguments" in order:
        _run_command(order)
    code = 70
    try:
        os.environ.update(order["environ"])
        if network := order["environ"].get("WORKER_NETNS"):
            _enter(network, libc)
        code = _work(order)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except StreamworkerError as error:
        print(error, file=sys.stderr)
        code = code_for(error)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _open_streams(log: str, terminal: str | None) -> None:
    """Open the standard streams: a terminal, or nothing to read and a log to write to."""
    if terminal is not None:
        reads = writes = os.open(terminal, os.O_RDWR)  # The session has none yet, so this one becomes its.
    else:
        reads = os.open(os.devnull, os.O_RDONLY)
        writes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, becomes in ((reads, 0), (writes, 1), (writes, 2)):
        os.dup2(descriptor, becomes)


def _run_command(order: dict[str, Any]) -> NoReturn:
    """Be ``python -m streamworker ARGUMENTS`` in a folder, with an environment of its own, up to its end."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.path[:1] = [order["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["streamworker", *order["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = (
        open(descriptor, mode, encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123
        for descriptor, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    from streamworker.cli import main

    main()
    sys.exit()


def _enter(network: str, libc: Any) -> None:
    handle = os.open(f"/run/netns/{network}", os.O_RDONLY)
    if libc.setns(handle, CLONE_NEWNET):
        raise OSError(f"cannot enter the network namespace {network}")
    os.close(handle)


def _work(order: dict[str, Any]) -> int:
    from streamworker.cli import logs
    from streamworker.runtime.worker import run_worker

    while "ROWS_BURN" in order["environ"]:  # It is to keep a core busy, and nothing else.
        pass
    if shift_s := float(order["environ"].get("ROWS_CLOCK_S", "0")):
        _shift_clock(shift_s)
    its = order["environ"]
    module = importlib.import_module(its.get("WORKER_APP", sys.argv[1]))
    if "FORKED_PROGRAM" in its:  # It is to be the app's own program, with these arguments.
        sys.argv[1:] = its["FORKED_PROGRAM"].split()
        asyncio.run(module.main())
        return 0
    logs.configure(its.get("WORKER_LOG_LEVEL", "info"), its.get("WORKER_LOG_FORMAT", "json"))
    return run_worker(module.make_app(os.environ), name=order["name"])


def _shift_clock(shift_s: float) -> None:
    """Let this process's wall clock be wrong, as Python sees it."""
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + shift_s
    time.time_ns = lambda: true_time_ns() + int(shift_s * 1e9)


if __name__ == "__main__":
    main()
