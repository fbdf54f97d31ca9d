"""Records from the lines of a file: JSON lines, or comma-separated values.

What comes in is decoded strictly. A wrong line is named by its number before anything of it is sent: a letter
that was replaced, or a value that was cut, would be stored, and nobody would be told.
"""

import codecs
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamworker.cli.output import say
from streamworker.core.words import counted
from streamworker.errors import RecordError
from streamworker.records.codecs import PAYLOAD_FIELD, Decoder

OnError = StrEnum("OnError", ["STOP", "SKIP"])
"""What to do at a line that is not a record of the stream."""

VALUE_BYTES_MAX = 16 * 1024 * 1024
OPEN_MAX = 1024 * 1024
"""Characters of a record of several lines: with a quote that is never closed, all the rest would be one."""


def checked_text(line: bytes) -> str:
    """Return a line as text; raise RecordError if it is no UTF-8."""
    encoding = (
        "utf-16" if b"\0" in line or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""
    )
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        what, encoding = f"is no UTF-8 (byte {error.start})", encoding or "cp1252"
    else:
        what = "has a NUL byte, as UTF-16 has"
    if encoding:
        remedy = f"Convert the file: iconv -f {encoding} -t utf-8 FILE, with the encoding that it has."
        raise RecordError(f"It {what}.", remedy=remedy)
    return text


@dataclass
class Lines:
    """Decodes lines to records, and prints the number of each bad line."""

    decode: Decoder
    on_error: OnError
    is_csv: bool = False
    """Whether the first line names the fields, and each other line has their values."""
    fields: tuple[str, ...] = ()
    """The fields of a .csv file that are read."""
    bad: int = 0
    number: int = 0
    """The line that was read last."""
    first: int = 0
    """The line at which the record in hand begins; a value in quotes may have line breaks."""
    interrupted: bool = False
    """Whether Ctrl-C has ended the input."""
    _names: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    """The lines of a record with a value whose quote is not closed yet."""

    @property
    def ended(self) -> bool:
        """Whether a bad line has ended the sending; without names no line of a .csv file can be read."""
        return self.bad > 0 and (self.on_error is OnError.STOP or (self.is_csv and not self._names))

    def records(self, lines: Iterable[bytes], *, are_last: bool = False) -> Iterator[Any]:
        """Yield the records of these lines; with ``OnError.STOP``, those before the first bad line."""
        for line in lines:
            self.number += 1
            text = line.removeprefix(codecs.BOM_UTF8) if self.number == 1 else line
            if self._open or text.strip():
                yield from self._record(text)
            if self.ended:
                return
        if are_last and self._open:
            yield from self._record(None)

    def _record(self, line: bytes | None) -> Iterator[Any]:
        """Yield the record that ends with a line, if one does; None for a line is the end of the file."""
        if not self._open:
            self.first = self.number
        try:
            if (fields := self._fields(line)) is not None:
                yield self.decode(fields)
        except RecordError as error:
            self._open = []
            self.bad += 1
            what = (
                f"Lines {self.first} to {self.number}" if self.first < self.number else f"Line {self.first}"
            )
            say(f"{what}: {error.message}{self._hint(line, error)}", error=True)

    def _hint(self, line: bytes | None, error: RecordError) -> str:
        if self.is_csv or line is None:
            return f" {error.remedy}" if error.remedy and type(error) is RecordError else ""
        try:
            checked_text(line)
        except RecordError as wrong:
            return f" {wrong.message} {wrong.remedy}"
        if self.number == 1 and line.lstrip()[:1] not in b"{[" and b"," in line:
            return " Lines are JSON objects; comma-separated values are read from a .csv file."
        return ""

    def _fields(self, line: bytes | None) -> dict[bytes, bytes] | None:
        """Return what the decoder takes; None for a line that names fields, or ends within a value."""
        if not self.is_csv:
            return {PAYLOAD_FIELD: line or b""}
        is_open = bool(self._open)
        if line is not None:
            self._open.append(checked_text(line) + "\n")
        # A line without a quote closes none. With another, the lines are read from the first one again.
        cells = _cells(self._open) if line is not None and (not is_open or b'"' in line) else None
        if cells is None:
            if line is None or sum(map(len, self._open)) > OPEN_MAX:
                self._names = []  # What follows may be within the value: no line can be told.
                raise RecordError(
                    "A quote is not closed.", remedy="Close it, or double a quote within quotes."
                )
            return None
        self._open = []
        if not self._names:
            self._names = self._named(cells)
            return None
        if len(cells) != len(self._names):
            raise RecordError(
                f"It has {counted(len(cells), 'value')}, and the first line names "
                f"{counted(len(self._names), 'field')}.",
                remedy="Put a value with a comma or a line break in quotes.",
            )
        # An empty cell is a field that is not given, so that a default applies.
        pairs = zip(self._names, cells, strict=True)
        return {name.encode(): cell.encode() for name, cell in pairs if cell}

    def _named(self, names: list[str]) -> list[str]:
        """Return the names in the first line of a .csv file, of which some may be no fields."""
        for name in names:
            if name not in self.fields and name.strip() in self.fields:
                what = f"It names {name!r}, and the field is {name.strip()!r}."
                raise RecordError(what, remedy="Remove the spaces around names and values.")
            if names.count(name) > 1 and name in self.fields:
                raise RecordError(f"It names {name!r} twice.", remedy="Give one column another name.")
        if not {*names} & {*self.fields}:
            what = f"It names no field of the stream's records, which have {', '.join(self.fields)}."
            raise RecordError(what, remedy="Names and values are separated by commas.")
        return names


def _cells(lines: list[str]) -> list[str] | None:
    """Return the values in the lines of one record; None if a quote is not closed yet."""
    csv.field_size_limit(VALUE_BYTES_MAX)
    try:
        return next(csv.reader(lines, strict=True))
    except csv.Error as error:
        if "unexpected end" in str(error):
            return None
        bare = "new-line character" in str(error)
        raise RecordError(
            "Its lines end with bare CR." if bare else f"It is no line of a .csv file: {error}.",
            remedy="Convert the file: tr '\\r' '\\n'." if bare else "Double each quote within quotes.",
        ) from None
