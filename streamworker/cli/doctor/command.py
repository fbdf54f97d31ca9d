"""``streamworker doctor``: checks this machine, the server and the app.

Each check returns ok, warn or fail, with a remedy. Checks do not raise: a check that cannot be made
returns warn or fail.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from streamworker import __version__
from streamworker.app import App
from streamworker.cli.doctor.checks import Check, fail, ok, warn
from streamworker.cli.doctor.groups import app_checks
from streamworker.cli.doctor.server import durability_check, redis_checks, sentinel_checks
from streamworker.cli.options import AsJson, argument
from streamworker.cli.output import print_json, say
from streamworker.cli.support import connected, give_up, run_async
from streamworker.core.text import printable
from streamworker.core.words import counted
from streamworker.errors import StreamworkerError
from streamworker.importing import resolve_app

PYSPARK_MIN = (4, 2)
PACKAGES = ("redis", "hiredis", "anyio", "msgspec", "pyarrow", "structlog", "typer", "rich")


def doctor(
    app: Annotated[str | None, argument("APP", "The App, to check it and its server.")] = None,
    json: AsJson = False,
) -> None:
    """Check the server, the app's groups, Java and what is installed.

    Without an app the command checks the server of STREAMWORKER_REDIS_URL, or of localhost. It
    changes nothing, reads no keys but the app's, and prints a remedy for each problem. It exits
    with 1 if a check fails; warnings do not count.

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
    if found is not None or app is None:
        checks += run_async(in_redis, found, app or "")
    if json:
        print_json(checks)
    else:
        _print(checks)
    if any(check.verdict == "fail" for check in checks):
        give_up()


def _print(checks: list[Check]) -> None:
    colours = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = typer.style(f"{check.verdict:<4}", fg=colours[check.verdict], bold=check.verdict == "fail")
        typer.echo(f"{mark}  {printable(check.name):<{width}}  {printable(check.found)}")
        if check.remedy:
            say(f"      {'':<{width}}  {check.remedy}")
    bad = [sum(check.verdict == verdict for check in checks) for verdict in ("fail", "warn")]
    say(f"{counted(len(checks), 'check')}: {bad[0]} failed, {counted(bad[1], 'warning')}.")


def packages() -> Iterator[Check]:
    """Check Python and the installed packages."""
    yield ok("python", sys.version.split()[0])
    yield ok("streamworker", __version__)
    for name in PACKAGES:
        yield ok(name, version(name))
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        yield warn("pyspark", "not installed", "For pipelines: pip install 'streamworker[spark]'")
        return
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if numbers < PYSPARK_MIN:
        yield fail("pyspark", found, "4.2 or later is needed: pip install -U 'streamworker[spark]'")
    else:
        yield ok("pyspark", found)


def java() -> Check:
    """Check for the Java that Spark needs."""
    from streamworker.spark.driver.java import find_java

    try:
        found = find_java()
    except StreamworkerError as error:
        return warn("java", error.message, f"For pipelines: {error.remedy}")
    return ok("java", f"{found.version} from {found.found}")


def embedded_server() -> Check:
    """Check for the server that ``dev`` and ``demo`` start."""
    from streamworker.dev.server import find_server, server_version

    try:
        return ok("embedded server", str(server_version(find_server())))
    except StreamworkerError as error:
        return warn("embedded server", error.message, f"For dev and demo: {error.remedy}")


def application(path: str) -> tuple[Check, App | None]:
    """Check that the app can be imported."""
    try:
        found = resolve_app(path)
    except StreamworkerError as error:
        return fail("app", error.message, error.remedy), None
    counts = {
        "stream": len(found.registry.streams),
        "processor": len(found.registry.processors),
        "pipeline": len(found.registry.pipelines),
    }
    texts = [counted(count, noun) for noun, count in counts.items()]
    if found.include_spark:
        texts.append(f"{counted(len(found.include_spark), 'module')} of include_spark= not imported")
    return ok("app", f"{found.name}: {', '.join(texts)}"), found


async def in_redis(app: App | None, path: str) -> list[Check]:
    """Check the server, and the app's keys on it."""
    checks: list[Check] = []
    try:
        asking = app or App("doctor")
        checks += await sentinel_checks(asking.settings.redis_url)
        async with connected(asking) as backend:
            checks += await redis_checks(backend, asking.name)
            checks.append(await durability_check(backend, asking.settings))
            if app is not None:
                checks += await app_checks(backend, app, path)
    except StreamworkerError as error:
        name = "connection" if checks else "redis"
        checks.append(fail(name, error.message, error.remedy or "Try again."))
    return checks
