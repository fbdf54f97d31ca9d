"""Processes of Spark beside the test's own, to be killed: drivers, and a Spark Connect server."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

from streamworker.dev.server import free_port
from streamworker.spark.driver.java import find_java
from streamworker.spark.driver.session import SMALL_MACHINE, socket_conf
from tests.helpers import LoggedProcess

ROOT = Path(__file__).parents[2]
START_S = 300.0
"""A start of Spark takes some ten seconds here, and a multiple of that on a busy machine."""
WAITS = "waits for the previous driver to end"
"""What a driver says while the JVM of the one before is still there."""


class SparkProcess(LoggedProcess):
    """A process with a JVM, which ends together with it."""

    def alive(self) -> bool:
        """Whether it runs; fails the test if it has ended by itself."""
        assert self.running, self.log()[-3000:]
        return True

    def kill(self) -> None:
        """End it and its JVM at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Driver(SparkProcess):
    """A Spark driver in a process group of its own, with its JVM."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        scratch: str,
        master: str = "local[2]",
        command: Sequence[str] | None = None,
        **more: str,
    ) -> None:
        environ = {"STREAMWORKER_REDIS_URL": redis_url, "STREAMWORKER_CONNECTIONS": "", "TMPDIR": scratch}
        super().__init__(
            [sys.executable, "-m", *(command or ("tests.spark.driver", str(folder), master))],
            cwd=ROOT,
            log_path=folder / "driver.log",
            environ={**os.environ, **environ, **more},
        )
        self._said_before = self.said_so_far()

    def said_so_far(self) -> int:
        return self.log().count(WAITS)

    def waits(self) -> bool:
        return self.alive() and self.said_so_far() > self._said_before

    def jvm(self) -> psutil.Process | None:
        children = psutil.Process(self.pid).children(recursive=True)
        return next((process for process in children if process.name() == "java"), None)

    def kill_alone(self) -> psutil.Process:
        """End the driver alone with SIGKILL; returns its JVM, stopped where it is."""
        jvm = self.jvm()
        assert jvm is not None
        jvm.suspend()
        self.signal(signal.SIGKILL)
        self.wait()
        return jvm

    def kill_jvm(self) -> None:
        """End the JVM alone with SIGKILL, as the kernel does when memory is short."""
        jvm = self.jvm()
        assert jvm is not None
        jvm.kill()


class ConnectServer:
    """A Spark Connect server on a port of its own, to be killed and started again."""

    def __init__(self, folder: Path, redis_url: str, scratch: str) -> None:
        self.port = free_port()
        self.scratch = scratch
        self.url = f"sc://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        conf = {
            **SMALL_MACHINE,
            **socket_conf(Path(scratch)),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.driver.host": "127.0.0.1",
        }
        given = [argument for key, value in conf.items() for argument in ("--conf", f"{key}={value}")]
        home = Path(str(pyspark.__file__)).parent
        service = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self._command = [
            str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", service, *given,
            "spark-internal",
        ]  # fmt: skip
        self._environ = {
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "STREAMWORKER_REDIS_URL": redis_url,
            "STREAMWORKER_CONNECTIONS": "",
        }
        self._process: SparkProcess | None = None

    def start(self) -> None:
        self._process = SparkProcess(
            self._command, cwd=self.log.parent, log_path=self.log, environ=self._environ
        )

    def answers(self) -> bool:
        assert self._process is not None and self._process.alive()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
