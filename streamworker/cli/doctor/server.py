"""The checks of ``doctor`` for servers, a Cluster and sentinels: can their configuration lose data?"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamworker.cli.doctor.checks import Check, Verdict, fail, ok, warn
from streamworker.core.words import counted
from streamworker.errors import BackendError, ConfigurationError, StreamworkerError
from streamworker.redisio.admin import health
from streamworker.redisio.admin.health import Rights
from streamworker.redisio.group.membership import connected as connections
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import ServerInfo, check_server
from streamworker.redisio.wire.primaries import Answer, SentinelView
from streamworker.redisio.wire.sentinel import SentinelTarget
from streamworker.runtime.durability import check_durability
from streamworker.settings import Settings
from streamworker.urls import SENTINEL, host_and_port, kind_of

CLOCK_DIFFERENCE_MAX_MS = 1_000
MEMORY_WARN, MEMORY_FAIL = 0.75, 0.9
MISSING_SHOWN = 4


async def redis_checks(backend: Backend, app_name: str) -> list[Check]:
    """Check one server, or all primaries of a Cluster; a result that all primaries share appears once."""
    uncovered = await backend.server.uncovered()
    if uncovered is None:
        return await _server_checks(backend, app_name)
    primaries = await backend.primaries()
    found: dict[str, dict[str, Check]] = {}
    alone = []
    for primary in primaries:
        for check in await _server_checks(primary, app_name):
            found.setdefault(check.name, {})[primary.server.address] = check
        if not (await primary.info()).replicas:
            alone.append(primary.server.address)
    checks = [_cluster(uncovered, len(primaries), alone)]
    for by_address in found.values():
        different = set(by_address.values())
        if len(different) == 1:
            checks += different
        else:
            checks += [
                check if address in check.found else replace(check, found=f"{address}: {check.found}")
                for address, check in by_address.items()
            ]
    return checks


def _cluster(uncovered: int, primaries: int, alone: list[str]) -> Check:
    """Check that all slots are served, and that each primary has a replica."""
    if uncovered:
        return fail(
            "cluster",
            f"no primary serves {uncovered:,} of 16,384 slots",
            "A failover repairs this without your help; CLUSTER INFO and CLUSTER NODES say more.",
        )
    served = f"{primaries} primaries serve all slots"
    if alone:
        return warn(
            "cluster",
            f"{served}; without a replica: {', '.join(alone)}",
            "Add a replica to each: if such a primary fails, its partitions stop until it is back.",
        )
    return ok("cluster", f"{served}, and each has a replica")


async def _server_checks(backend: Backend, app_name: str) -> list[Check]:
    started = time.monotonic()
    server_ms = await backend.time_ms()
    took_ms = (time.monotonic() - started) * 1000
    started = time.monotonic()
    await backend.execute("PING")
    ping_ms = (time.monotonic() - started) * 1000
    info, rights = await backend.info(), await health.rights(backend, app_name)
    return [
        ok("redis", f"{info.name} at {backend.server.address}, {ping_ms:.1f} ms a round trip"),
        _settings(info),
        _memory(info),
        _role(info),
        persistence(info, await health.configuration(backend), loaded=rights is None or rights.loads),
        _clock(server_ms, took_ms),
        await _client_list(backend),
        _scripts(await health.cached_scripts(backend)),
        user_rights(rights),
    ]


def _settings(info: ServerInfo) -> Check:
    try:
        check_server(info)
    except StreamworkerError as error:
        return fail("eviction", error.message, error.remedy)
    if info.maxmemory_policy is None:
        return warn("eviction", "The server does not report its policy.", "Make sure it is noeviction.")
    return ok("eviction", info.maxmemory_policy)


def _memory(info: ServerInfo) -> Check:
    used = f"{info.used_memory / 2**20:,.0f} MiB used"
    if not info.maxmemory:
        return warn(
            "memory",
            f"{used}, no limit",
            "Set maxmemory: without it the operating system may kill the server when memory runs out.",
        )
    share = info.used_memory / info.maxmemory
    text = f"{used} of {info.maxmemory / 2**20:,.0f} MiB, {share:.0%}"
    if share < MEMORY_WARN:
        return ok("memory", text)
    verdict: Verdict = "fail" if share >= MEMORY_FAIL else "warn"
    return Check(
        "memory", verdict, text, "At 100% sends and commits are refused. Raise maxmemory, or see `lag`."
    )


def _role(info: ServerInfo) -> Check:
    if info.role == "slave":
        return fail("role", "a replica, which refuses writes", "Give the address of the primary.")
    if not info.role:
        return warn("role", "The server does not report its role.", "Make sure that it is the primary.")
    return ok("role", f"primary, followed by {counted(info.replicas, 'replica')}")


def persistence(info: ServerInfo, settings: Mapping[str, str] | None, *, loaded: bool = True) -> Check:
    """Say which data the server can lose with its configuration, as far as this user may read that.

    ``loaded`` says whether it loads all that its append-only file has.
    """
    if info.aof_enabled and not info.aof_written:
        return fail(
            "persistence",
            "The append-only file cannot be written, so all writes are refused: its disk is full, or broken.",
            "Make room. Then run BGREWRITEAOF before the server ends: Redis 7.0 and Valkey 9.1 may leave a "
            "file that they do not load again (docs: durability).",
        )
    if info.aof_enabled and not loaded:
        return fail(
            "persistence",
            "The user default may not write, and some servers load their append-only file as that user: at "
            "their next start they lose all sends and commits since it was last rewritten.",
            "ACL SETUSER default ~* +@all, and ACL SAVE; the user may stay off. Redis 7.0 needs that, and "
            "Valkey 9.1.2 does not (docs: durability).",
        )
    lost, remedy = _lost_in_a_crash(info, settings)
    writes = (settings or {}).get("min-replicas-to-write")
    if info.replicas and writes is None:
        lost += f"; a failover to one of {info.replicas} replicas, what that had not received"
    elif info.replicas and writes == "0":
        lost += (
            f"; a failover to one of {info.replicas} replicas, what that had not received "
            "(min-replicas-to-write is 0, so writes go on without a connected replica)"
        )
    elif info.replicas:
        lost += f"; a failover, what {writes} of {info.replicas} replicas had not received yet"
    else:
        lost += "; the loss of its disk, all: it has no replica"
    return Check("persistence", "warn" if remedy else "ok", f"A crash of its machine loses {lost}.", remedy)


def _lost_in_a_crash(info: ServerInfo, settings: Mapping[str, str] | None) -> tuple[str, str]:
    if info.aof_enabled:
        match (settings or {}).get("appendfsync"):
            case "always":
                return "nothing that was confirmed (appendfsync always)", ""
            case "everysec":
                return "about the last second, two while a write is stuck (appendfsync everysec)", ""
            case "no":
                remedy = "Set appendfsync everysec or always: otherwise the operating system decides when."
                return "about the last half minute (appendfsync no)", remedy
        return "what came since the append-only file was last written; this user may not read appendfsync", ""
    remedy = "Set appendonly yes."
    if (save := (settings or {}).get("save")) is None:
        return "what came after its last snapshot, if it makes any: no append-only file", remedy
    points = re.findall(r"(\d+) (\d+)", save)
    if not points:
        return "everything: neither an append-only file nor snapshots", remedy
    every = max(int(seconds) for seconds, _ in points)
    return f"what came after its last snapshot, up to {every:,} s (save): no append-only file", remedy


async def sentinel_checks(url: str) -> list[Check]:
    """Check the sentinels of a URL; return no check for a URL without sentinels."""
    if kind_of(url) != SENTINEL:
        return []
    return [of_sentinels(await SentinelTarget(url, "doctor").views())]


def of_sentinels(views: Sequence[SentinelView]) -> Check:
    """Make one check from the sentinels' answers."""
    answers = [view.answer for view in views if isinstance(view.answer, Answer)]
    text = f"{len(answers)} of {len(views)} name a primary"
    silent = [view for view in views if not isinstance(view.answer, Answer)]
    if not answers:
        return fail("sentinels", f"{text}: {_no_answer(silent[0])}", "Start them, and let them monitor it.")
    primaries = sorted({host_and_port(*answer.primary) for answer in answers})
    text += f": {' and '.join(primaries)}"
    if len(primaries) > 1:
        return warn("sentinels", text, "A failover is under way, or some sentinels are cut off: look again.")
    if any(answer.is_down for answer in answers):
        return fail("sentinels", f"{text}, which they report as down", "Start it, or a replica.")
    best = max(views, key=lambda view: view.sentinels)
    if best.quorum > best.sentinels:
        text += f"; {best.quorum} must find it down, but there are only {best.sentinels} sentinels"
        return fail("sentinels", text, "Start the others, or lower the quorum.")
    if best.sentinels and best.quorum:
        text += (
            f"; if {best.quorum} of {best.sentinels} find it silent for {best.down_after_ms / 1000:g} s, "
            f"they promote one of {best.replicas} replicas that they know"
        )
        if not best.replicas:
            return warn("sentinels", text, "Add a replica: without one no failover is possible.")
    else:
        text += "; this user may not ask for more"
    if silent:
        return warn("sentinels", f"{text}; {_no_answer(silent[0])}", "Start it, or correct redis_url.")
    return ok("sentinels", text)


def _no_answer(view: SentinelView) -> str:
    if view.answer is None:
        return f"{view.address} knows no primary"
    return str(getattr(view.answer, "message", ""))


async def durability_check(backend: Backend, settings: Settings) -> Check:
    """Check whether the server supports the app's durability, and say which data can still be lost."""
    try:
        await check_durability(backend, settings)
    except (ConfigurationError, BackendError) as error:
        return fail("durability", error.message, error.remedy or "Try again.")
    return remains(settings, await backend.info())


def remains(settings: Settings, info: ServerInfo) -> Check:
    """Say which confirmed data can be lost with these settings on this server."""
    wanted, replicas = settings.durability_replicas, info.replicas
    match settings.durability:
        case "aof":
            failover = "; a failover may" if replicas else ""
            text = f"aof: a crash loses nothing that was confirmed{failover}."
        case "replicas" if replicas < wanted:
            return fail(
                "durability",
                f"replicas: nothing is confirmed before {wanted} have it, and {replicas} are connected.",
                "Connect a replica, or lower durability_replicas.",
            )
        case "replicas" if replicas > wanted:
            text = (
                f"replicas: a failover to one of the {wanted} that had it loses nothing that was confirmed; "
                f"a failover to another of the {replicas} may."
            )
        case "replicas":
            text = "replicas: a failover loses nothing that was confirmed."
        case _:
            text = "memory: a send is confirmed when Redis has it; persistence says what can be lost."
    return ok("durability", text)


def _clock(server_ms: int, took_ms: float) -> Check:
    difference = round(server_ms - (time.time() * 1000 - took_ms / 2))
    if abs(difference) > CLOCK_DIFFERENCE_MAX_MS + took_ms:
        return warn(
            "clock",
            f"the server's differs by {difference:,} ms",
            "Only displayed times are affected: they are the server's. Synchronize both clocks by NTP.",
        )
    return ok("clock", f"the server's differs by {difference:,} ms")


async def _client_list(backend: Backend) -> Check:
    mine, _ = await backend.identity()
    if await connections(backend, [mine]) is None:
        return warn(
            "client list",
            "forbidden to this user",
            "Without it only session_timeout_ms tells dead workers from slow ones. Allow +client|list.",
        )
    return ok("client list", "allowed")


def _scripts(cached: tuple[int, int] | None) -> Check:
    if cached is None:
        return ok("scripts", "this user may not look; a missing script is sent when it is needed")
    there, total = cached
    return ok("scripts", f"{there} of {total} in the cache; the rest are sent when they are needed")


def user_rights(rights: Rights | None) -> Check:
    """Say which roles the user of this connection has the rights for."""
    if rights is None:
        return warn(
            "rights",
            "this user may not ask (ACL WHOAMI, ACL DRYRUN)",
            "Compare ACL GETUSER of this user with `streamworker acl APP`.",
        )
    may = [role for role, missing in rights.missing.items() if not missing]
    cannot = rights.missing["worker"]
    if not cannot:
        return ok("rights", f"user {rights.user} has the rights of: {', '.join(may)}")
    more = f" and {len(cannot) - MISSING_SHOWN} more" if len(cannot) > MISSING_SHOWN else ""
    shown = ", ".join(cannot[:MISSING_SHOWN])
    others = f"; it has the rights of: {', '.join(may)}" if may else ""
    return Check(
        "rights",
        "warn" if may else "fail",
        f"user {rights.user} lacks rights that a worker needs: {shown}{more}{others}",
        "`streamworker acl APP --user worker` prints the rules.",
    )
