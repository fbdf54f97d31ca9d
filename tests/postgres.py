"""A PostgreSQL of a test's own."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

INITDB = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), shutil.which("initdb"))


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server on a socket that only this user may open; yields its connection string.

    Skips the test where PostgreSQL is not installed.
    """
    if INITDB is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with TemporaryDirectory(prefix="sw-") as folder:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

        def run(tool: str, *arguments: str) -> None:
            command = [str(Path(INITDB).with_name(tool)), "-D", f"{folder}/data", *arguments]
            subprocess.run(command, user=user, cwd=folder, check=True, capture_output=True, timeout=60)

        settings = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("initdb", "-A", "trust", "-U", "shop", "--no-sync")
        run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", settings, "start")
        try:
            yield f"host={folder} user=shop dbname=postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
