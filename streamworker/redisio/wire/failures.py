"""Translates the failures of calls to Redis to this project's errors.

No exception of redis-py passes this module. Callers must distinguish two cases: the server refused the
call and did nothing (:class:`BackendRefused`), or the outcome is unknown (:class:`BackendUnavailable`), and
the caller repeats the call if that is safe. Messages name the address, never a user or password.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    ResponseError,
)

from streamworker.errors import (
    AuthenticationFailed,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    StreamworkerError,
)

SERVER_TEXT_MAX = 300
_OPENSSL_PLACE = re.compile(r" ?\(_ssl\.c:\d+\)")

CLUSTER_REMEDY = (
    "For a Redis Cluster the URL begins with redis+cluster:// (rediss+cluster:// for TLS), and names one or "
    "more of its nodes: redis+cluster://user:password@host1:port1,host2:port2"
)

_REFUSALS = {
    "OOM": "Redis is out of memory: raise maxmemory, or let groups and readers catch up so that "
    "streams can be trimmed.",
    "READONLY": "It is a replica: connect to the primary.",
    "MISCONF": "Redis cannot write to its disk, and takes no writes until it can.",
    "NOREPLICAS": "Too few replicas are connected for min-replicas-to-write.",
    "NOPERM": "Log in as a user whose role may do this (docs: security), or give this user the right: "
    "`streamworker acl` prints the rights of each role.",
    "WRONGTYPE": "Another program wrote to this key. Look at it with TYPE.",
    **dict.fromkeys(("MOVED", "ASK", "CROSSSLOT"), CLUSTER_REMEDY),
}

_WORDS = {
    "unknown command": "A Sentinel's URL begins with redis+sentinel://. A server must be Redis 7.0 or later, "
    "and must not rename or remove this command, as some managed ones do.",
    # What NOPERM is outside of scripts, by Redis 7.0.
    "The user executing the script can't": _REFUSALS["NOPERM"],
    "DB index is out of range": "Correct the number of the database at the end of the URL.",
}
"""Words in the text of a refusal without a code, and the remedy."""

_PASSING = {
    "LOADING": "Redis is loading its data and will answer in a while.",
    "BUSY": "Redis is busy with a script of somebody's.",
    "UNBLOCKED": "Redis ended a blocked read, as it does when a primary becomes a replica.",
    "MASTERDOWN": "The replica has lost its primary.",
    "CLUSTERDOWN": "The cluster is not available.",
    "TRYAGAIN": "The cluster is moving its slots.",
}

_KNOWN_AUTHORITY = "Its ssl_certfile must be signed by an authority that the server knows."
_TLS_ALERTS = (
    (
        ("is not valid for", "Hostname mismatch"),
        "The certificate is for another host: give the name that it is for in the URL.",
    ),
    (("has expired", "not yet valid"), "Renew the server's certificate, or correct this machine's clock."),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "Name the authority that signed the server's certificate in the URL: ssl_ca_certs=/path/ca.pem.",
    ),
    (
        ("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE", "ALERT_ACCESS_DENIED"),
        f"The server does not accept this client's certificate. {_KNOWN_AUTHORITY}",
    ),
    (("WRONG_VERSION_NUMBER",), "There is no TLS at this port: give the port that has it."),
)
"""Words in OpenSSL's messages, and their remedies; the first match counts."""

_UNKNOWN_OUTCOME = "Is it running, and can this machine reach it?"
_DEFAULT_ADDRESS = "localhost:6379"
_DEFAULT = "If the app names no redis_url, run `streamworker dev` or set STREAMWORKER_REDIS_URL."
_MAX_CLIENTS = "max number of clients reached"
_NO_ROOM = "has no room for another connection"


def no_answer(address: str, timeout_ms: float) -> BackendUnavailable:
    """Return the error for a call that timed out."""
    return BackendUnavailable(
        f"Redis at {address} gave no answer within {timeout_ms:.0f} ms.",
        remedy="It may or may not have done what it was asked. " + _UNKNOWN_OUTCOME,
    )


def has_no_room(error: BackendError) -> bool:
    """Whether a healthy server refused a connection because it is at its client limit."""
    return _NO_ROOM in error.message


def is_wrong_tls(error: StreamworkerError) -> bool:
    """Whether certificates, or a port without TLS, keep a connection from being made: it will not heal."""
    return any(error.remedy == remedy for _, remedy in _TLS_ALERTS)


def is_wrong_type(error: object) -> bool:
    """Whether a server refused a command because a key holds another type of value."""
    return isinstance(error, BackendRefused) and "WRONGTYPE" in error.message


def is_missing_key(error: object) -> bool:
    """Whether a server refused a command because there is no such key: no other refusal says that."""
    return isinstance(error, Exception) and "no such key" in str(error).lower()


def is_forbidden(error: BackendRefused) -> bool:
    """Whether a server refused a command because its user has no right to it."""
    return error.remedy == _REFUSALS["NOPERM"]


def all_answered(replies: Sequence[Any]) -> Sequence[Any]:
    """Return replies; raise the first error among them."""
    for reply in replies:
        if isinstance(reply, BackendError):
            raise reply
    return replies


def tls_remedy(said: str, *, tls: bool, certified: bool) -> str:
    """Return the remedy for a failed attempt to connect, if TLS may be the reason.

    ``certified`` tells whether the URL names a client certificate.

    >>> tls_remedy("Connection reset by peer", tls=False, certified=False)
    'Is it running, and can this machine reach it? If it speaks TLS at this port, use rediss://.'
    """
    for words, remedy in _TLS_ALERTS:
        if any(word in said for word in words):
            return remedy
    if not tls:
        return f"{_UNKNOWN_OUTCOME} If it speaks TLS at this port, use rediss://." if _cut_off(said) else ""
    if _cut_off(said):
        # With TLS 1.3 a server may reject a client certificate by closing the connection.
        which = _KNOWN_AUTHORITY if certified else "Name one in the URL: ssl_certfile and ssl_keyfile."
        return f"{_UNKNOWN_OUTCOME} Does it refuse this client's certificate? {which}"
    if "imeout" in said:
        return f"{_UNKNOWN_OUTCOME} Where there is no TLS at the port, nobody answers."
    return ""


def _cut_off(said: str) -> bool:
    return any(word in said for word in ("reset by peer", "closed by server", "EOF occurred", "Broken pipe"))


def translate(error: BaseException, address: str) -> BackendError:
    """Return the :class:`BackendError` for an exception of redis-py or of the socket."""
    code = getattr(error, "status_code", None) or ""
    text = str(error).strip()[:SERVER_TEXT_MAX]
    if not code and isinstance(error, ResponseError):
        # redis-py sets status_code for some codes only; otherwise the code is the first word of the text.
        code, _, rest = text.partition(" ")
        text = rest if code.isupper() and code != "ERR" else text
    said = f"{code} {text}".strip() if code.isupper() and code not in text else text

    if isinstance(error, AuthenticationError | AuthenticationWrongNumberOfArgsError | AuthorizationError):
        return AuthenticationFailed(
            f"Redis at {address} did not accept the user or password.",
            remedy="Correct them in redis_url or STREAMWORKER_REDIS_URL; characters such as / # @ in a "
            "password are percent-encoded.",
        )
    if code in _PASSING:
        return BackendUnavailable(f"Redis at {address} cannot answer now: {said}.", remedy=_PASSING[code])
    if isinstance(error, ResponseError):
        remedy = _REFUSALS.get(code) or next((_WORDS[words] for words in _WORDS if words in text), "")
        return BackendRefused(f"Redis at {address} refused: {said}.", remedy=remedy)
    if _MAX_CLIENTS in text:
        return BackendUnavailable(
            f"Redis at {address} {_NO_ROOM}.", remedy="Raise its maxclients, or run fewer workers."
        )
    # redis-py's text repeats the address, so only the operating system's reason is used.
    cause = next((each for each in (error, error.__context__) if isinstance(each, OSError)), None)
    # A TimeoutError of asyncio has no text.
    said = (cause and (cause.strerror or str(cause))) or text or type(error).__name__
    if cause is not None and cause.errno and said.startswith("Connect call failed"):
        said = os.strerror(cause.errno)  # asyncio has put the address in its place.
    reason = _OPENSSL_PLACE.sub("", said)
    remedy = f"{_UNKNOWN_OUTCOME} {_DEFAULT}" if address == _DEFAULT_ADDRESS else _UNKNOWN_OUTCOME
    return BackendUnavailable(f"Redis at {address} cannot be reached: {reason}.", remedy=remedy)


def look_at_error(done: "asyncio.Future[Any]") -> None:
    """Mark an error as retrieved, so that asyncio does not log it as never retrieved."""
    if not done.cancelled():
        done.exception()
