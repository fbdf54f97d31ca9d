"""Makes a ``ProcessorSpec`` from the annotations of a decorated function.

The annotation of the first parameter says how a processor takes its records: ``Order`` one at a
time, ``list[Order]`` in batches, ``Records[Order]`` as a stream to iterate over, and
``pa.RecordBatch``, ``pa.Table`` or ``pl.DataFrame`` in batches of columns. The return annotation says
what it forwards. This module refuses invalid declarations when the program is imported; the error
names the function and what to write instead.
"""

import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from streamworker.core.rules import UNIONS, check_arguments
from streamworker.declaring.callables import look, refused
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.parameters import Resource, read_parameters
from streamworker.declaring.specs import (
    FunctionMode,
    ProcessorSpec,
    StreamSpec,
    Takes,
    Targets,
    has_several_types,
    rows_of_several_types,
)
from streamworker.errors import ConfigurationError
from streamworker.feed import Records
from streamworker.records import RecordType
from streamworker.records.types import label
from streamworker.redisio.keys import check_name

BATCH_DEFAULT = 500
"""Records in a batch if the function takes a list and no size is given."""
ROWS_DEFAULT = 10_000
"""Rows in a batch if the function takes columns: a call then costs 10 ns a row."""
RECORDS_DEFAULT = 1_000
"""Maximum records of a commit if the function takes one: with 500, commits took a fifth of its time."""


def describe(
    function: Callable[..., Any],
    stream: StreamSpec,
    options: ProcessorOptions,
    *,
    into: Targets = None,
    resources: Mapping[str, Resource[..., Any]] | None = None,
) -> ProcessorSpec:
    """Read a processor function's annotations and check them against the options of its decorator."""
    check_arguments("Processor", {**vars(options), "function": function})
    looked = look(function, "Processor", options.name)
    name, whose = check_name("processor", looked.name), looked.whose
    parameters = read_parameters(looked, resources or {})
    taken, returns = parameters.hints.get(parameters.record), parameters.hints.get("return")
    takes = _columns(taken)
    mode = FunctionMode.BATCH if takes else _mode(taken, stream, options.batch, whose)
    if mode is FunctionMode.STREAM and not looked.is_async:
        raise refused(whose, "takes Records, and is no async function.", "Write it as `async def`.")
    _check_options(whose, mode, stream, options)
    returned = returned_type(returns)
    _check_columns(whose, mode, stream, takes, returned)
    check_into(whose, stream, into, returned, takes, options.forward)
    # `output` says which columns the function returns; without it they are those of the stream.
    produced = options.output or (stream.record.python_type if _columns(returned) else returned)
    forwards = produced is not None and not has_several_types(into)
    if options.forward is not None:
        forwards = options.forward
    if options.archive_of_log is not None and not forwards:
        raise refused(
            whose,
            "has log_archive, and no acked log: nothing is forwarded.",
            "Return records from its function, or drop log_archive.",
        )
    if options.log_metadata and (mode is not FunctionMode.RECORD or stream.codec == "arrow" or not forwards):
        raise refused(
            whose,
            "has log_metadata, and its acked log gets no row of one record.",
            f"Let it take one {stream.record.name} and return rows, or drop log_metadata.",
        )
    one_by_one = mode is FunctionMode.RECORD and options.concurrency == 1
    return ProcessorSpec(
        name=name,
        stream=stream,
        function=looked.function,
        options=options,
        mode=mode,
        is_async=looked.is_async,
        takes_context=bool(parameters.context),
        batch=options.batch or (ROWS_DEFAULT if takes else RECORDS_DEFAULT if one_by_one else BATCH_DEFAULT),
        takes=takes or "records",
        forward=forwards,
        output=_output_type(produced, stream, whose) if forwards else None,
        into=into,
        parameters=parameters,
    )


def _check_options(whose: str, mode: FunctionMode, stream: StreamSpec, options: ProcessorOptions) -> None:
    """Refuse options that are wrong by themselves, or do not fit the function or its stream."""
    if options.timeout is not None and mode is FunctionMode.STREAM:
        raise refused(
            whose,
            f"has timeout={options.timeout!r}.",
            "Leave it out: the one call of a function that takes Records lasts as long as the partition.",
        )
    if options.concurrency > 1 and mode is not FunctionMode.RECORD:
        raise refused(
            whose,
            f"has concurrency={options.concurrency} and does not take one record at a time.",
            f"Annotate its first parameter as {stream.record.name}, or drop concurrency.",
        )
    if options.concurrency > 1 and stream.codec == "arrow":
        raise refused(
            whose,
            f"has concurrency={options.concurrency}, and entries of stream {stream.name!r} hold many rows.",
            "Drop concurrency and take pa.RecordBatch, or declare the stream with another codec.",
        )
    try:
        _ = options.policies
    except ConfigurationError as error:
        raise refused(whose, f"is declared wrongly: {error.message}", error.remedy) from None
    _ = options.within_ms, options.timeout_ms, options.retention_of_log


def check_into(
    whose: str, stream: StreamSpec, into: Targets, returned: Any, takes: Takes | None, forward: bool | None
) -> None:
    """Refuse targets that do not fit the function."""
    if into is None:
        return
    by_type = into if isinstance(into, Mapping) else dict.fromkeys(into.record.members, into)
    for kind, target in by_type.items():
        if target.app != stream.app:
            raise refused(
                whose,
                f"sends into stream {target.name!r} of app {target.app!r}.",
                "Send into a stream of its own app; an app may read streams of several modules.",
            )
        if kind not in target.record.members:
            raise refused(
                whose,
                f"sends {label(kind)} into stream {target.name!r}, which holds {target.record.name}.",
                f"Write into={{{target.record.members[0].__name__}: {target.name}}}.",
            )
    if takes or _columns(returned):
        raise refused(
            whose,
            "takes or returns columns, and into= sends records.",
            "Let it take and return lists of records.",
        )
    if forward and len(by_type) > 1:
        raise rows_of_several_types(whose)
    if returned is None:
        return
    names = ", ".join(sorted(map(label, by_type)))
    is_union = typing.get_origin(returned) in UNIONS
    for kind in typing.get_args(returned) if is_union else (returned,):
        if kind not in (*by_type, Any, type(None)) and not isinstance(kind, typing.TypeVar):
            raise refused(
                whose,
                f"returns {label(kind)}, and into= takes {names}.",
                f"Return {names}, a list of them or None; or name a stream of {label(kind)} in into=.",
            )


def _columns(annotation: Any) -> Takes | None:
    """Return which kind of columns an annotation names, if any.

    This imports nothing: a program that names one of these types has imported it already.
    """
    names: tuple[tuple[Takes, str, str], ...] = (
        ("record_batch", "pyarrow", "RecordBatch"),
        ("table", "pyarrow", "Table"),
        ("polars", "polars", "DataFrame"),
    )
    for takes, module, name in names:
        if annotation is not None and annotation is getattr(sys.modules.get(module), name, None):
            return takes
    return None


def _check_columns(
    whose: str, mode: FunctionMode, stream: StreamSpec, takes: Takes | None, returned: Any
) -> None:
    record = stream.record.name
    if takes:
        _check_has_columns(whose, stream.record, "takes columns of")
    elif _columns(returned):
        raise refused(
            whose,
            f"takes {record} and returns columns.",
            "Annotate its first parameter as pa.RecordBatch, or what it returns as a list.",
        )
    if stream.codec == "arrow" and mode is FunctionMode.STREAM:
        raise refused(
            whose,
            f"takes Records, and entries of stream {stream.name!r} hold many rows.",
            f"Annotate its first parameter as pa.RecordBatch, list[{record}] or {record}.",
        )


def _check_has_columns(whose: str, record: RecordType, does: str) -> None:
    try:
        record.arrow_schema()
    except ConfigurationError as error:
        what = f"{does} {record.name}, which has no Arrow form: {error.message}"
        raise refused(whose, what, error.remedy) from error


def _mode(annotation: Any, stream: StreamSpec, batch: int | None, whose: str) -> FunctionMode:
    if annotation is None:
        return FunctionMode.RECORD if batch is None else FunctionMode.BATCH
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Records or origin is Records:
        mode, item = FunctionMode.STREAM, arguments[0] if arguments else None
    elif annotation is list or origin is list:
        mode, item = FunctionMode.BATCH, arguments[0] if arguments else None
    else:
        mode, item = FunctionMode.RECORD, annotation
    wanted = stream.record.python_type
    if item not in (None, Any, wanted):
        raise refused(
            whose,
            f"takes {label(item)}, and stream {stream.name!r} holds {stream.record.name}.",
            f"Annotate its first parameter as {stream.record.name}, list[{stream.record.name}] or "
            f"Records[{stream.record.name}].",
        )
    if mode is FunctionMode.RECORD and batch is not None:
        raise refused(
            whose,
            f"has batch={batch} and takes one {stream.record.name}.",
            f"Annotate its first parameter as list[{stream.record.name}].",
        )
    return mode


def returned_type(annotation: Any) -> Any:
    """Return the type of the rows that a return annotation promises, or None."""
    if annotation in (None, type(None)):
        return None
    if typing.get_origin(annotation) in UNIONS:
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else annotation
    if typing.get_origin(annotation) is list:
        return typing.get_args(annotation)[0]
    return annotation


def _output_type(produced: Any, stream: StreamSpec, whose: str) -> RecordType:
    record = stream.record if produced is None else RecordType.of(produced)
    _check_has_columns(whose, record, "forwards")
    return record
