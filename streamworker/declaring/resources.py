"""``@app.resource`` and ``@app.middleware``: what functions are given, and what is around their calls."""

import typing
from collections.abc import AsyncIterator, Callable
from typing import Any, overload

from streamworker.declaring.callables import P, R, look, no_generator
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Resource, Scope, read_parameters
from streamworker.declaring.registry import DeclaringApp
from streamworker.errors import ConfigurationError


@overload
def resource(app: DeclaringApp, function: Callable[P, AsyncIterator[R]], /) -> Resource[P, R]: ...
@overload
def resource(
    app: DeclaringApp, function: None = None, /, *, each: Scope = "worker"
) -> Callable[[Callable[P, AsyncIterator[R]]], Resource[P, R]]: ...
def resource(
    app: DeclaringApp, function: Callable[..., Any] | None = None, /, *, each: Scope = "worker"
) -> Any:
    """Declare what functions need and a worker has to make and close, such as a client or a pool.

    The function is an async generator with one ``yield``. Processors and middleware that are declared
    below it take the value by its type, or by the name of its maker where several yield one type:
    ``client: Annotated[httpx.AsyncClient, prices]``. It may take other resources in the same way.

    Parameters
    ----------
    each
        ``worker``: made when a worker starts, before it joins its groups, and closed after it has
        drained. ``partition``: made when a worker starts to run a partition, and closed at its end.

    Raises
    ------
    ConfigurationError
        If it is no async generator, does not say what it yields, or takes what nothing fills.

    Examples
    --------
    >>> import sqlite3
    >>> from streamworker import App
    >>> app = App("shop")
    >>> @app.resource
    ... async def database() -> AsyncIterator[sqlite3.Connection]:
    ...     connection = sqlite3.connect("shop.db")
    ...     yield connection
    ...     connection.close()
    >>> database
    database (Connection)
    """

    def bind(function: Callable[P, AsyncIterator[R]]) -> Resource[P, R]:
        looked = look(function, "Resource", yields="X")
        name, whose = looked.name, looked.whose
        if each not in typing.get_args(Scope):
            raise ConfigurationError(
                f"{whose} has each={each!r}.", remedy=f"Use one of: {', '.join(typing.get_args(Scope))}."
            )
        yields = typing.get_args(looked.hints.get("return"))
        if not yields:
            raise no_generator(whose, "X")
        parameters = read_parameters(looked, app.registry.resources, takes_record=False, takes_context=False)
        for other in parameters.resources.values():
            if other.each != each == "worker":
                raise ConfigurationError(
                    f"{whose} is made for each worker, and takes {other.name}, one for each partition.",
                    remedy='Declare it with @app.resource(each="partition").',
                )
        app.registry.check_new("resources", name)
        made: Resource[P, R] = Resource(name, looked.function, yields[0], each, parameters)
        app.registry.resources[name] = made
        return made

    return bind if function is None else bind(function)


def middleware(
    app: DeclaringApp, function: Callable[P, AsyncIterator[None]], /
) -> Callable[P, AsyncIterator[None]]:
    """Run an async generator around each attempt of the app's functions; return it as it is.

    What stands before its one ``yield`` runs before the attempt, the rest after it. It may take a
    ``Context``, that of the attempt, and resources. It cannot change or lose what the function
    returned. An error of the function is raised at the ``yield``; whether or not the generator catches
    it, the attempt has failed. What the generator itself raises fails the attempt, too. Of several, the
    first declared is outermost.

    A function that takes ``Records`` is called once for a whole partition: it has no attempts, and
    no middleware.

    Raises
    ------
    ConfigurationError
        If it is no async generator, or takes what nothing fills.

    Examples
    --------
    >>> from streamworker import App, Context
    >>> app = App("shop")
    >>> @app.middleware
    ... async def slow_calls(ctx: Context) -> AsyncIterator[None]:
    ...     yield
    ...     if ctx.elapsed > 1:
    ...         ctx.log.warning("slow", records=ctx.count)
    """
    looked = look(function, "Middleware", yields="None")
    parameters = read_parameters(looked, app.registry.resources, takes_record=False)
    app.registry.middleware.append(Layer(looked.name, looked.function, parameters))
    return function
