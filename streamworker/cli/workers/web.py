"""``streamworker web``: serves a page of what ``top``, ``graph``, ``history`` and ``timers`` show."""

import os
import re
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

from streamworker.app import App
from streamworker.cli.data.wording import as_written, decoded, letter_decoded, shortened
from streamworker.cli.graph import Look, edges_of, look
from streamworker.cli.options import AppPath, option
from streamworker.cli.output import say
from streamworker.cli.requests import FAILING
from streamworker.cli.support import ask, group_keys, placements
from streamworker.cli.timers import timers_of
from streamworker.cli.workers.serving import listen, parse_address, reached_from, url_of
from streamworker.core.data.archives import Archive
from streamworker.core.data.entries import EntryId
from streamworker.core.snapshot import GroupSnapshot, PartitionView
from streamworker.core.text import storable
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import BackendRefused, ConfigurationError, StreamworkerError
from streamworker.importing import resolve_app, with_pipelines
from streamworker.redisio.data.dead import newest_dead
from streamworker.redisio.data.maps import follow_maps
from streamworker.redisio.data.streams import record_at
from streamworker.redisio.holdings import take_archived
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import is_forbidden
from streamworker.tui.model import RATE_WINDOW
from streamworker.variables import ENV_PREFIX
from streamworker.web.broadcast import Broadcast, Seen

PORT = "8800"
TOKEN_VARIABLE = ENV_PREFIX + "WEB_TOKEN"
TOKEN_CHARACTERS_MIN = 16
RECORDS_SHOWN = 50
"""The newest dead letters of a processor that the page shows, and the halted or retrying records."""
VALUE_MAX = 500
"""Characters of a record that are shown."""
SELDOM = 5
"""Dead letters, failing records and timers are read at each of so many looks."""

_NAMED = re.compile(
    r"(?:^| at )(?:entry|entries) (\d{1,15}-\d{1,15})|in the call of record \d+/(\d{1,15}-\d{1,15})"
)
"""A record in the reason of a partition: the first that has failed, or the one that has killed workers."""


def web(
    app: AppPath,
    port: Annotated[
        str, option("--port PORT", "Port of loopback, or HOST:PORT; another HOST needs a token.")
    ] = PORT,
    token: Annotated[
        str | None,
        option("--token TEXT", "Who does not know it sees nothing; by default STREAMWORKER_WEB_TOKEN."),
    ] = None,
    show_values: Annotated[
        bool, option("--show-values", "Also show what dead letters, halted and retrying records hold.")
    ] = False,
) -> None:
    """Serve a page with a live view of the whole app, which only reads.

    It reads from Redis once a second, however many tabs are open.

    With a token, open the page once with `?token=TEXT` at the end of the address. The page is sent
    without encryption: for other machines put a proxy with TLS before it.

    \b
    Examples:
      streamworker web shop:app
      streamworker web shop:app --port 8900 --show-values
      streamworker web shop:app --port 0.0.0.0:8800 --token "$WEB_TOKEN"
    """
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ConfigurationError(
            "The web view needs starlette and uvicorn, which are not installed.",
            remedy="Run: pip install 'streamworker[web]'",
        )
    found, (host, number) = with_pipelines(resolve_app(app)), parse_address(port, "--port")
    secret = _checked(os.environ.get(TOKEN_VARIABLE, "") if token is None else token, host)
    with listen(host, number, "--port") as listening:
        say(f"Serving {found.name} at {url_of(host, number)}, for {reached_from(host)}", error=True)
        ask(found, _serve, found, listening, secret, show_values)


def _checked(token: str, host: str) -> str:
    """Return the token; refuse a short one, and none where other machines reach the page."""
    from streamworker.web.server import LOOPBACK_NAMES

    if token and len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigurationError(
            f"The token has {len(token)} characters.",
            remedy=f"Use {TOKEN_CHARACTERS_MIN} or more random characters: openssl rand -hex 24",
        )
    if host not in LOOPBACK_NAMES:
        if not token:
            raise ConfigurationError(
                f"Other machines reach {host}, and no token was given.",
                remedy=f"Give --token or {TOKEN_VARIABLE}, or a port of loopback.",
            )
        say(
            "Warning: the token and the page are sent without encryption. Put a proxy with TLS before it.",
            error=True,
        )
    return token


async def _serve(backend: Backend, app: App, listening: socket.socket, token: str, show_values: bool) -> None:
    from streamworker.web.server import serve

    try:
        await backend.time_ms()
    except StreamworkerError as error:
        say(f"Warning: {error}", "The page says so until it can read.", error=True)
    await serve(Broadcast(app.name, _Looks(backend, app, show_values).look), [listening], token)


class _Looks:
    """Looks at an app on one connection."""

    def __init__(self, backend: Backend, app: App, show_values: bool) -> None:
        self._backend = backend
        self._app = app
        self._show_values = show_values
        self._recent: deque[Look] = deque(maxlen=RATE_WINDOW)
        self._facts: dict[str, Any] = {}
        self._hidden: dict[str, str] = {}
        """What could not be read at the last look for it, and why."""
        self._forbidden = set[str]()
        self._looks = 0

    async def look(self) -> Seen:
        """Take all snapshots, and now and then what changes seldom."""
        if self._looks % SELDOM == 0:
            await follow_maps(self._backend, placements(self._app))
        now = await look(self._backend, self._app)
        self._recent.append(now)
        groups = [group for group, _ in now.values()]
        if self._looks % SELDOM == 0:
            self._facts = await self._seldom(groups)
        self._looks += 1
        return Seen(groups, edges_of(self._app, self._recent[0], now), self._facts)

    async def _seldom(self, groups: list[GroupSnapshot]) -> dict[str, Any]:
        """Return what changes seldom; ``hidden`` says of what Redis refused to read why it did."""
        specs = self._app.registry.processors
        self._hidden = {what: why for what, why in self._hidden.items() if what in self._forbidden}
        timers = await self._unless_hidden("timers", partial(timers_of, self._backend, self._app, zone=UTC))
        if timers is None:
            timers = await timers_of(self._backend, self._app, with_calls=False, zone=UTC)
        letters, failing = [], []
        for group in groups:
            spec = specs[group.processor]
            letters += await self._unless_hidden("letters", partial(self._letters, spec, group)) or []
            if self._show_values:
                read = partial(self._failing, spec, group)
                failing += await self._unless_hidden("records", read) or []
        declared = [stream.spec for stream in self._app.registry.streams.values()]
        streams = {spec.name: spec.placement.total for spec in declared}
        archives = [await self._archived(spec, spec.archive) for spec in declared if spec.archive]
        return {
            "streams": streams,
            "archives": archives,
            "timers": timers,
            "letters": letters,
            "failing": failing,
            "hidden": self._hidden,
        }

    async def _unless_hidden(self, what: str, read: Callable[[], Awaitable[list[Any]]]) -> list[Any] | None:
        """Return what is read; None if Redis refuses. What this user may not read is asked for once."""
        if what not in self._forbidden:
            try:
                return await read()
            except BackendRefused as error:
                self._hidden[what] = error.message
                if is_forbidden(error):
                    self._forbidden.add(what)
        return None

    async def _archived(self, spec: StreamSpec, archive: Archive) -> dict[str, Any]:
        """Return how far the archive of a stream is."""
        keys = StreamKeys(spec.app, spec.name)
        found = await take_archived(self._backend, keys, spec.placement.total, archive)
        waits_ms = found.waits_ms(await self._backend.time_ms())
        told = {name: getattr(found, name) for name in ("upto_ms", "only", "waiting")}
        why = "; ".join(found.reasons)
        return {"stream": spec.name, "url": archive.url, **told, "waits_ms": waits_ms, "why": why}

    async def _letters(self, spec: ProcessorSpec, group: GroupSnapshot) -> list[dict[str, Any]]:
        partitions = [view.partition for view in group.all_partitions if view.dead]
        found = await newest_dead(self._backend, group_keys(spec), partitions, RECORDS_SHOWN)
        return [
            {
                "processor": spec.name,
                "letter": each.name,
                "entry": str(each.entry_id),
                **{name: getattr(each, name) for name in ("at_ms", "attempts", "error", "by")},
                "value": _shown(letter_decoded(spec.stream, each)) if self._show_values else None,
            }
            for each in found
        ]

    async def _failing(self, spec: ProcessorSpec, group: GroupSnapshot) -> list[dict[str, Any]]:
        """Return what the records hold at which partitions are halted or retry."""
        views = [view for view in group.partitions if view.state in FAILING]
        named = [(view, record) for view in views if (record := _failing_record(view))]
        found = []
        for view, record in named[:RECORDS_SHOWN]:
            if entry := await record_at(self._backend, group_keys(spec), view.partition, record):
                place = {"processor": spec.name, "partition": view.partition, "entry": str(record)}
                read = as_written if view.deaths else decoded  # It may end this process, too.
                found.append({**place, "value": _shown(read(spec.stream, entry.fields))})
        return found


def _failing_record(view: PartitionView) -> EntryId | None:
    """Return the id of the record that the reason of a partition names; None if it names none.

    A retry names it after the error, and a halt before: an error may name others.
    """
    found = ["".join(each) for each in _NAMED.findall(view.reason)]
    return EntryId.parse(found[0 if view.state == "halted" else -1]) if found else None


def _shown(record: object) -> str:
    return shortened(storable(record, repr), VALUE_MAX)
