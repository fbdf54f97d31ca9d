"""What calls return becomes what is committed: rows for the acked log, and records for other streams."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from streamworker.context import Call, Carried, Sending
from streamworker.core.data.entries import Entry
from streamworker.core.policies import Policy
from streamworker.declaring.callables import NOT_RUN
from streamworker.declaring.specs import FunctionMode, ProcessorSpec, StreamSpec
from streamworker.errors import ProcessingError
from streamworker.records.codecs import short
from streamworker.records.entries import header_fields_of
from streamworker.records.types import copier, kept
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.runtime.forward.routing import Routed, Routes
from streamworker.runtime.run.state import Changes
from streamworker.runtime.run.threads import name_of


class Effects(NamedTuple):
    """Results of one successful call, to be committed."""

    outputs: Sequence[Any] = ()
    changes: Changes | None = None
    removed: Mapping[int, Policy] | None = None
    """What is done about records that the function named, by their index in the call."""


NOTHING = Effects()
"""The effects of a call that forwards and stores nothing."""


class Results:
    """Makes the effects of a processor's calls from what they return and put out."""

    def __init__(self, spec: ProcessorSpec, routes: Routes) -> None:
        self.spec = spec
        self._routes = routes
        row = spec.output or (spec.into.record if isinstance(spec.into, StreamSpec) else None)
        self._row_type: Any = object if row is None else row.built_type
        self._takes_rows = spec.forward or spec.into is not None
        self.forwards_input = forwards_input(spec)
        """Whether a call that returns None forwards its records."""
        self._returns_rows_as_list = list not in getattr(self._row_type, "__mro__", ())
        self._copies = spec.mode is not FunctionMode.BATCH or not spec.is_async or bool(spec.layers)
        """Whether other code may run between a return and the conversion of its rows."""
        self._usual = self._row_type if self._takes_rows and self._row_type is not object else None
        """The type of rows, if it is one class."""
        self._copied = copier(self._usual) if isinstance(self._usual, type) else None
        """Copies a row of that class; None if there is no such class, or if its values never change."""
        self.sends = self._routes.into is not None or spec.takes_context or bool(spec.layers)
        """Whether a call may send records to other streams."""
        self._carries = False
        """Whether a record that was sent has carried headers."""

    def effects_of(self, result: Any, record: Any) -> Effects:
        """Return the effects of a call with a record and nothing else."""
        if result is None:
            if not self.forwards_input:
                return NOTHING
            result = record
        if type(result) is self._usual:
            return Effects((result if self._copied is None else self._copied(result),))
        return self._effects(self.taken(result), (), None, ())

    def taken(self, result: Any) -> Any:
        """Return what a function has returned as it is now."""
        return kept(result) if self._copies else result

    def _effects_of_call(
        self, result: Any, call: Call, changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        if not call.removed:
            return self._effects(result, call.outputs, changes, records)
        left = self._without(records, call.removed)
        return self._effects(result, call.outputs, changes, left)._replace(removed=call.removed)

    def _named(self, records: Sequence[Any]) -> Sequence[Any]:
        """Return what the function names its records by, for ``ctx.skip``."""
        return records

    def _without(self, records: Sequence[Any], removed: Mapping[int, Policy]) -> Sequence[Any]:
        return [record for index, record in enumerate(records) if index not in removed]

    def _effects(
        self, result: Any, outputs: Sequence[Any], changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        rows: Sequence[Any] = ()
        if result is None and self.forwards_input:
            rows = self.taken(list(records))
        if result is None and not outputs:
            return Effects(rows, changes) if rows or changes else NOTHING
        sendings = [each for each in outputs if type(each) is Sending]
        own = [each for each in outputs if type(each) is not Sending] if sendings else outputs
        if result is not None or own:
            if self._takes_rows:
                rows = self._forwarded(result, own)
            elif self.spec.options.forward is not False or isinstance(result, NOT_RUN):
                raise untaken(self.spec.function, own[0] if result is None else result)
        return Effects([*rows, *sendings] if sendings else rows, changes)

    def put_out(
        self,
        outputs: Sequence[Any],
        records: Sequence[Any],
        entries: Sequence[Entry],
        carried: Mapping[bytes, bytes],
    ) -> Sequence[Any]:
        """Return what a function with ``Records`` has put out for some records."""
        return self.carried(self._effects(None, outputs, None, records), entries, carried).outputs

    def carried(
        self, effects: Effects, entries: Sequence[Entry], also: Mapping[bytes, bytes] | None = None
    ) -> Effects:
        """Let what a call sends to other streams carry the headers of the record that it had.

        Of a call with several records nothing tells which of them a row was made of. ``also`` are headers of
        the call itself.
        """
        if not effects.outputs or not (also or len(entries) == 1) or not self.sends:
            return effects
        headers = {**(header_fields_of(entries[0]) if len(entries) == 1 else {}), **(also or {})}
        if not headers:
            return effects
        goes_on = self._routes.into is not None
        outputs: list[Any] = []
        for each in effects.outputs:
            if type(each) is Sending:
                outputs.append(each._replace(carried=headers))
            else:
                outputs.append(Carried(each, headers) if goes_on else each)
        self._carries = self._carries or goes_on
        return effects._replace(outputs=outputs)

    def _forwarded(self, result: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of a call: first those of ``ctx.forward``, then those that it returned."""
        if result is None:
            returned: list[Any] = []
        elif isinstance(result, list) and self._returns_rows_as_list:
            returned = result
        elif self.spec.mode is FunctionMode.BATCH:
            raise ProcessingError(
                f"Processor {self.spec.name!r} returned a {type(result).__name__} for a batch.",
                remedy=f"Return a list of {self._row_name()}, or None.",
            )
        else:
            returned = [result]
        return self.checked([*outputs, *returned] if outputs else returned)

    def convert(self, outputs: Sequence[Any]) -> tuple[pa.RecordBatch | None, Routed]:
        """Convert what calls have put out: rows to Arrow, and what goes to other streams by its routes.

        A value that fits in neither form is a RecordError; code of the rows' class may raise anything.
        """
        sendings: list[Sending] = []
        if (self.spec.takes_context or self.spec.layers) and any(type(each) is Sending for each in outputs):
            sendings = [each for each in outputs if type(each) is Sending]
            outputs = [each for each in outputs if type(each) is not Sending]
        headers: list[Mapping[bytes, bytes] | None] = []
        if self._carries and any(type(each) is Carried for each in outputs):
            headers = [each.headers if type(each) is Carried else None for each in outputs]
            outputs = [each.row if type(each) is Carried else each for each in outputs]
        rows = self.to_rows(outputs)
        sends: Routed = {}
        if sendings or (outputs and self._routes.into is not None):
            sends = self._routes.routed(outputs, sendings, headers)
        return rows, sends

    def to_rows(self, outputs: Sequence[Any]) -> pa.RecordBatch | None:
        """Convert rows to Arrow; None if there are none. It raises what ``convert`` does."""
        if not outputs or self.spec.output is None:
            return None
        return self.spec.output.to_arrow(outputs)

    def packed(
        self,
        entries: Sequence[Entry],  # noqa: ARG002 - see ColumnsInvoker
        records: Sequence[Any],  # noqa: ARG002
        rows: Sequence[pa.RecordBatch],  # noqa: ARG002
    ) -> AckedBatch | None:
        """Return the rows already encoded for a commit, if the entry held them in that form."""
        return None

    def checked(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows; raise ProcessingError for the first that is not of the output type."""
        row_type = self._row_type
        for row in rows:
            if type(row) is not row_type and not isinstance(row, row_type):
                raise ProcessingError(
                    f"Processor {self.spec.name!r} forwarded {short(row)}.",
                    remedy=f"Its output type is {self._row_name()}.",
                )
        return rows

    def _row_name(self) -> str:
        return "rows" if self.spec.output is None else self.spec.output.name


def forwards_input(spec: ProcessorSpec) -> bool:
    """Return whether a processor forwards its records where it returns None.

    It does if it forwards rows, their type is the stream's record type, and the function's annotation does
    not say that it returns rows. A function that is annotated ``-> Order | None`` filters: its None
    forwards nothing.
    """
    if not spec.forward or spec.into is not None or spec.output not in (None, spec.stream.record):
        return False
    return spec.parameters.hints.get("return") in (None, type(None))


def untaken(function: Callable[..., Any], result: object) -> ProcessingError:
    """Return the error for a result that goes nowhere: its code has not run, or nobody asked for it."""
    return ProcessingError(
        f"{name_of(function)} returned {short(result)}, which nothing takes.",
        remedy="Annotate what it returns or set into=, so that it goes somewhere; return None or set "
        "forward=False, if it should not.",
    )
