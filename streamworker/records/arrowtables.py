"""Conversion of a user's table to a record type's schema, and of rows to records.

A table from a file or another library often has types that differ slightly from the record type's:
``large_string`` for ``string``, ``int32`` for ``int64``, nanoseconds for microseconds, columns in another
order. This module casts a column if every value stays the same. It refuses a column if a value or its
meaning would change: a float for an int, a time without a zone for one with it, a null where the field
allows none.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc  # Takes 9 MB and 0.1 s, so this module is imported by who has tables.

from streamworker.errors import DecodeError, RecordError
from streamworker.records.codecs import one_line
from streamworker.records.columns import (
    Column,
    FieldColumn,
    Leaf,
    ListColumn,
    MapColumn,
    Misfit,
    StructColumn,
    inside,
    short,
)

TOGETHER = 500
"""Rows that are built together: from 700 objects on Python searches for what is garbage."""

_TYPES = pa.types
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    # The type that a column must have, and the types that a table may have instead.
    (_TYPES.is_string, (_TYPES.is_string, _TYPES.is_large_string, _TYPES.is_string_view)),
    (
        _TYPES.is_binary,
        (_TYPES.is_binary, _TYPES.is_large_binary, _TYPES.is_binary_view, _TYPES.is_fixed_size_binary),
    ),
    (_TYPES.is_integer, (_TYPES.is_integer,)),
    (_TYPES.is_floating, (_TYPES.is_floating, _TYPES.is_integer)),
    (_TYPES.is_decimal, (_TYPES.is_decimal, _TYPES.is_integer)),
    (_TYPES.is_date, (_TYPES.is_date,)),
    (_TYPES.is_duration, (_TYPES.is_duration,)),
)


def fit(columns: StructColumn, batch: pa.RecordBatch, *, extra: Literal["refuse", "drop"]) -> pa.RecordBatch:
    """Check rows, and convert them to the columns of a record type, as :meth:`.RecordType.fit_arrow` says."""
    rows = batch.num_rows
    try:
        if not batch.schema.equals(columns.schema):
            batch = _arranged(columns, batch, extra)
        _check_columns(columns, batch.columns)
    except Misfit as misfit:
        raise RecordError(
            f"Row {misfit.index} (counted from 0, of {rows}): column {misfit.path.lstrip('.')!r} "
            f"of {columns.name} {misfit.what}.",
            remedy="Change the value, or the type of the field.",
        ) from None
    return batch


def _arranged(columns: StructColumn, batch: pa.RecordBatch, extra: str) -> pa.RecordBatch:
    names = batch.schema.names
    known = {member.name for member in columns.members}
    strangers = [name for name in names if name not in known]
    if strangers and extra == "refuse":
        raise RecordError(
            f"The table has a column {strangers[0]!r}, and {columns.name} has no such field.",
            remedy=f"Drop it: its fields are {', '.join(columns.schema.names)}.",
        )
    arrays = []
    for member in columns.members:
        found = names.count(member.name)
        if found > 1:
            raise RecordError(
                f"The table has {found} columns {member.name!r}.", remedy="Give all but one another name."
            )
        if found:
            arrays.append(_cast(batch.column(member.name), member, columns.name))
            continue
        default = member.default(batch.num_rows)
        if default is None:
            raise RecordError(
                f"The table has no column {member.name!r}, which {columns.name} needs.",
                remedy="Add it, or give the field a default.",
            )
        arrays.append(default)
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _cast(array: pa.Array, member: FieldColumn, record: str) -> pa.Array:
    name, wanted = member.name, member.column.arrow_type
    if array.type == wanted:
        return array
    if not _may_stand_for(array.type, wanted):
        raise RecordError(
            f"Column {name!r} of the table is {array.type}, and {record} needs {wanted}.",
            remedy=_remedy(array.type, wanted),
        )
    try:
        if not _TYPES.is_nested(wanted):
            return array.cast(wanted)
        # Arrow's cast refuses nulls in the fields of a null record, which are valid, and does not name
        # the row of a null. So cast with nulls allowed, and check for nulls afterwards.
        array = array.cast(_with_nulls(wanted))
    except pa.ArrowException as error:
        raise RecordError(
            f"Column {name!r} of the table is {array.type} and does not become {wanted}: "
            f"{str(error).rstrip('.')}.",
            remedy="Cast it before you send it, and decide there what is lost.",
        ) from None
    _check_columns(StructColumn(record, [member], nullable=False, accepts=dict), [array])
    return array.view(wanted)


def _with_nulls(kind: pa.DataType) -> pa.DataType:
    """Return a type with nulls allowed everywhere within it."""
    if _TYPES.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_nulls(field.type)) for field in kind])
    if _TYPES.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _with_nulls(kind.item_type)))
    if _TYPES.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _with_nulls(kind.value_type)))
    return kind


def _remedy(have: pa.DataType, wanted: pa.DataType) -> str:
    if _TYPES.is_timestamp(wanted) and _TYPES.is_timestamp(have):
        zone = "one without (Annotated[datetime, msgspec.Meta(tz=False)])" if wanted.tz else "one with it"
        return f"Give the times a zone (pyarrow.compute.assume_timezone), or the field {zone}."
    return "Cast it before you send it, or change the type of the field."


def _may_stand_for(have: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type have the same meaning in another; the cast checks each value."""
    if have == wanted or _TYPES.is_null(have):
        return True
    if _TYPES.is_dictionary(have):
        return _may_stand_for(have.value_type, wanted)
    if _TYPES.is_timestamp(wanted):
        return bool(_TYPES.is_timestamp(have) and (have.tz is None) == (wanted.tz is None))
    if _TYPES.is_struct(wanted):
        return bool(
            _TYPES.is_struct(have)
            and {field.name for field in have} == {field.name for field in wanted}
            and all(_may_stand_for(have.field(field.name).type, field.type) for field in wanted)
        )
    if _TYPES.is_map(wanted):
        return bool(
            _TYPES.is_map(have)
            and _may_stand_for(have.key_type, wanted.key_type)
            and _may_stand_for(have.item_type, wanted.item_type)
        )
    if _TYPES.is_list(wanted):
        is_list = _TYPES.is_list(have) or _TYPES.is_large_list(have) or _TYPES.is_fixed_size_list(have)
        return bool(is_list and _may_stand_for(have.value_type, wanted.value_type))
    return any(is_wanted(wanted) and any(is_one(have) for is_one in those) for is_wanted, those in _FAMILIES)


# -- values that records cannot hold ---------------------------------------------------------


def _check_columns(columns: StructColumn, arrays: Sequence[pa.Array]) -> None:
    """Check one array for each field, of records none of which is null; raise :class:`Misfit`."""
    for member, array in zip(columns.members, arrays, strict=True):
        with inside(f".{member.name}", lambda index: index):
            _check(member.column, array)


def _check(column: Column, array: pa.Array) -> None:
    """Raise :class:`Misfit` for the first value of an array that records cannot hold."""
    if not column.nullable and array.null_count:
        raise Misfit(_first(array.is_null()), "", "is null, and its type does not allow that")
    if isinstance(column, ListColumn):
        with inside("[]", lambda index: int(pc.list_parent_indices(array)[index].as_py())):
            _check(column.item, array.flatten())
    elif isinstance(column, MapColumn):
        offsets = array.offsets  # They count from the whole array, of which this may be a slice.
        begin, end = offsets[0].as_py(), offsets[-1].as_py()
        for suffix, inner, items in ((" (key)", column.key, array.keys), ("{}", column.value, array.items)):
            with inside(suffix, lambda index: pc.sum(pc.less_equal(offsets, begin + index)).as_py() - 1):
                _check(inner, items.slice(begin, end - begin))
    elif isinstance(column, StructColumn):
        if not array.null_count:
            _check_columns(column, array.flatten())
            return
        # The fields of a null record are null, which is valid.
        indexes = pc.indices_nonzero(array.is_valid())
        with inside("", lambda index: int(indexes[index].as_py())):
            _check_columns(column, array.take(indexes).flatten())
    elif isinstance(column, Leaf) and column.allowed is not None:
        if isinstance(column.allowed, str):
            is_allowed = pc.match_substring_regex(array, column.allowed)
        else:
            is_allowed = pc.is_in(array, pa.array(column.allowed, column.arrow_type))
        wrong = pc.and_(array.is_valid(), pc.invert(is_allowed))
        if pc.any(wrong).as_py():
            index = _first(wrong)
            raise Misfit(index, "", f"is {short(array[index].as_py())}; {column.wanted}")


def _first(wrong: pa.Array) -> int:
    """Return the index of the first true value."""
    return int(pc.index(wrong, True).as_py())


# -- records ---------------------------------------------------------------------------------


def to_records(
    columns: StructColumn,
    batch: pa.RecordBatch,
    build: Callable[[dict[str, Any]], Any],
    build_all: Callable[[list[dict[str, Any]]], list[Any]],
) -> list[Any]:
    """Convert rows that :func:`fit` has returned to records; raise DecodeError for one that is not valid.

    ``build`` makes a record from its values by wire name, with the validation of a decoder; ``build_all``
    makes many in half the time, and does not say which one is wrong.
    """
    values = []
    for member, array in zip(columns.members, batch.columns, strict=True):
        try:
            values.append(array.to_pylist())
        except (ValueError, OverflowError) as error:
            raise DecodeError(
                f"Column {member.name!r} holds a value that Python does not have: {str(error).rstrip('.')}.",
                remedy="Its producer must send what the record type allows.",
            ) from None
    records: list[Any] = []
    rows = _plain_rows(columns, values)
    while some := list(islice(rows, TOGETHER)):
        try:
            records += build_all(some)
        except BaseException:  # noqa: BLE001 - a record's own code may raise anything
            for row in some:
                records.append(_built(columns, build, row, len(records)))
    return records


def _built(
    columns: StructColumn, build: Callable[[dict[str, Any]], Any], row: dict[str, Any], at: int
) -> Any:
    try:
        return build(row)
    except BaseException as error:
        raise DecodeError(
            f"Row {at} (counted from 0) is no {columns.name}: {one_line(error)}.",
            remedy="Its producer must send what the record type allows.",
        ) from error


def _plain_rows(columns: StructColumn, values: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Return the values of records by wire name, from those of columns."""
    if any(m.leaves_out_none or _plain(m.column) is not None for m in columns.members):
        return map(_plain_row(columns), zip(*values, strict=True))
    names = [m.field.wire_name for m in columns.members]
    return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))


@cache
def _plain_row(columns: StructColumn) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Return the function from the values of a row to the values of a record by wire name."""
    steps = [(m.field.wire_name, _plain(m.column) or _itself, m.leaves_out_none) for m in columns.members]
    return lambda values: {
        wire_name: step(value)
        for (wire_name, step, leaves_out), value in zip(steps, values, strict=True)
        if not (leaves_out and value is None)
    }


def _plain(column: Column) -> Callable[[Any], Any] | None:
    """Return the function from pyarrow's Python value to a decoder's input; None if they are the same."""
    if isinstance(column, ListColumn):
        item = _plain(column.item)
        return None if item is None else lambda value: value if value is None else list(map(item, value))
    if isinstance(column, MapColumn):
        inner = _plain(column.value)
        if inner is None:
            return lambda value: value if value is None else dict(value)
        return lambda value: value if value is None else {key: inner(each) for key, each in value}
    if not isinstance(column, StructColumn):
        return None
    if column.positional:
        steps = [(m.name, _plain(m.column) or _itself) for m in column.members]
        return lambda value: value if value is None else [step(value[name]) for name, step in steps]
    row, names = _plain_row(column), [m.name for m in column.members]
    return lambda value: value if value is None else row([value[name] for name in names])


def _itself(value: Any) -> Any:
    return value
