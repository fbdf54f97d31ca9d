"""What a function asks for by the annotations of its parameters, and how it is called with it.

The record is the first parameter that nothing else fills. ``Context`` fills any parameter of its type. A
:class:`Resource` fills a parameter of exactly the type that it yields, or one that names it:
``client: Annotated[httpx.AsyncClient, prices]``.
"""

import functools
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from streamworker.context import Context
from streamworker.declaring.callables import Looked, P, R, Wrapper
from streamworker.errors import ConfigurationError
from streamworker.records.types import label

Scope = Literal["worker", "partition"]
"""How often a resource is made: once in each worker, or once for each partition that a worker runs."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function, by what fills them."""

    names: tuple[str, ...] = ()
    """Those that are filled, in order."""
    record: str = ""
    context: str = ""
    resources: "Mapping[str, Resource[..., Any]]" = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    """The annotations."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The names for the record and the context, if it takes them."""
        return tuple(name for name in (self.record, self.context) if name)

    @property
    def in_order(self) -> bool:
        """Whether these come first, so that they need not be passed by name."""
        return self.names[: len(self.asked)] == self.asked

    def bind(
        self, function: Callable[..., Any], values: "Mapping[Resource[..., Any], Any]"
    ) -> Callable[..., Any]:
        """Return the function with its resources filled, to be called with the record and the context.

        It gets those of the two that it asks for. One that needs nothing else is returned as it is.
        """
        bound = function
        if self.resources:
            made = {name: values[resource] for name, resource in self.resources.items()}
            bound = functools.partial(function, **made)
        if not self.in_order:
            by_name, asked = bound, self.asked

            def bound(*given: Any) -> Any:
                return by_name(**dict(zip(asked, given, strict=True)))

        return bound if bound is function else functools.update_wrapper(bound, function)


class Resource(Wrapper[P, AsyncIterator[R]]):
    """What ``@app.resource`` makes of an async generator; calling it calls the generator itself.

    Examples
    --------
    >>> from streamworker import App
    >>> class Prices: ...
    >>> @App("shop").resource
    ... async def prices() -> AsyncIterator[Prices]:
    ...     yield Prices()
    >>> prices.name, prices.yields is Prices, prices.each
    ('prices', True, 'worker')
    """

    def __init__(
        self, name: str, function: Callable[P, AsyncIterator[R]], yields: Any, each: Scope, needs: Parameters
    ) -> None:
        super().__init__(function)
        self.name: str = name
        """The function's name."""
        self.yields: Any = yields
        """The type that it yields, by which functions take it."""
        self.each: Scope = each
        """How often it is made: once for each ``worker``, or for each ``partition`` that a worker runs."""
        self.parameters = needs

    def override(self, value: R) -> "Override":
        """Return a value for tests to use in place of this resource: ``local_worker(app, resources=[...])``.

        The generator is not called then, and nobody closes the value.

        Parameters
        ----------
        value
            What functions get, of the type that the resource yields.
        """
        return Override(self, value)

    def __repr__(self) -> str:
        return f"{self.name} ({label(self.yields)})"


@dataclass(frozen=True, slots=True)
class Override:
    """A value for tests in place of a resource; ``Resource.override`` makes it.

    Examples
    --------
    >>> from streamworker import App
    >>> @App("shop").resource
    ... async def rate() -> AsyncIterator[float]:
    ...     yield 1.1
    >>> rate.override(2.0).value
    2.0
    """

    resource: Resource[..., Any]
    """What the value replaces."""
    value: Any
    """What functions get in its place."""


def read_parameters(
    looked: Looked,
    known: "Mapping[str, Resource[..., Any]]",
    *,
    takes_record: bool = True,
    at_time: bool = False,
    takes_context: bool = True,
) -> Parameters:
    """Read what fills a function's parameters; one that nothing fills is a ConfigurationError.

    ``at_time`` is for functions that are called by time: in place of a record they are given the planned
    time, if they ask for it.
    """
    whose, hints = looked.whose, looked.hints
    record = context = ""
    resources: dict[str, Resource[..., Any]] = {}
    filled: list[str] = []
    for index, parameter in enumerate(looked.signature.parameters.values()):
        name, hint = parameter.name, hints.get(parameter.name)
        if takes_context and not context and (hint is Context or (hint is None and index == 1 and record)):
            context = name
        elif resource := _resource(whose, name, hint, known):
            resources[name] = resource
        elif takes_record and not record and (not at_time or hint in (None, datetime)):
            record = name
        elif parameter.default is not parameter.empty:
            continue
        else:
            shown = name if hint is None else f"{name}: {label(hint)}"
            can = ["the planned time as a datetime" if at_time else "its record"] * takes_record + [
                "a Context"
            ] * takes_context
            there = ", ".join(map(str, known.values()))
            raise ConfigurationError(
                f"{whose} takes `{shown}`, which nothing fills.",
                remedy=f"It can take {' and '.join([*can, 'resources'])} that are declared above it"
                f" with @app.resource: {there or 'there are none'}.",
            )
        filled.append(name)
    if takes_record and not (at_time or record):
        raise ConfigurationError(
            f"{whose} takes no record.", remedy="Let it take the record, a list of records, or Records."
        )
    parameters = Parameters(tuple(filled), record, context, resources, hints)
    by_name, asked = dict.fromkeys(resources), parameters.asked
    try:
        if parameters.in_order:
            looked.signature.bind(*asked, **by_name)
        else:
            looked.signature.bind(**by_name, **dict.fromkeys(asked))
    except TypeError as error:
        raise ConfigurationError(
            f"{whose} cannot be called with what it takes: {error}.",
            remedy="Let the record and the context come first, without a `*` before or a `/` after them.",
        ) from error
    return parameters


def _resource(
    whose: str, name: str, hint: Any, known: Mapping[str, Resource[..., Any]]
) -> Resource[..., Any] | None:
    """Return the resource that fills a parameter, if one does."""
    if typing.get_origin(hint) is Annotated:
        plain, *notes = typing.get_args(hint)
        for note in notes:
            if isinstance(note, Resource):
                if known.get(note.name) is not note:
                    raise ConfigurationError(
                        f"{whose} takes `{name}` from {note.name}, a resource of another app.",
                        remedy="Declare it with @app.resource of this app.",
                    )
                if plain != note.yields:
                    raise ConfigurationError(
                        f"{whose} takes `{name}: {label(plain)}` from {note.name}, which yields "
                        f"{label(note.yields)}.",
                        remedy=f"Annotate it as Annotated[{label(note.yields)}, {note.name}].",
                    )
                return note
        return None
    fitting = [resource for resource in known.values() if resource.yields == hint]
    if len(fitting) > 1:
        raise ConfigurationError(
            f"{whose} takes `{name}: {label(hint)}`, which {' and '.join(r.name for r in fitting)} yield.",
            remedy=f"Name one: `{name}: Annotated[{label(hint)}, {fitting[0].name}]`.",
        )
    return fitting[0] if fitting else None
