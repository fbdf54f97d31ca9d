"""``App``: what a program says to streamworker. Start to read the code here.

A program declares streams, functions that process their records, and what these functions need. Declaring
connects to nothing, so that importing a program has no side effects. A worker (``streamworker run``), a Spark
driver (``streamworker spark``) or a send connects to Redis when it first needs a connection.

``App`` lists the decorators. The file of ``declaring`` that a line names has their arguments and examples.
"""

import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.core.protocols.settings import Coordination
from streamworker.core.rules import checked
from streamworker.declaring import data, pipelines, processors, resources, windows
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.timed import timers
from streamworker.dev.rendezvous import url_for
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.settings import Settings

if TYPE_CHECKING:
    from streamworker.runtime.worker import Worker


class App(DeclaringApp):
    """The streams, processors and pipelines of one application.

    Parameters
    ----------
    name
        Part of every key in Redis: letters, digits, ``_ . -``.
    redis_url
        ``redis://``, ``rediss://`` or ``unix://``; ``STREAMWORKER_REDIS_URL`` if None, and without it the
        server of the ``streamworker dev`` that runs in the current folder.
    coordination
        The protocol by which workers share partitions, by its name or with its own settings
        (docs: protocols). ``STREAMWORKER_COORDINATION`` if None, and without it ``membership``.
    assignment
        How partitions are assigned: ``range`` (each worker gets one contiguous range), ``sticky`` (as
        few moves as possible) or ``weighted`` (by measured load and capacity; docs: assignments).
    include
        Modules that declare more of the app, such as ``["shop.mail"]``. They import the app, so they are
        imported after it: when a command or a worker loads it.
    include_spark
        Modules that declare pipelines, such as ``["shop.lake"]``. Only what needs pipelines imports them, so
        that workers need no pyspark: ``streamworker spark``, ``graph``, ``schema check`` and ``dev``.
    **settings
        Any setting by its name, such as ``hold_ms=60_000`` (docs: settings).

    Raises
    ------
    ConfigurationError
        If a name or a setting is invalid.

    Examples
    --------
    >>> import asyncio
    >>> import msgspec
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> class Priced(Order):
    ...     total: float
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer", partitions=4)
    >>> priced = app.stream("priced", Priced, key="customer")
    >>> @app.processor(orders, into=priced)
    ... async def price(order: Order) -> Priced:
    ...     return Priced(order.customer, order.amount, total=order.amount * 1.5)

    What was decorated stays a function, which a test may call:

    >>> asyncio.run(price(Order("ann", amount=10))).total
    15.0
    """

    # What holds data.
    stream = data.stream
    table = data.table

    # What is called with records, and what is called by time.
    processor = processors.processor
    window = windows.window
    session = windows.session
    timer = timers.timer
    cron = timers.cron

    # What these functions are given, and what is around their calls.
    resource = resources.resource
    middleware = resources.middleware

    # What Spark makes of the results.
    pipeline = pipelines.pipeline

    @checked("App")
    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        coordination: str | Coordination | None = None,
        assignment: str = "range",
        include: Sequence[str] = (),
        include_spark: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        check_name("app", name)
        chosen = Settings.from_env(redis_url=url_for(redis_url), coordination=coordination, **settings)
        super().__init__(name, chosen, include, include_spark)
        Membership.empty(1, assignment)
        if assignment != "range" and not PROTOCOLS[chosen.coordination.name].has_document:
            raise ConfigurationError(
                f"{assignment=} does not work with coordination={chosen.coordination.name!r}.",
                remedy='Use coordination="membership": the others share partitions in a way of their own.',
            )
        self.assignment = assignment

    @checked("Worker")
    def worker(
        self, *, name: str | None = None, processors: Sequence[str] | None = None
    ) -> "AbstractAsyncContextManager[Worker]":
        """Run a worker inside your own program, for as long as an ``async with`` block.

        At the end of the block the worker drains and leaves, also if the block raises an exception. Signals
        are left to your program. If the worker fails, the block is cancelled and the error is raised.

        Parameters
        ----------
        name
            The worker's name; made up if None.
        processors
            Names of the processors to run; all if None.

        Raises
        ------
        ConfigurationError
            If the app has no processors and no timers, or Redis holds other declarations of it.
        BackendRefused, AuthenticationFailed
            If Redis refuses, or does not accept the user or password. While it does not answer, this waits.

        Examples
        --------
        >>> import asyncio
        >>> async def main(app: App) -> None:
        ...     async with app.worker(name="embedded"):
        ...         await asyncio.Event().wait()
        """
        # It needs pyarrow, which who only sends should not load.
        from streamworker.runtime.worker import Worker, running

        return running(Worker(self, name=name, processors=processors))


def _show_as_method(function: Any) -> None:
    """Name its first parameter ``self`` in ``help()``."""
    signature = inspect.signature(function)
    app, *others = signature.parameters.values()
    own = app.replace(name="self", annotation=inspect.Parameter.empty)
    function.__signature__ = signature.replace(parameters=[own, *others])


for _verb in vars(App).values():
    if inspect.isfunction(_verb) and _verb.__module__ != __name__:
        _show_as_method(_verb)
