"""The sink into a table of PostgreSQL, by psycopg.

Each micro-batch is one transaction: the rows, by COPY into a temporary table and from there into the table,
and the query's id and the number of the batch, into ``MARKS`` in the schema of the table. A batch whose
number is there is not written again.

The rows of a batch pass through the driver as Arrow, all at once: ``maxRowsPerTrigger`` is their limit. The
connection string is read from an environment variable where the batch is written, and is in no message.
Imports psycopg where it is used, since with a remote Spark this module runs on the server.
"""

# ruff: noqa: S608  names are quoted, and values are parameters

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.spark.sinks.sink import OncePerBatch

AWAY = "PostgreSQL does not answer"
"""The beginning of a message; the cause may last for minutes."""
OUTAGES = ("08", "40", "53", "57P", "55P03")
"""SQLSTATEs, by their beginnings, that may pass: a lost connection, a rolled back transaction, a lack of
memory, disk or connections, a server that starts or ends, a lock. This list is short and complete, so every
other SQLSTATE is a refusal, in the server's words: new ones, and those of a user's triggers, too."""
COPYING = re.compile(r"^COPY \w+, line (\d+), column ([^:\n]+)", re.MULTILINE)
"""Row and column in the context of an error of COPY; a row without a column may not be the one at fault."""
NUL = "Remove it in the pipeline's function: translate(text, chr(0), '')."
NUL_IN_JSON = "22P05"
STAGE = "streamworker_stage"
PIECE_ROWS = 10_000
"""Rows that are Python objects at a time."""
MARKS = "streamworker_batches"
OURS = (STAGE, MARKS)
"""Tables of the sink: the temporary one hides another of its name."""
LOCK = 7_239_451
"""The advisory lock under which a sink makes tables."""

TYPES = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "string": "text", "binary": "bytea", "date": "date",
    "timestamp": "timestamp with time zone", "timestamp_ntz": "timestamp without time zone",
    "interval day to second": "interval",
}  # fmt: skip
"""Spark's names of types, and PostgreSQL's."""
INTEGERS = ("smallint", "integer", "bigint")
NUMERIC = re.compile(r"numeric\(\d+,(\d+)\)")


def type_of(kind: str) -> str:
    """Return the type of PostgreSQL for one of Spark, both by name; empty for none.

    >>> type_of("decimal(12,2)"), type_of("array<string>"), type_of("map<string,int>"), type_of("void")
    ('numeric(12,2)', 'text[]', 'jsonb', '')
    """
    if kind.startswith("array<") and (inner := type_of(kind[6:-1])) not in {"", "jsonb"} and inner[-1] != "]":
        return f"{inner}[]"
    if kind.startswith(("array<", "struct<", "map<")):
        return "jsonb"
    return kind.replace("decimal", "numeric") if kind.startswith("decimal(") else TYPES.get(kind, "")


def fits(ours: str, theirs: str, category: str) -> bool:
    """Return whether a column of the table, by its type and category, takes our values as they are.

    PostgreSQL refuses a number that is too large and a text that is too long, but it rounds.

    >>> fits("bigint", "integer", "N"), fits("double precision", "integer", "N"), fits("text", "uuid", "U")
    (True, False, True)
    >>> fits("numeric(38,18)", "numeric(12,2)", "N"), fits("numeric(12,2)", "numeric(20,4)", "N")
    (False, True)
    """
    if (scale := NUMERIC.fullmatch(ours)) and (room := NUMERIC.fullmatch(theirs)):
        return int(scale[1]) <= int(room[1])
    return (
        ours == theirs
        or (ours in INTEGERS and theirs in (*INTEGERS, "numeric"))
        or (scale is not None and theirs == "numeric")
        or (ours == "real" and theirs == "double precision")
        or (ours == "text" and (category in {"S", "E", "I"} or theirs in {"uuid", "json", "jsonb"}))
        or (ours == "jsonb" and theirs == "json")
    )


@dataclass(frozen=True, kw_only=True)
class Postgres(OncePerBatch):
    """Inserts or upserts each batch, or replaces the whole result; ``path`` is the table's name."""

    pipeline: str
    """Its name after that of its app; each pipeline of a table counts its own batches."""
    dsn_env: str
    columns: dict[str, str]
    """Names, and types of PostgreSQL."""
    upsert: tuple[str, ...] = ()
    whole: bool = False
    """Whether a batch is the whole result."""
    needs: ClassVar[str] = "psycopg"

    def begin(self) -> None:
        """Check the columns of a table that is there, too, by a batch without rows."""
        super().begin()
        with self.opened() as connection:
            if self._there(connection):
                self._add(connection, [])

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Return a connection, in a transaction that is committed in the end."""
        import psycopg

        if not (dsn := os.environ.get(self.dsn_env)):
            raise ConfigurationError(
                f"Environment variable {self.dsn_env}, the dsn_env of pipeline {self.pipeline}, is not set.",
                remedy="Set it where Spark's driver runs, or the Connect server: postgresql://user@host/name.",
            )
        try:
            connection = psycopg.connect(dsn)
        except psycopg.ProgrammingError:  # Messages about it may hold parts of it.
            raise ConfigurationError(
                f"Environment variable {self.dsn_env} holds no connection string of PostgreSQL.",
                remedy="Set it to one such as postgresql://user@host/name.",
            ) from None
        except psycopg.Error as error:
            raise self._away(error) from None
        try:
            with connection:
                yield connection
        except psycopg.Error as error:
            code = error.sqlstate
            if code.startswith(OUTAGES) if code else isinstance(error, psycopg.OperationalError):
                raise self._away(error) from None
            at = COPYING.search(error.diag.context or "")
            place = f", in row {at[1]} of the batch, column {at[2]}" if at else ""
            said = error.diag.message_primary or str(error).partition("\n")[0]
            remedy = NUL if code == NUL_IN_JSON else "Change the table, or the pipeline's function."
            raise self._refused(f"{said}{place}.", remedy) from None

    def _away(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(
            f"{AWAY}, or ended the transaction: {type(error).__name__} at the server of {self.dsn_env}.",
            remedy=f'Try it: psql "${self.dsn_env}".',
        )

    def _refused(self, said: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(
            f"PostgreSQL refuses what pipeline {self.pipeline} writes to the table {self.path}: {said}",
            remedy=remedy,
        )

    def last(self, connection: Any, query: str) -> int | None:
        """Read the number that was written with the last batch; a table that is gone has none."""
        found = None
        if connection.execute("SELECT to_regclass(%s)", (self._marks,)).fetchone() != (None,):
            ask = f"SELECT query, batch FROM {self._marks} WHERE pipeline = %s AND target = %s"
            found = connection.execute(ask, (self.pipeline, self.path)).fetchone()
        made_by, number = found or (query, -1)
        if made_by != query:
            return None
        return number if self._there(connection) else -1

    def write(self, connection: Any, result: Any, query: str, batch: int) -> None:
        """Write the rows and the number of the batch in one transaction."""
        connection.commit()  # No transaction is open while Spark computes.
        rows = result.selectExpr(*(_expression(*each) for each in self.columns.items())).toArrow()
        if batch == 0:
            self._create(connection)
        # First, since a transaction of a killed driver that has not ended yet holds the same row.
        marked = connection.execute(
            f"INSERT INTO {self._marks} AS mark (pipeline, target, query, batch) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (pipeline, target) DO UPDATE SET batch = excluded.batch, written_at = now() "
            "WHERE mark.query = excluded.query AND mark.batch < excluded.batch RETURNING batch",
            (self.pipeline, self.path, query, batch),
        )
        if marked.fetchone() is None:
            return
        if self.whole:
            connection.execute(f"DELETE FROM {self._table}")
        self._add(connection, rows.to_batches(max_chunksize=PIECE_ROWS))

    @property
    def _table(self) -> str:
        return ".".join(map(quoted, self.path.split(".")))

    @property
    def _marks(self) -> str:
        return ".".join(map(quoted, [*self.path.split(".")[:-1], MARKS]))

    def _there(self, connection: Any) -> dict[str, tuple[str, str]]:
        """Return the columns of the table with their types and categories; none if there is no table."""
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), typcategory FROM pg_attribute "
            "JOIN pg_type ON pg_type.oid = atttypid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self._table,),
        )
        return {name: (kind, category) for name, kind, category in found}

    def _create(self, connection: Any) -> None:
        """Create what is missing; two pipelines may begin at once.

        PostgreSQL may note, before it waits for the lock, that a table is missing: IF NOT EXISTS looks again.
        """
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        if connection.execute("SELECT to_regclass(%s)", (self._marks,)).fetchone() == (None,):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._marks} (pipeline text, target text, query text NOT NULL, "
                "batch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), "
                "PRIMARY KEY (pipeline, target))"
            )
        if not self._there(connection):
            key = [f"PRIMARY KEY ({_listed(self.upsert)})"] if self.upsert else []
            columns = [f"{quoted(name)} {kind}" for name, kind in self.columns.items()]
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join([*columns, *key])})")

    def _add(self, connection: Any, pieces: Iterable[Any]) -> None:
        """Copy rows into a temporary table, and from there into the table: of each key the last row."""
        from psycopg import DataError

        there = self._there(connection)
        for name, kind in self.columns.items():
            theirs, category = there.get(name, ("", ""))
            if not fits(kind, theirs, category):
                raise ConfigurationError(
                    f"Pipeline {self.pipeline} writes column {name!r} as {kind}, and the table {self.path} "
                    f"{f'has it as {theirs}' if theirs else 'has no such column'}.",
                    remedy="Cast it or leave it out in the pipeline's function; or change the table.",
                )
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns.items())
        place = "streamworker_place bigint GENERATED ALWAYS AS IDENTITY"
        connection.execute(f"CREATE TEMPORARY TABLE {STAGE} ({columns}, {place}) ON COMMIT DROP")
        names = _listed(self.columns)
        with connection.cursor().copy(f"COPY {STAGE} ({names}) FROM STDIN") as copy:
            rows = (row for piece in pieces for row in zip(*map(_values, piece.columns), strict=True))
            for number, row in enumerate(rows, 1):
                try:
                    copy.write_row(row)
                except DataError:  # psycopg finds it, and says neither the row nor the column.
                    if (at := next((n for n, value in enumerate(row) if _has_nul(value)), None)) is None:
                        raise
                    name = list(self.columns)[at]
                    said = f"a text has a zero byte (U+0000), in row {number} of the batch, column {name}."
                    raise self._refused(said, NUL) from None
        value = {name: quoted(name) for name in self.columns}
        for name, (theirs, category) in there.items():
            if self.columns.get(name) == "text" and category != "S":  # Such as uuid: only on demand.
                value[name] += f"::{theirs}"
        distinct = order = ""
        if self.upsert:
            key = ", ".join(value[name] for name in self.upsert)
            rest = [f"{quoted(n)} = excluded.{quoted(n)}" for n in self.columns if n not in self.upsert]
            change = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"
            distinct = f"DISTINCT ON ({key})"
            order = (
                f"ORDER BY {key}, streamworker_place DESC ON CONFLICT ({_listed(self.upsert)}) DO {change}"
            )
        values = ", ".join(value.values())
        connection.execute(
            f"INSERT INTO {self._table} ({names}) SELECT {distinct} {values} FROM {STAGE} {order}"
        )


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _expression(name: str, kind: str) -> str:
    """Return a column in Spark's SQL, and what is nested in it as JSON."""
    column = f"`{name.replace('`', '``')}`"
    # Spark leaves fields that are null out of the JSON by default, but no keys of maps: all have all keys.
    return f"to_json({column}, map('ignoreNullFields', 'false')) AS {column}" if kind == "jsonb" else column


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _has_nul(value: object) -> bool:
    return "\0" in value if isinstance(value, str) else isinstance(value, list) and any(map(_has_nul, value))
