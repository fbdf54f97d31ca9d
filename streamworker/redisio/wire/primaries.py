"""Parses what sentinels and servers say about the primary; pure functions without I/O.

Sentinels learn of a failover one after another: its leader at once, the others by the messages that they
exchange every two seconds. Each version of their configuration has a number, the configuration epoch. So
streamworker asks several sentinels, and uses the answer with the highest epoch. The leader of a failover
names the new primary in one of its replies before it raises the epoch; the epoch of such an answer counts
one more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from streamworker.errors import AuthenticationFailed, BackendError, BackendRefused, BackendUnavailable
from streamworker.redisio.keys import number, whole
from streamworker.redisio.wire.failures import translate
from streamworker.urls import Sentinels, host_and_port

SENTINEL_TIMEOUT_S = 0.5
"""Timeout for a sentinel's answer once another sentinel has answered."""
REMEMBERED_S = 10.0
"""For this long after the primary was lost, an answer of sentinels is not replaced by an older one. They
exchange messages every two seconds; after ten, a sentinel that names another primary is not merely late."""
CHANNELS = ("+odown", "+promoted-slave", "+switch-master")
"""Channels on which sentinels publish that enough of them consider a primary down; that a replica was
promoted, which only the leader of the failover knows; and that there is a new primary."""
ASK_ROLE = ("HELLO", 2)
"""Returns the role without an additional right, which ``ROLE`` and ``INFO`` would need."""

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one sentinel."""

    primary: HostPort
    epoch: int
    is_down: bool = False
    """Whether enough sentinels consider the primary down, and no new one is named yet."""


def questions(service: str) -> list[tuple[str, ...]]:
    """Return the commands that a sentinel is sent, in one round trip."""
    return [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service), ("SENTINEL", "MASTER", service)]


def read_answer(replies: Sequence[Any], address: str) -> Answer | BackendError | None:
    """Parse a sentinel's replies to :func:`questions`; None if it does not know the primary.

    >>> state = [b"ip", b"db1", b"port", b"6379", b"config-epoch", b"7"]
    >>> read_answer([[b"db1", b"6379"], state], "s1:26379")
    Answer(primary=('db1', 6379), epoch=7, is_down=False)
    >>> read_answer([[b"db2", b"6379"], state], "s1:26379").epoch
    8
    >>> read_answer([[b"db1", b"6379"], [*state, b"flags", b"master,s_down,o_down"]], "s1:26379").is_down
    True
    """
    where, state = replies
    if isinstance(where, RedisError):
        return of_sentinel(translate(where, address), address)
    host_port = _host_port(where)
    if host_port is None:
        return None
    if not isinstance(state, list):
        return Answer(host_port, 0)  # This user may not use SENTINEL MASTER.
    fields = dict(_pairs(state))
    epoch = number(fields.get(b"config-epoch"))
    settled = _host_port([fields.get(b"ip"), fields.get(b"port")]) == host_port
    is_down = settled and b"o_down" in fields.get(b"flags", b"").split(b",")
    return Answer(host_port, epoch if settled else epoch + 1, is_down)


@dataclass(frozen=True, slots=True)
class SentinelView:
    """The state of one sentinel, for display; mostly 0 if this user may not use SENTINEL MASTER."""

    address: str
    answer: Answer | BackendError | None
    quorum: int = 0
    """Number of sentinels that must consider the primary down before it is replaced."""
    sentinels: int = 0
    """Number of sentinels that watch the primary, this one included."""
    replicas: int = 0
    down_after_ms: int = 0
    """Time without an answer after which this sentinel considers the primary down."""


def read_view(replies: Sequence[Any], address: str) -> SentinelView:
    """Parse a sentinel's replies to :func:`questions`, with all details.

    >>> state = [b"quorum", b"2", b"num-slaves", b"1", b"num-other-sentinels", b"2"]
    >>> view = read_view([[b"db1", b"6379"], state], "s1:26379")
    >>> view.quorum, view.sentinels, view.replicas
    (2, 3, 1)
    """
    answer, state = read_answer(replies, address), replies[1]
    if not isinstance(state, list):
        return SentinelView(address, answer)
    number = {name: whole(value) or 0 for name, value in _pairs(state) if isinstance(value, bytes)}
    names = (b"quorum", b"num-other-sentinels", b"num-slaves", b"down-after-milliseconds")
    quorum, others, replicas, down_after_ms = (number.get(name, 0) for name in names)
    return SentinelView(address, answer, quorum, 1 + others, replicas, down_after_ms)


def _host_port(reply: object) -> HostPort | None:
    match reply:
        case [bytes(host), bytes(port)] if whole(port):
            return host.decode("utf-8", "replace"), int(port)
        case _:
            return None


def of_sentinel(error: BackendError, address: str) -> BackendError:
    """Return the error of a connection, with a message that names the sentinel."""
    if isinstance(error, AuthenticationFailed):
        return AuthenticationFailed(
            f"The sentinel at {address} did not accept the user or password.",
            remedy="Correct sentinel_username and sentinel_password in the URL of Redis.",
        )
    return type(error)(error.message.replace("Redis at", "The sentinel at", 1), remedy=error.remedy)


def newest(found: Iterable[Answer | BackendError | None], sentinels: Sentinels) -> Answer:
    """Return the newest of the sentinels' answers; raise a refusal if all that answered refused.

    >>> from streamworker.urls import read_sentinels
    >>> newest([Answer(("db1", 1), 3), None, Answer(("db2", 2), 4)],
    ...        read_sentinels("redis+sentinel://s1/0?service=orders")).primary
    ('db2', 2)
    """
    said = list(found)
    answers = [one for one in said if isinstance(one, Answer)]
    if answers:
        return max(answers, key=lambda answer: (answer.epoch, answer.is_down))
    away = [one for one in said if isinstance(one, BackendUnavailable)]
    refused = next((one for one in said if isinstance(one, BackendError) and one not in away), None)
    if refused is not None:
        raise refused
    if said and not away:
        raise BackendRefused(
            f"The sentinels {sentinels.addresses} know no primary {sentinels.service!r}.",
            remedy="service= in the URL of Redis is the name that follows `sentinel monitor` in their "
            "configuration.",
        )
    why = f" {away[0].message}" if away else ""
    raise BackendUnavailable(
        f"None of the sentinels {sentinels.addresses} names the primary {sentinels.service!r}.{why}",
        remedy="Are they running, and can this machine reach them?",
    )


def is_primary(reply: object) -> bool:
    """Whether a server that was asked :data:`ASK_ROLE` is a primary.

    >>> is_primary([b"server", b"redis", b"role", b"replica"])
    False
    """
    pairs = reply.items() if isinstance(reply, dict) else _pairs(reply)
    return any(name in (b"role", "role") and role in (b"master", "master") for name, role in pairs)


def _pairs(reply: object) -> Iterable[tuple[Any, Any]]:
    return zip(reply[::2], reply[1::2], strict=False) if isinstance(reply, list) else ()


def not_primary(host_port: HostPort, service: str) -> BackendUnavailable:
    """Return the error for a server that sentinels named as the primary and that is none."""
    return BackendUnavailable(
        f"Redis at {host_and_port(*host_port)} is not the primary of {service!r} any more, or not yet.",
        remedy="The sentinels will name another one in a moment.",
    )


def taken_for_down(host_port: HostPort, service: str) -> BackendUnavailable:
    """Return the error for a primary that is about to be replaced; writes to it may be lost."""
    return BackendUnavailable(
        f"The sentinels take Redis at {host_and_port(*host_port)}, the primary {service!r}, for down, and "
        "name no other one yet.",
        remedy="They do in a moment, if there is a replica, and most of them can reach each other.",
    )


def is_about(message: object, service: str) -> bool:
    """Whether a message that a sentinel published is about a service.

    >>> is_about([b"message", b"+switch-master", b"orders db1 6379 db2 6379"], "orders")
    True
    >>> is_about([b"message", b"+odown", b"master orders db1 6379 #quorum 2/2"], "orders")
    True
    >>> is_about([b"message", b"+promoted-slave", b"slave db2:6379 db2 6379 @ others db1 6379"], "orders")
    False
    """
    match message:
        case [b"message", b"+switch-master", bytes(text)]:
            words, at = text.split(b" "), 0
        case [b"message", b"+odown", bytes(text)]:
            words, at = text.split(b" "), 1
        case [b"message", b"+promoted-slave", bytes(text)]:
            words, at = text.partition(b" @ ")[2].split(b" "), 0
        case _:
            return False
    return words[at : at + 1] == [service.encode()]
