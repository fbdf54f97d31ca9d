"""Every key that streamworker uses in Redis; no other module builds keys.

The text in ``{}`` is a hash tag: all keys of one partition are on one node of a Cluster, and so are
all keys of one group, so that each script touches one node. Names may not contain a brace, colon,
blank or pattern character, since those would move the tag, make two names ambiguous, or widen an ACL
pattern.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streamworker.core.time.lifetimes import Lifetimes
from streamworker.errors import ConfigurationError

NAME_CHARACTERS_MAX = 64
DIGITS_MAX = 19
"""Maximum digits of a number: 2**63 has 19."""
PARTITIONS_MAX = 4096
"""Maximum partitions of one stream. Each is a Redis key, a lock and a task; with more, a worker takes
seconds to start."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_name(name: str) -> bool:
    """Whether a name may become part of a key.

    >>> is_name("price"), is_name("a b")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None and len(name) <= NAME_CHARACTERS_MAX


def check_name(kind: str, name: str) -> str:
    """Return a name if it may become part of a key.

    ``kind`` says in the message what has the name, such as ``"app"``. A name has 1 to 64 ASCII letters,
    digits, ``_``, ``.`` and ``-``, the first a letter or digit.

    >>> check_name("app", "shop")
    'shop'
    """
    if is_name(name):
        return name
    good = found.end() if (found := _NAME.match(name)) else 0
    if not name:
        what = "is empty"
    elif good < len(name):
        what = f"{name[:80]!r} has {name[good]!r} as character {good + 1}"
    else:
        what = f"{name[:80]!r} has {len(name)} characters"
    raise ConfigurationError(
        f"The {kind} name {what}.",
        remedy=f"Use 1 to {NAME_CHARACTERS_MAX} letters, digits, '_', '.' and '-'; the first a letter or a "
        "digit.",
    )


def whole(value: bytes | str) -> int | None:
    """Parse a whole number of at most 19 digits from Redis; None for anything else.

    Python's own ``int`` accepts signs, blanks and digits of any script, and raises for 5,000 digits.

    >>> whole(b"12"), whole(b"-1"), whole("²")
    (12, None, None)
    """
    return int(value) if value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX else None


def number(value: bytes | str | None) -> int:
    """Parse a whole number from Redis; 0 for anything else, and for no value."""
    return whole(value or b"") or 0


def map_in(value: bytes) -> tuple[int, ...]:
    """Return how many partitions each generation of a stream has, as its key stores them.

    It refuses numbers with which no stream can be declared: callers send commands for each partition.

    >>> map_in(b"16"), map_in(b"8+12")
    ((16,), (8, 12))
    """
    counts = [whole(part) for part in value.split(b"+")]
    known = tuple(count for count in counts if count is not None and 1 <= count <= PARTITIONS_MAX)
    if len(known) == len(counts):
        return known
    raise ConfigurationError(
        f"A stream has {value[:40]!r} partitions in Redis, which is no number from 1 to {PARTITIONS_MAX}.",
        remedy="Another program wrote to the key that ends with }:stream. Write the right number there.",
    )


def declared_by(app: str) -> str:
    """Return the key of what the workers of an app have declared, on whichever streams.

    >>> declared_by("shop")
    'sw:{shop.}:declared'
    """
    return f"sw:{{{check_name('app', app)}.}}:declared"


def declaration(kind: Literal["processor", "table"], name: str, stream: str) -> str:
    """Return the field of that key for a processor on a stream, or a table beside it.

    >>> declaration("processor", "price", "orders")
    'processor:price:orders'
    """
    return f"{kind}:{name}:{stream}"


class KeyRow(NamedTuple):
    """One kind of key, and the type of its value."""

    key: str
    type: str

    def named(self, app: str, stream: str, group: str, partition: int = 0, producer: str = "") -> str:
        """Return the key of this kind for these names."""
        tag, brace, kind = self.key.partition("}")
        names = {"app": app, "stream": stream, "GROUP": group, "P": str(partition)}
        where = "".join(names.get(part, part) for part in re.split(r"([{.:])", tag))
        return f"{where}{brace}{kind.replace('GROUP', group).replace('ID', producer)}"

    @property
    def kind(self) -> str:
        """The text after the braces, without the name of a group or a producer."""
        return self.key.partition("}:")[2].partition(":")[0]


_ROWS = [KeyRow("sw:{app.stream}:stream", "hash")]
"""All kinds of keys of a stream and of a group; those below add themselves."""


def _in_partition(kind: str, type: str) -> Callable[["StreamKeys", int], str]:
    """Return the method that names a key of one partition."""
    _ROWS.append(KeyRow(f"sw:{{app.stream.P}}:{kind}", type))
    return lambda self, partition: f"{self._partition_tag(partition)}:{kind}"


def _each_in_partition(kind: str, of: str, type: str) -> Callable[["StreamKeys", int, str], str]:
    """Return the method that names a key of one partition for a producer, a table or a record's id."""
    _ROWS.append(KeyRow(f"sw:{{app.stream.P}}:{kind}:{of}", type))
    return lambda self, partition, name: f"{self._partition_tag(partition)}:{kind}:{name}"


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """Keys of one stream, for all of its partitions.

    >>> StreamKeys("shop", "orders").events(3)
    'sw:{shop.orders.3}:events'
    """

    app: str
    stream: str

    def __post_init__(self) -> None:
        check_name("app", self.app)
        check_name("stream", self.stream)

    @property
    def meta(self) -> str:
        """How the stream is declared."""
        return f"sw:{{{self.app}.{self.stream}}}:stream"

    events = _in_partition("events", "stream")
    """Entries of one partition."""
    producer = _each_in_partition("producer", "ID", "string, expires after an hour")
    """Last send of one producer to one partition."""
    seen = _each_in_partition("seen", "ID", "string, expires after id_window")
    """The entry of a record that was sent with an id."""
    later = _in_partition("later", "zset")
    """When the records of one partition are due that are sent later."""
    delayed = _in_partition("delayed", "hash")
    """The records of one partition that are sent later."""
    counts = _in_partition("counts", "hash")
    """Counts of the records in entries that hold many."""
    taken = _in_partition("taken", "hash")
    """How much one partition has taken from each outbox."""
    groups = _in_partition("groups", "hash")
    """The groups that read one partition."""
    table = _each_in_partition("table", "TABLE", "hash")
    """Values of one table in one partition."""
    expiry = _each_in_partition("expiry", "TABLE", "zset")
    """When the values of one table in one partition expire."""

    due = _each_in_partition("due", "TABLE", "zset")
    """When a function is called for the values of one table in one partition."""

    def tables(self, partition: int, tables: Lifetimes) -> list[str]:
        """Both keys of each of some tables, as scripts take them: its values, and the index of their ends.

        Earlier releases know no ``due``, so that they remove nothing whose function they cannot call.
        """
        return [
            key(partition, table)
            for table, its in tables.items()
            for key in (self.table, self.due if its.is_called else self.expiry)
        ]

    def _partition_tag(self, partition: int) -> str:
        return f"sw:{{{self.app}.{self.stream}.{partition}}}"


class OutboxKeys(NamedTuple):
    """The outbox of one slot, whatever writes to it."""

    messages: str
    """Messages that the targets have not confirmed yet."""
    heads: str
    """The last message, and how far the history of each target has come."""
    source: str
    """Its name at the targets."""


def _of_group_in_partition(kind: str, type: str) -> Callable[["GroupKeys", int], str]:
    """Return the method that names a group's key of one partition."""
    _ROWS.append(KeyRow(f"sw:{{app.stream.P}}:{kind}:GROUP", type))
    return lambda self, partition: f"{self._partition_tag(partition)}:{kind}:{self.group}"


class _OfGroup:
    """A key that belongs to no partition, as an attribute."""

    def __init__(self, kind: str, type: str) -> None:
        _ROWS.append(KeyRow(f"sw:{{app.stream:GROUP}}:{kind}", type))
        self._kind = kind

    def __get__(self, keys: "GroupKeys", _: type) -> str:
        return keys.of_group(self._kind)


@dataclass(frozen=True, slots=True)
class GroupKeys(StreamKeys):
    """Keys of one group, which is a processor on a stream, and of that stream.

    >>> keys = GroupKeys("shop", "orders", "price")
    >>> keys.lock(3), keys.members
    ('sw:{shop.orders.3}:lock:price', 'sw:{shop.orders:price}:members')
    """

    group: str

    def __post_init__(self) -> None:
        StreamKeys.__post_init__(self)
        check_name("processor", self.group)

    lock = _of_group_in_partition("lock", "hash")
    """Owner, epoch and checkpoint of one partition."""
    acked = _of_group_in_partition("acked", "stream")
    """Acked log of one partition."""
    dead = _of_group_in_partition("dead", "stream")
    """Dead letters of one partition."""
    state = _of_group_in_partition("state", "hash")
    """Keyed state of one partition."""

    def outbox(self, partition: int) -> "OutboxKeys":
        """What one partition sends to other streams."""
        source = f"{self.stream}/{partition}/{self.group}"
        return OutboxKeys(self.messages(partition), self.heads(partition), source)

    messages = _of_group_in_partition("outbox", "stream")
    """Messages in the outbox of one partition."""
    heads = _of_group_in_partition("heads", "hash")
    """Heads of the outbox of one partition."""

    members = _OfGroup("members", "string")
    """The membership document."""
    damaged = _OfGroup("damaged", "any")
    """A damaged value that was moved away from the key of the membership document or the heartbeats."""
    control = _OfGroup("control", "stream")
    """Control messages."""
    beats = _OfGroup("beats", "hash")
    """Last heartbeats."""
    loads = _OfGroup("loads", "hash")
    """The loads that each member measured of its partitions."""
    readers = _OfGroup("readers", "hash")
    """Positions of the acked logs' readers."""
    holds = _OfGroup("holds", "hash")
    """Positions that batch reads of the acked logs hold for a limited time."""
    risks = _OfGroup("risks", "hash")
    """What runs beside records now, and how many workers have died in it."""
    schemas = _OfGroup("schemas", "hash")
    """Arrow schemas of the acked logs."""

    def of_group(self, name: str) -> str:
        """Return a key of the group that belongs to no partition; some have a name in their protocol only."""
        return f"sw:{{{self.app}.{self.stream}:{self.group}}}:{name}"


TRIMMED = b"#trimmed"
"""Field of ``groups`` in which earlier releases counted; no group can have this name."""
TICK = "\0tick:"
"""Prefix of the fields of a partition's state and lock that say up to which planned time (ms) a timer is
done. The commit of a timer's call is refused if the field of the state has changed since, and a repeat if it
has that value already (``tick.lua``)."""


EVENT_TIME = "\0event-time"
"""The field of a partition's state that says how far event time has come there."""


SHARED = (*_ROWS, KeyRow("sw:{app.}:declared", "hash"))
"""What is kept under every protocol; ``group.operations`` adds the rest. docs/redis-keys.md says what each
key holds."""
