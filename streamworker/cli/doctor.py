"""``streamworker doctor``: is everything there, and is it set up so that nothing gets lost?

Each check answers ok, warn or fail, with what to do. Checks never raise: a check that cannot be
made is an answer too.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import AsJson, connected, print_json, run_async, say
from streamworker.errors import StreamworkerError

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.redisio.client import Backend, ServerInfo

CLOCK_DIFFERENCE_MAX_MS = 1_000
MEMORY_WARN, MEMORY_FAIL = 0.75, 0.9
PYSPARK_MIN = (4, 2)
PACKAGES = ("redis", "hiredis", "anyio", "msgspec", "pyarrow", "structlog", "typer", "rich")

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One answer."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(metavar="APP", help="MODULE:ATTRIBUTE of an App, to check it and its server."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check the server, Java and what is installed.

    Without an app it looks at the server of STREAMWORKER_REDIS_URL, or at localhost. Ends with 1
    if a check fails; warnings do not count.

    \b
    Examples:
      streamworker doctor
      streamworker doctor shop:app --json
    """
    checks = [*packages(), java(), embedded_server()]
    found = None
    if app is not None:
        answer, found = application(app)
        checks.append(answer)
        if found is not None:
            checks += schemas(found)
    if found is not None or app is None:
        checks += run_async(server, found)
    if json:
        print_json(checks)
    else:
        _print(checks)
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(ExitCode.FAILED)


def _print(checks: list[Check]) -> None:
    colours = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = typer.style(f"{check.verdict:<4}", fg=colours[check.verdict], bold=check.verdict == "fail")
        typer.echo(f"{mark}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            typer.echo(f"      {'':<{width}}  {check.remedy}")
    bad = [sum(check.verdict == verdict for check in checks) for verdict in ("fail", "warn")]
    say(f"{len(checks)} checks: {bad[0]} failed, {bad[1]} warnings.")


# -- this machine ------------------------------------------------------------------------------


def packages() -> Iterator[Check]:
    """Check Python and what is installed."""
    yield Check("python", "ok", sys.version.split()[0])
    for name in PACKAGES:
        yield Check(name, "ok", version(name))
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        yield Check("pyspark", "warn", "not installed", "For pipelines: pip install 'streamworker[spark]'")
        return
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if numbers < PYSPARK_MIN:
        yield Check("pyspark", "fail", found, "4.2 or later is needed: pip install -U 'streamworker[spark]'")
    else:
        yield Check("pyspark", "ok", found)


def java() -> Check:
    """Check for the Java that Spark needs."""
    from streamworker.spark.java import locate_java

    try:
        there = locate_java()
    except StreamworkerError as error:
        return Check("java", "warn", error.message, f"For pipelines: {error.remedy}")
    return Check("java", "ok", f"{there.version} from {there.found}")


def embedded_server() -> Check:
    """Check for the server that ``dev`` and ``demo`` start."""
    from streamworker.dev.server import find_server, server_version

    try:
        binary = find_server()
        return Check("embedded server", "ok", f"{server_version(binary)}")
    except StreamworkerError as error:
        return Check("embedded server", "warn", error.message, f"For dev and demo: {error.remedy}")


# -- the app -----------------------------------------------------------------------------------


def application(path: str) -> "tuple[Check, App | None]":
    """Check that the app can be imported."""
    from streamworker.importing import resolve_app

    try:
        found = resolve_app(path)
    except StreamworkerError as error:
        return Check("app", "fail", error.message, error.remedy), None
    counts = (
        f"{len(found.streams)} streams, {len(found.processors)} processors, {len(found.pipelines)} pipelines"
    )
    return Check("app", "ok", f"{found.name}: {counts}"), found


def schemas(app: "App") -> Iterator[Check]:
    """Check that what processors forward has an Arrow form."""
    for spec in app.processors.values():
        if not spec.forward or spec.output is None:
            continue
        try:
            schema = spec.output.arrow_schema()
        except StreamworkerError as error:
            yield Check(f"schema of {spec.name}", "fail", error.message, error.remedy)
        else:
            yield Check(f"schema of {spec.name}", "ok", f"{len(schema)} columns")


# -- the server --------------------------------------------------------------------------------


async def server(app: "App | None") -> list[Check]:
    """Check that the server answers and keeps what it is given."""
    from streamworker.app import App
    from streamworker.importing import with_override

    try:
        app = app or with_override(App("doctor"))
        async with connected(app) as backend:
            started = time.monotonic()
            server_ms = await backend.time_ms()
            took_ms = (time.monotonic() - started) * 1000
            started = time.monotonic()
            await backend.execute("PING")
            ping_ms = (time.monotonic() - started) * 1000
            info = await backend.info()
            return [
                Check("redis", "ok", f"{info.name} at {backend.address}, {ping_ms:.1f} ms a round trip"),
                *(check(info) for check in INFO_CHECKS),
                _clock(server_ms, took_ms),
                await _client_list(backend),
                *await _partitions(backend, app),
            ]
    except StreamworkerError as error:
        return [Check("redis", "fail", error.message, error.remedy)]


def _settings(info: "ServerInfo") -> Check:
    from streamworker.redisio.client import check_server

    try:
        check_server(info)
    except StreamworkerError as error:
        return Check("eviction", "fail", error.message, error.remedy)
    if info.maxmemory_policy is None:
        return Check(
            "eviction", "warn", "The server does not tell its policy.", "Make sure it is noeviction."
        )
    return Check("eviction", "ok", info.maxmemory_policy)


def _memory(info: "ServerInfo") -> Check:
    used = f"{info.used_memory / 2**20:,.0f} MiB used"
    if not info.maxmemory:
        return Check(
            "memory",
            "warn",
            f"{used}, no limit",
            "Set maxmemory: without it the system may kill the server when memory runs out.",
        )
    share = info.used_memory / info.maxmemory
    text = f"{used} of {info.maxmemory / 2**20:,.0f} MiB, {share:.0%}"
    if share < MEMORY_WARN:
        return Check("memory", "ok", text)
    verdict: Verdict = "fail" if share >= MEMORY_FAIL else "warn"
    return Check(
        "memory", verdict, text, "At 100% sends and commits are refused. Raise maxmemory, or see `lag`."
    )


def _persistence(info: "ServerInfo") -> Check:
    if info.aof_enabled:
        return Check("persistence", "ok", "append-only file")
    return Check(
        "persistence",
        "warn",
        "no append-only file",
        "A crash of the server loses what came after its last snapshot. Set appendonly yes.",
    )


def _role(info: "ServerInfo") -> Check:
    if info.role == "slave":
        return Check("role", "fail", "a replica, which refuses writes", "Give the address of the primary.")
    return Check("role", "ok", "primary")


INFO_CHECKS: tuple[Callable[["ServerInfo"], Check], ...] = (_settings, _memory, _persistence, _role)


def _clock(server_ms: int, took_ms: float) -> Check:
    difference = round(server_ms - (time.time() * 1000 - took_ms / 2))
    if abs(difference) > CLOCK_DIFFERENCE_MAX_MS + took_ms:
        return Check(
            "clock",
            "warn",
            f"the server's differs by {difference:,} ms",
            "Nothing depends on it but what you read: times in tables are the server's. Run ntpd on both.",
        )
    return Check("clock", "ok", f"the server's differs by {difference:,} ms")


async def _client_list(backend: "Backend") -> Check:
    from streamworker.redisio.membership import connected as connections

    mine, _ = await backend.identity()
    if await connections(backend, [mine]) is None:
        return Check(
            "client list",
            "warn",
            "forbidden to this user",
            "Without it dead workers are told from slow ones by session_timeout_ms alone: +client|list",
        )
    return Check("client list", "ok", "allowed")


async def _partitions(backend: "Backend", app: "App") -> list[Check]:
    """Compare what is declared with what is in Redis."""
    from streamworker.redisio.keys import StreamKeys

    checks = []
    for stream in app.streams.values():
        found = await backend.execute("HGET", StreamKeys(app.name, stream.name).meta, "partitions")
        declared, name = stream.spec.partitions, f"stream {stream.name}"
        if found is None:
            checks.append(Check(name, "ok", f"{declared} partitions, not made yet"))
        elif int(found) == declared:
            checks.append(Check(name, "ok", f"{declared} partitions"))
        else:
            checks.append(
                Check(
                    name,
                    "fail",
                    f"declared with {declared} partitions, made with {int(found)}",
                    f"Declare partitions={int(found)}, or give the stream another name.",
                )
            )
    return checks
