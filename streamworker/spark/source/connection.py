"""Named connections: Spark's processes reach Redis, and Spark never sees the URL.

A query says ``connection="prod"``. Each process that talks to Redis (the driver's planner,
every executor) looks the name up where it runs:

1. the environment variable ``STREAMWORKER_CONNECTION_PROD``;
2. a file named by ``STREAMWORKER_CONNECTIONS``: TOML, ``prod = "rediss://..."``, readable by
   its owner only (mode 0600), read again whenever it changes;
3. for ``default`` only, ``STREAMWORKER_REDIS_URL``.

No option, plan, checkpoint, event log or message holds a URL with its password. Messages name the
connection and the host.

A URL may name one server, sentinels (``redis+sentinel://``) or nodes of a Cluster
(``redis+cluster://``). Queries never read from replicas, which may lack rows that a query has read
already. With sentinels, each new connection asks the server whether it is the primary, and a client in
use asks the sentinels again every two seconds: an isolated primary does not know that it was replaced.

Calls block, each with a timeout. Every call is a read or may be repeated, so a call without an answer is
retried with jitter until the query's ``retryTimeout``. Spark itself never retries a planner call.
"""

import os
import random
import re
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ReadOnlyError, RedisClusterException
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from streamworker.core.pauses import Pauses
from streamworker.errors import AuthenticationFailed, BackendError, BackendUnavailable, ConfigurationError
from streamworker.redisio.wire import primaries
from streamworker.redisio.wire.failures import tls_remedy, translate
from streamworker.redisio.wire.info import ms_of
from streamworker.redisio.wire.primaries import REMEMBERED_S, SENTINEL_TIMEOUT_S, Answer, HostPort
from streamworker.urls import (
    CLUSTER,
    SENTINEL,
    Sentinels,
    check_url,
    each_server,
    host_and_port,
    kind_of,
    plaintext_host,
    read_sentinels,
    refuse_plaintext,
    without_login,
)
from streamworker.variables import (
    CONNECTION_VARIABLE,
    CONNECTIONS_VARIABLE,
    CREDENTIALS_VARIABLE,
    URL_VARIABLE,
    plaintext_allowed,
    provider_of,
)

DEFAULT_NAME = "default"

CALL_TIMEOUT_S = 5.0
"""Timeout of a call. A range of 4 MB takes about ten milliseconds."""
CONNECT_TIMEOUT_S = 2.0

HASH_TIMEOUT_S = 60.0
"""Timeout for the next part of a hash. To collect a million values takes a busy server seconds."""

LOOK_EVERY_S = 2.0
"""Interval at which the sentinels are asked whether the primary is still the same."""

CLUSTER_LOOKS = 10
"""How often a query looks at a Cluster in the time that it waits on one server."""

Client = redis.Redis | RedisCluster


@dataclass(slots=True)
class _Opened:
    """The client for a URL, and where the sentinels have led it."""

    client: Client | None = None
    """None before the first call and after an error."""
    primary: HostPort | None = None
    epoch: int = 0
    """Epoch of the answer that named ``primary``. An answer with a lower epoch comes from sentinels that do
    not know of the last failover."""
    asked_s: float = 0.0
    closed_s: float = 0.0

    def close(self) -> None:
        """Close the client: on its connection a late answer would be taken for that of the next call."""
        if self.client is not None:
            self.client.close()
            self.client, self.closed_s = None, time.monotonic()

    def follow(self, sentinels: Sentinels) -> HostPort:
        """Return the primary that the sentinels name, and close the client of another one.

        While there is a client, they are asked every ``LOOK_EVERY_S``.
        """
        now_s, is_open = time.monotonic(), self.client is not None
        if is_open and self.primary is not None and now_s - self.asked_s < LOOK_EVERY_S:
            return self.primary
        self.asked_s = now_s
        is_old = not is_open and now_s - self.closed_s > REMEMBERED_S
        try:
            answer = _find_primary(sentinels, 0 if is_old else self.epoch)
        except BackendError:
            if is_open and self.primary is not None:
                return self.primary  # No majority of sentinels answers.
            raise
        if answer.is_down or answer.primary != self.primary:
            self.close()
        if answer.is_down:
            raise primaries.taken_for_down(answer.primary, sentinels.service)
        self.primary, self.epoch = answer.primary, answer.epoch
        return answer.primary


class _PerProcess(dict[tuple[int, str], _Opened]):
    """A cache that is pickled empty: a remote Spark may get this module by value, but no connection."""

    def __reduce__(self) -> tuple[type["_PerProcess"], tuple[()]]:
        return _PerProcess, ()


_clients = _PerProcess()
"""Clients by process and URL. Spark forks its Python workers and reuses them for later tasks, so each
worker connects once. A forked process must not share its parent's connection."""


def variable_for(name: str) -> str:
    """Return the environment variable that holds the URL of a named connection.

    >>> variable_for("eu-prod")
    'STREAMWORKER_CONNECTION_EU_PROD'
    """
    return CONNECTION_VARIABLE + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def resolve(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the URL behind a name, from this process's environment.

    Refuses a connections file that others may read, and a URL that would send plain text to another
    machine. No message shows a URL.
    """
    environ = os.environ if environ is None else environ
    url = environ.get(variable_for(name)) or _from_file(name, environ)
    if url is None and name == DEFAULT_NAME:
        url = environ.get(URL_VARIABLE)
    if url:
        check_url(url, f"The URL of connection {name!r}", allow_plaintext=plaintext_allowed(environ))
        return url
    where = f'{variable_for(name)}, or {CONNECTIONS_VARIABLE} to a file with a line {name} = "redis://..."'
    if name == DEFAULT_NAME:
        where = f"{URL_VARIABLE}, {where}"
    raise ConfigurationError(
        f"Connection {name!r} is not known to this Spark process.",
        remedy=f"Set {where}, where the driver and the executors start.",
    )


def _from_file(name: str, environ: Mapping[str, str]) -> str | None:
    path = environ.get(CONNECTIONS_VARIABLE)
    if not path:
        return None
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"The connections file {path} cannot be read: {error.strerror}.",
            remedy=f"Correct {CONNECTIONS_VARIABLE}.",
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(
            f"The connections file {path} may be read by others, and holds passwords.",
            remedy=f"Run: chmod 600 {path}",
        )
    try:
        url = tomllib.loads(text).get(name)
    except tomllib.TOMLDecodeError:
        # The decoder's message may quote the line, and the line may hold a password.
        raise ConfigurationError(
            f"The connections file {path} is not TOML.", remedy='Each line is: name = "redis://..."'
        ) from None
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(
            f"Connection {name!r} in {path} is not text.", remedy='Write it as: name = "redis://..."'
        )
    return url


def address(url: str) -> str:
    """Return host and port (or socket path) of a URL, without user and password.

    >>> address("redis+sentinel://:secret@s1,s2:26380/0?service=orders")
    "the primary 'orders' of the sentinels s1:26379, s2:26380"
    """
    if kind_of(url) == CLUSTER:
        return f"the cluster of {', '.join(address(each) for each in each_server(url))}"
    try:
        if kind_of(url) == SENTINEL:
            found = read_sentinels(url)
            return f"the primary {found.service!r} of the sentinels {found.addresses}"
        parts = urlsplit(url)
        return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
    except (ConfigurationError, ValueError):
        return "an address that cannot be read"


class Connection:
    """A named connection to Redis, which connects on its first call; see the module's docstring."""

    def __init__(self, name: str, retry_timeout_ms: int) -> None:
        self.name = name
        self.retry_timeout_ms = retry_timeout_ms
        """How long a call is retried while Redis does not answer."""

    def wait_for(self, ends: Mapping[str, str], at_most_ms: int) -> bool:
        """Wait until one of these streams has entries after an id, or for a time; return whether it may."""
        if kind_of(resolve(self.name)) == CLUSTER:  # No command waits for keys of several nodes.
            time.sleep(at_most_ms / 1000 / CLUSTER_LOOKS)
            return True
        return bool(self.call(lambda redis: redis.xread(ends, count=1, block=at_most_ms)))

    def pipeline(self, commands: Sequence[tuple[Any, ...]], *, retry: bool = True) -> list[Any]:
        """Send commands together, as :meth:`call` does; return their answers."""

        def send(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return list(pipe.execute())

        return list(self.call(send, retry=retry))

    def read_hash(self, key: str) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
        """Return the server's time in ms, and the fields and values of a hash at that moment, as they arrive.

        The answer to HGETALL may be larger than this process' memory. So it is read from the socket as it is
        needed, and the server holds the rest. If it breaks off, that is a BackendUnavailable: the values that
        were returned belong to a moment that is gone.
        """
        connection, at_ms, reply, count = self.call(lambda client: _ask_for_hash(client, key))

        def pairs() -> Iterator[tuple[bytes, bytes]]:
            try:
                for _ in range(count):
                    yield _text(reply), _text(reply)
            except (OSError, ValueError) as error:
                raise BackendUnavailable(
                    f"Redis (connection {self.name!r}) broke off while it sent {key}: {error}",
                    remedy="Run the query again. If that recurs, look at the server's log: it closes a "
                    "connection whose answer exceeds client-output-buffer-limit.",
                ) from None
            finally:
                reply.close()
                connection.disconnect()

        return at_ms, pairs()

    def call(self, function: Callable[[Any], Any], *, retry: bool = True) -> Any:
        """Run a function on a client, and retry it while Redis does not answer.

        It must be safe to run the function twice. A refusal by Redis is not retried.
        """
        give_up_at = time.monotonic() + self.retry_timeout_ms / 1000
        pauses = Pauses(random.random)
        while True:
            url = resolve(self.name)
            opened = _clients.setdefault((os.getpid(), url), _Opened())
            try:
                return function(_open(self.name, url, opened))
            except (redis.RedisError, RedisClusterException, BackendError) as error:
                opened.close()
                if isinstance(error, _NoPrimary):  # The sentinels of this epoch were wrong or early.
                    opened.epoch = 0
                refusal = error if isinstance(error, BackendError) else self._explain(url, error, tried=retry)
                if not isinstance(refusal, BackendUnavailable):
                    raise refusal from None
                left = give_up_at - time.monotonic()
                if not retry or left <= 0:
                    raise refusal from None
            time.sleep(min(left, pauses.next_ms() / 1000))

    def _explain(self, url: str, error: Exception, *, tried: bool) -> BackendError:
        where = f"{address(url)} (connection {self.name!r})"
        if isinstance(error, RedisClusterException):
            # The reason why no node told the map of the slots.
            error = error.__cause__ if isinstance(error.__cause__, redis.RedisError) else error
        found = translate(error, where)
        if isinstance(found, AuthenticationFailed):
            found.remedy = "Correct the URL behind the connection's name."
        demoted = isinstance(error, ReadOnlyError) and kind_of(url)
        if isinstance(found, BackendUnavailable) or demoted:
            how_long = f" for {self.retry_timeout_ms / 1000:g} s" if tried else ""
            return BackendUnavailable(
                f"Redis at {where} gave no answer{how_long}: {error}",
                remedy=tls_remedy(str(error), tls=url.startswith("rediss"), certified="ssl_certfile=" in url)
                or "Is it running, and can this machine reach it? The query can be started again from "
                "its checkpoint; option retryTimeout sets how long it waits.",
            )
        return found


def _ask_for_hash(client: Any, key: str) -> tuple[Any, int, BinaryIO, int]:
    """Send HGETALL on a connection of its own; return that, the time, its socket as a file, and the pairs."""
    client.hlen(key)  # redis-py follows a slot that has moved, and names a refusal.
    if isinstance(client, RedisCluster):
        node: Any = client
        client = node.get_redis_connection(node.get_node_from_key(key))
    connection: Any = client.connection_pool.make_connection()
    try:
        connection.send_command("TIME")
        at_ms = ms_of(connection.read_response())
        connection.send_command("HGETALL", key)
        socket = connection._sock  # noqa: SLF001, redis-py returns an answer only as a whole
        socket.settimeout(HASH_TIMEOUT_S)
        reply = socket.makefile("rb")
        if (head := reply.readline())[:1] != b"*":
            raise redis.ConnectionError(f"HGETALL was answered with {head!r}")
    except (OSError, redis.RedisError) as error:
        connection.disconnect()
        raise redis.ConnectionError(str(error)) from None
    return connection, at_ms, reply, int(head[1:]) // 2


def _text(reply: BinaryIO) -> bytes:
    """Read one text of an answer: its length on a line, and its bytes with an end of line."""
    size = int(reply.readline()[1:]) + 2
    data = reply.read(size)
    if len(data) < size:
        raise ValueError("the answer has ended")
    return data[:-2]


def _open(name: str, url: str, opened: _Opened) -> Client:
    """Return the client for a URL; make one if there is none, or if the primary is another one by now."""
    try:
        kind = kind_of(url)
        sentinels = read_sentinels(url) if kind == SENTINEL else None
        primary = opened.follow(sentinels) if sentinels else None
        client = opened.client
        if client is None:
            if sentinels and primary:
                client = _of_primary(sentinels, primary)
            elif kind == CLUSTER:
                client = _of_cluster(url)
            else:
                client = redis.Redis.from_url(**_login(url), **_POLICY)
            opened.client = client
        return client
    except ValueError:
        # urllib's message quotes the part that it cannot parse, which may be the password.
        raise ConfigurationError(
            f"The URL of connection {name!r} cannot be read.",
            remedy="It is redis://user:password@host:port/db, rediss:// or unix:///path; "
            "characters such as / # @ in the password are percent-encoded.",
        ) from None


_POLICY: dict[str, Any] = {
    "socket_timeout": CALL_TIMEOUT_S,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "retry": Retry(NoBackoff(), 0),
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    "protocol": 2,
    "client_name": "streamworker-spark",
}
"""redis-py tries once, with timeouts: :meth:`Connection.call` decides about retries."""


def _login(url: str) -> dict[str, Any]:
    """Return the URL and, if this process' environment names one, the credential provider, for a client."""
    provider = provider_of(os.environ.get(CREDENTIALS_VARIABLE))
    return {"url": url} if provider is None else {"url": without_login(url), "credential_provider": provider}


def _of_cluster(url: str) -> RedisCluster:
    first, *others = each_server(url)
    nodes: list[Any] = [
        ClusterNode(each.hostname or "localhost", each.port or 6379)  # type: ignore[no-untyped-call]
        for each in map(urlsplit, others)
    ]
    # ``resolve`` has already checked the machines that the URL itself names.
    guarded = first.startswith("redis://") and not plaintext_host(url) and not plaintext_allowed(os.environ)

    def looked_at(host_port: tuple[str, int]) -> tuple[str, int]:
        if guarded:
            refuse_plaintext(f"redis://{host_and_port(*host_port)}", "A node of the Cluster")
        return host_port

    return RedisCluster(startup_nodes=nodes, address_remap=looked_at, **_login(first), **_POLICY)


def _of_primary(sentinels: Sentinels, primary: HostPort) -> redis.Redis:
    url = sentinels.server_url(*primary)
    if not plaintext_allowed(os.environ):
        refuse_plaintext(url, f"What the sentinels name as {sentinels.service!r}")
    return redis.Redis.from_url(redis_connect_func=_only_to_a_primary, **_login(url), **_POLICY)


class _NoPrimary(redis.ConnectionError):
    """The server that the sentinels named as the primary answers that it is a replica."""


def _only_to_a_primary(connection: Any) -> None:
    """Connect as redis-py does, and refuse a replica."""
    connection.on_connect()
    connection.send_command(*primaries.ASK_ROLE)
    if not primaries.is_primary(connection.read_response()):
        raise _NoPrimary("it is a replica, and the sentinels named it as the primary")


def _find_primary(sentinels: Sentinels, epoch: int) -> Answer:
    """Ask the sentinels, one after another, until more than half of them have named a primary.

    If the highest epoch among them is below ``epoch``, the other sentinels are asked too. An answer with
    a lower epoch counts only if every sentinel has answered: the sentinels may have been set up anew.
    """
    answers: list[Answer | BackendError | None] = []
    urls = sentinels.urls
    for url in random.sample(urls, len(urls)):
        answers.append(_ask_sentinel(url, sentinels.service))
        named = [one for one in answers if isinstance(one, Answer)]
        if 2 * len(named) > len(urls) and max(answer.epoch for answer in named) >= epoch:
            break
    found = primaries.newest(answers, sentinels)
    if found.epoch < epoch and not all(isinstance(one, Answer) for one in answers):
        raise BackendUnavailable(
            f"The sentinels {sentinels.addresses} that answer have not heard of the last failover yet.",
            remedy="They learn of it within seconds, if they can reach each other.",
        )
    return found


def _ask_sentinel(url: str, service: str) -> Answer | BackendError | None:
    timeouts = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    with redis.Redis.from_url(url, **{**_POLICY, **timeouts}) as client:
        pipe = client.pipeline(transaction=False)
        for words in primaries.questions(service):
            pipe.execute_command(*words)
        try:
            return primaries.read_answer(pipe.execute(raise_on_error=False), address(url))
        except redis.RedisError as error:
            return primaries.of_sentinel(translate(error, address(url)), address(url))
