"""The command line: one module for each command.

``streamworker --help`` loads neither pyarrow nor pyspark: commands import such packages when they run.
"""

import os
import signal
import sys
from pathlib import Path

from streamworker.handlers import handle

SERVICES = {"run", "spark", "dev", "web", "exporter"}
"""Commands that do their work although nobody reads what they print."""


def main() -> None:
    """Run the command line; the process exits with one of ``cli.exit_codes``."""
    if sys.stdout is None and SERVICES.isdisjoint(sys.argv[1:2]):
        # What others print is their work, and a script would take 0 for "nothing is wrong".
        print("Error: Standard output is closed, and nobody would see what this prints.", file=sys.stderr)
        print("Leave it open, or write > /dev/null.", file=sys.stderr)
        sys.exit(1)
    _open_closed_streams()
    if sys.argv[1:2] in (["run"], ["spark"]):
        # Until it knows its app it owns nothing that it had to finish. With these options it was to do
        # something, and has not done it.
        code = int(any(each.startswith(("--once", "--forget")) for each in sys.argv))
        handle([signal.SIGTERM], lambda *_: os._exit(code))
    from streamworker.cli.root import app

    app(prog_name="streamworker")


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the parent has closed, as some supervisors do.

    Otherwise a connection may get the descriptor 1 or 2, and what a library prints there would go to Redis.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
