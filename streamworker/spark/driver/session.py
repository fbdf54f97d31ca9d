"""A Spark session for pipelines: a local one with defaults for small machines, or a remote one.

The defaults were measured on two cores: with the C1 compiler and the serial collector, the start takes
3 s less and the memory is a quarter smaller; with the file-system checkpoint manager, a micro-batch
avoids renames that a local disk does not need.
"""

import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.handlers import shielded_children
from streamworker.redisio.keys import PARTITIONS_MAX
from streamworker.spark.driver.java import find_java
from streamworker.spark.driver.scratch import LOG_NAME, make_scratch, sweep
from streamworker.spark.source.connection import DEFAULT_NAME, variable_for
from streamworker.urls import PLAINTEXT_VARIABLE, plaintext_host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

TIMESTAMPS, FOR_ALL_READERS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""How Spark writes times to Parquet. In its default, INT96, they have no zone, and pandas, pyarrow and Polars
read other years for those after 2262."""

EVERYWHERE = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    TIMESTAMPS: FOR_ALL_READERS,
}

SMALL_MACHINE = EVERYWHERE | {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "WARN",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings for a local master. The checkpoint manager is only safe for one driver on a local disk."""

SHUFFLE, SHUFFLE_UNSET = "spark.sql.shuffle.partitions", "200"
"""A setting of Spark and its default."""

SOCKET_NAME_BYTES = len("/.sock") + 37
"""Longest name that Spark gives a socket: it contains a dot and a UUID."""
SOCKET_PATH_BYTES_MAX = 103
"""``sockaddr_un.sun_path`` holds 108 bytes on Linux and 104 on macOS, with a final NUL."""

STOP_TIMEOUT_S = 15.0
"""How long a stop waits for the JVM to end before it kills it."""

REMOTE_RETRIES: dict[str, Any] = {"max_retries": 4, "initial_backoff": 100, "backoff_multiplier": 2.0}
"""How a call to a server that is away is retried: it fails after 1.5 s; by Spark's default, after minutes."""


_writing: Counter[int] = Counter()
"""Runs of pipelines that have set ``TIMESTAMPS`` in a session of the user's, by its id."""


@dataclass
class Session(AbstractContextManager["Session"]):
    """A Spark session that streamworker opened and can stop."""

    spark: "SparkSession"
    log_path: Path | None
    """File with the JVM's output; None for a remote server."""
    remote: bool = False
    _scratch: Path | None = None
    _jvm: "subprocess.Popen[bytes] | None" = None
    _scratch_lock: int | None = None
    _connect: "Callable[[], SparkSession] | None" = None

    @property
    def parallelism(self) -> int:
        """Return how many tasks run at once, but of a remote server no more than a stream has partitions."""
        if not self.remote:
            return int(self.spark.sparkContext.defaultParallelism)
        return self.spark.range(PARTITIONS_MAX).selectExpr("spark_partition_id()").distinct().count()

    @contextmanager
    def timestamps_for_all(self) -> Iterator[None]:
        """Let Spark write timestamps that all readers understand, unless the user has chosen how it does.

        Its file sink asks the session at each batch, so the last run of pipelines on a session sets it back.
        """
        conf, key = self.spark.conf, id(self.spark)
        if not _writing[key] and TIMESTAMPS in conf.getAll:
            yield
            return
        conf.set(TIMESTAMPS, FOR_ALL_READERS)
        _writing[key] += 1
        try:
            yield
        finally:
            _writing[key] -= 1
            if not _writing[key]:
                with suppress(Exception):  # Spark may have ended.
                    conf.unset(TIMESTAMPS)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Return whether the local JVM has ended unexpectedly; wait ``within_s`` for it at most."""
        if self._jvm is None:
            return False
        try:
            self._jvm.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def is_known(self) -> bool:
        """Return whether a remote server answers, and knows this session; one that was restarted does not."""
        try:
            self.spark.conf.get(SHUFFLE)
        except Exception:  # noqa: BLE001, pyspark and grpc raise many kinds
            return False
        return True

    def renew(self, query_name: str) -> None:
        """Make a new session on the remote server if it does not know this one any more.

        If it does, a query of this name may still run there, unseen while the server was out of reach:
        stop it, since Spark refuses a second one of its name.
        """
        try:
            for query in self.spark.streams.active:
                if query.name == query_name:
                    query.stop()
        except Exception:
            if self._connect is None:
                raise
            self.spark.stop()
            self.spark = self._connect()

    def stop(self) -> None:
        """End the session and its local JVM. A second call does nothing more.

        The log of a JVM that ended unexpectedly is kept, since it may show why.
        """
        if self.has_ended():
            _forget_gateway()
        else:
            self.spark.stop()
            jvm, self._jvm = self._jvm, None
            if jvm is not None:
                _end_jvm(jvm)
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
        # Without the lock, a later session removes what the folder still holds.
        file, self._scratch_lock = self._scratch_lock, None
        if file is not None:
            os.close(file)

    def __exit__(self, *_: object) -> None:
        self.stop()


def open_session(
    name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    redis_url: str | None = None,
    log_path: Path | None = None,
    conf: Mapping[str, str] | None = None,
    shuffle_partitions: int | None = None,
    keep_open: Sequence[int] = (),
) -> Session:
    """Start Spark, or connect to a Spark Connect server, and register the source.

    With ``remote``, ``sc://host:port``, this machine needs no Java. The server's Python needs redis and
    pyarrow; each query carries the modules of streamworker.

    ``redis_url`` is the URL of connection ``default`` for Spark's local processes: the JVM gets it in its
    environment, never in a conf. ``conf`` overrides the defaults. ``shuffle_partitions`` are the tasks after
    a shuffle, where nobody has set ``spark.sql.shuffle.partitions``: Spark's 200 take seconds for each
    micro-batch of a small stream. A local JVM inherits the open files ``keep_open``, so that their locks last
    until it ends.
    """
    _need_pyspark()
    if remote is not None:
        if master is not None:
            raise ConfigurationError(
                "Both a Spark master and a remote server are given.", remedy="Use --master or --remote."
            )
        connect = partial(_connect, name, remote, dict(conf or {}), shuffle_partitions)
        return Session(connect(), None, remote=True, _connect=connect)
    session = _start(name, master or "local[*]", redis_url, log_path, dict(conf or {}), keep_open)
    _fit_shuffles(session.spark, conf or {}, shuffle_partitions)
    return session


def _fit_shuffles(spark: "SparkSession", conf: Mapping[str, str], partitions: int | None) -> None:
    if partitions and spark.conf.get(SHUFFLE) == SHUFFLE_UNSET and SHUFFLE not in conf:
        spark.conf.set(SHUFFLE, max(partitions, 4))


def _need_pyspark() -> None:
    try:
        import pyspark
    except ImportError:
        raise ConfigurationError(
            "Pipelines need pyspark, which is not installed.", remedy="Run: pip install 'streamworker[spark]'"
        ) from None
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < (4, 2):
        raise ConfigurationError(
            f"pyspark {pyspark.__version__} is too old: its Python sources cannot limit a batch.",
            remedy="Run: pip install 'pyspark>=4.2'",
        )


# -- local -----------------------------------------------------------------------------------


def _start(
    name: str,
    master: str,
    redis_url: str | None,
    log_path: Path | None,
    conf: dict[str, str],
    keep_open: Sequence[int],
) -> Session:
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001, there is no public way to ask
        raise ConfigurationError(
            "A Spark session is running in this process already.",
            remedy="Pass it on with session=..., or stop it first.",
        )
    local = master.startswith("local")
    if not local and "PYSPARK_PYTHON" not in os.environ and "spark.pyspark.python" not in conf:
        log.warning(
            "PYSPARK_PYTHON is not set: Spark runs python3 on its machines, which needs streamworker[spark]"
        )
    java_home = find_java().home
    sweep()
    scratch, lock = make_scratch()
    settings = SMALL_MACHINE | _local_conf(scratch) | socket_conf(scratch) if local else EVERYWHERE
    settings = {**settings, "spark.master": master, "spark.app.name": name, **conf}
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    log_path = log_path or scratch / LOG_NAME
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log.info("starting Spark on %s; the JVM's output goes to %s", master, log_path)
    # SIGTERM often reaches the whole process group, and the JVM must live until the queries have finished
    # their batches. It ends when this process closes the pipe to it, or ends itself.
    ours = environment(_jvm_environment(java_home, redis_url, local))
    with ours, shielded_children(), log_path.open("ab") as output:
        try:
            launch: Any = java_gateway.launch_gateway  # pyspark gives it no types
            files = {"stdout": output, "stderr": output, "pass_fds": (lock, *keep_open)}
            gateway = launch(spark_conf, popen_kwargs=files)
            SparkContext(gateway=gateway, conf=spark_conf)
            spark = SparkSession.builder.getOrCreate()
        except Exception as error:  # noqa: BLE001, pyspark and py4j raise many kinds
            _forget_gateway()
            os.close(lock)
            raise BackendUnavailable(
                f"Spark did not start on {master}: {str(error).splitlines()[0]}",
                remedy=f"Spark's output is in {log_path}.",
            ) from None
    _quiet_pyspark()
    register(spark)
    return Session(spark, log_path, False, scratch, gateway.proc, lock)


def _quiet_pyspark() -> None:
    """Stop pyspark from printing each exception that it raises as a page of JSON."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _local_conf(scratch: Path) -> dict[str, str]:
    """Return confs that keep Spark's files in one folder, and Spark off the network."""
    return {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def socket_conf(folder: Path) -> dict[str, str]:
    """Return confs that let the JVM and its Python processes use Unix sockets in a folder.

    Over TCP each task of a Python source waited 40 ms: the JVM writes in small parts, and the kernel
    delays a part until the other side has acknowledged the previous one. Spark requires no
    authentication on a Unix socket, so only this user may have access to the folder.
    """
    fits = len(os.fsencode(folder)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX
    if not (fits and hasattr(socket, "AF_UNIX")) or stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def _jvm_environment(java_home: Path, redis_url: str | None, local: bool) -> dict[str, str]:
    """Return environment variables for the JVM, which Spark's Python processes inherit."""
    found = {"JAVA_HOME": str(java_home)}
    if local:
        # Otherwise Spark runs the first python3 on the PATH, which may lack the packages.
        found["PYSPARK_PYTHON"] = found["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # A pipeline's functions may import modules that are only on this process's path.
        stdlib = str(Path(os.__file__).parent)
        folders = [folder or str(Path.cwd()) for folder in sys.path]
        found["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if not folder.startswith(stdlib))
    return found | of_connection(redis_url)


def of_connection(redis_url: str | None) -> dict[str, str]:
    """Return environment variables that make this URL the default connection."""
    if redis_url is None:
        return {}
    # This variable takes precedence: a connections file of this machine must not send Spark to
    # another Redis than the one that the app's workers use.
    found = {variable_for(DEFAULT_NAME): redis_url}
    if plaintext_host(redis_url):  # The app's settings allowed it; otherwise they were refused.
        found[PLAINTEXT_VARIABLE] = "1"
    return found


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the ``with`` block; the JVM and its children inherit them."""
    before = {key: os.environ[key] for key in values if key in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for key in values.keys() - before.keys():
            os.environ.pop(key, None)
        os.environ.update(before)


def _end_jvm(jvm: "subprocess.Popen[bytes]") -> None:
    """End the JVM of a stopped session, so that this process can start another."""
    _forget_gateway()
    if jvm.stdin is not None:
        jvm.stdin.close()  # the JVM ends when its parent's end of the pipe is closed
    try:
        jvm.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _forget_gateway() -> None:
    """Close the gateway to a JVM; otherwise pyspark would use it for the next session too."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001, pyspark has no other way to release it
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    if gateway is not None:
        gateway.shutdown()


# -- remote ----------------------------------------------------------------------------------


def _connect(
    name: str, remote: str, conf: Mapping[str, str], shuffle_partitions: int | None
) -> "SparkSession":
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise ConfigurationError(
            f"{remote!r} is not a Spark Connect server.", remedy="Write it as sc://host:15002."
        )
    settings = {"spark.app.name": name, **EVERYWHERE, **conf}
    spark: Any = None  # a remote one has attributes that the type lacks
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Without settings, which come later, the builder does not call the server yet.
        spark = SparkSession.builder.remote(remote).create()
        spark.client.set_retry_policies([DefaultPolicy(**REMOTE_RETRIES)])
        spark.conf._set_all(  # noqa: SLF001, as the builder does: it passes over those of the whole server
            {key: value for key, value in settings.items() if not key.startswith("spark.ui.")}, silent=True
        )
        register(spark, by_value=True)
        _fit_shuffles(spark, conf, shuffle_partitions)
    except ImportError as error:
        raise ConfigurationError(
            f"Spark Connect needs a package that is not here: {error}",
            remedy="Run: pip install 'pyspark[connect]'",
        ) from None
    except Exception as error:
        if spark is not None:
            spark.stop()
        raise BackendUnavailable(
            f"The Spark server {remote.partition(';')[0]} did not answer: {type(error).__name__}.",
            remedy="Is it running, of Spark 4.2 or later, and is the port 15002 reachable?",
        ) from error
    return cast("SparkSession", spark)


def register(spark: "SparkSession", *, by_value: bool = False) -> None:
    """Register ``format("streamworker")`` with a session.

    Spark finds the format itself where streamworker is installed. Registration also works where another
    package breaks that search, and, with ``by_value``, where streamworker is not installed: then each
    query carries the modules of streamworker, and the server's Python needs only redis and pyarrow.

    Queries that start at the same moment need a registration each. Spark keeps one map of environment
    variables for a registered source, and the thread of each query puts four entries into it when it
    begins to read (``PythonStreamingSourceRunner.init``). The map is a plain ``HashMap``: when two threads
    put the same new key at once, the map keeps one entry and counts two. Spark cannot deserialize a map
    with a wrong count: from then on each task of every query ends with ``OptionalDataException``, and a
    restart of the query does not help. A query keeps the registration that it was started with.
    """
    from streamworker.spark.source.datasource import StreamworkerDataSource

    if by_value:
        from pyspark import cloudpickle as untyped_cloudpickle

        cloudpickle: Any = untyped_cloudpickle
        # Never unregistered: the sink of a pipeline is pickled later, when its query starts.
        for name in TRAVELLING:
            cloudpickle.register_pickle_by_value(import_module(name))
    spark.dataSource.register(StreamworkerDataSource)


TRAVELLING = (
    "streamworker.core",
    "streamworker.errors",
    "streamworker.redisio",
    "streamworker.spark.sinks",
    "streamworker.spark.source",
    "streamworker.urls",
    "streamworker.variables",
)
"""The modules and packages of streamworker that the source and the sink import."""
