"""The decorators ``@app.resource`` and ``@app.middleware``."""

import importlib
import typing
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, overload

from streamworker.declaring.callables import P, R, look, no_generator
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Resource, Scope, read_parameters
from streamworker.errors import ConfigurationError


def modules_of(argument: str, modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that an argument of the app names."""
    if not isinstance(modules, list | tuple):  # Text would be taken letter by letter.
        raise ConfigurationError(
            f"{argument}={modules!r} is no list.", remedy=f"Write {argument}=[{modules!r}]."
        )
    return tuple(modules)


def import_included(module: str) -> None:
    """Import a module that an argument of the app names."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing import inside the module is a fault of the module.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"There is no module {module!r}, which the app's include= or include_spark= names.",
            remedy="Write it as in an import statement, from the folder that Python starts in.",
        ) from None


class Injecting:
    """The part of an app that declares what functions are given, and what is around their calls."""

    def __init__(self, include: Sequence[str]) -> None:
        self.include = modules_of("include", include)
        """Modules that declare more of the app."""
        self.resources: dict[str, Resource[..., Any]] = {}
        self.layers: list[Layer] = []
        """The middleware, the outermost first."""

    def load(self) -> None:
        """Import the modules that ``include`` names; done by all that runs an app.

        Raises ConfigurationError if there is no such module.
        """
        for module in self.include:
            import_included(module)

    @overload
    def resource(self, function: Callable[P, AsyncIterator[R]], /) -> Resource[P, R]: ...
    @overload
    def resource(
        self, function: None = None, /, *, each: Scope = "worker"
    ) -> Callable[[Callable[P, AsyncIterator[R]]], Resource[P, R]]: ...
    def resource(self, function: Callable[..., Any] | None = None, /, *, each: Scope = "worker") -> Any:
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
            parameters = read_parameters(looked, self.resources, takes_record=False, takes_context=False)
            for other in parameters.resources.values():
                if other.each != each == "worker":
                    raise ConfigurationError(
                        f"{whose} is made for each worker, and takes {other.name}, one for each partition.",
                        remedy='Declare it with @app.resource(each="partition").',
                    )
            if name in self.resources:
                raise ConfigurationError(
                    f"The app has two resources named {name!r}.", remedy="Rename one of them."
                )
            made: Resource[P, R] = Resource(name, looked.function, yields[0], each, parameters)
            self.resources[name] = made
            return made

        return bind if function is None else bind(function)

    def middleware(self, function: Callable[P, AsyncIterator[None]], /) -> Callable[P, AsyncIterator[None]]:
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
        parameters = read_parameters(looked, self.resources, takes_record=False)
        self.layers.append(Layer(looked.name, looked.function, parameters))
        return function
