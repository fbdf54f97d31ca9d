"""``Records``: what a processor function iterates over that takes neither a record nor a list."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from streamworker.core.rules import checked
from streamworker.core.units import Duration, duration_ms

T = TypeVar("T")


class Records(Generic[T]):
    """The records of a partition as a stream, for a processor that iterates over them.

    A record is acked when the loop asks for the next one, or when the function returns. If the
    function raises, the worker calls it again from the first record that is not acked. When the
    worker gives up the partition, the stream ends: the loop ends, and the function should return.

    Examples
    --------
    >>> import msgspec
    >>> class Order(msgspec.Struct):
    ...     customer: str
    >>> async def totals(records: Records[Order]) -> None:
    ...     async for order in records:
    ...         print(order)

    In lists of at most 100 records, each of which waits at most a second for more:

    >>> async def prices(records: Records[Order]) -> None:
    ...     async for batch in records.take(100, within=1):
    ...         print(len(batch))
    """

    def __init__(self, following: Callable[[int, int], Awaitable[list[T]]]) -> None:
        self._next = following
        """Acks the records returned last, and returns at most so many within some ms; none at the end."""

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if records := await self._next(1, 0):
            return records[0]
        raise StopAsyncIteration

    @checked("records.take")
    async def take(self, count: int, *, within: Duration | None = None) -> AsyncIterator[list[T]]:
        """Iterate over lists of records; all records of a list are acked together.

        Parameters
        ----------
        count
            Maximum records in one list.
        within
            How long a list waits for more records once it has one. None uses the processor's
            own ``within``, which is 0 by default.

        Raises
        ------
        ConfigurationError
            If ``count`` is no positive number.
        """
        within_ms = -1 if within is None else duration_ms(within, "within")
        while records := await self._next(count, within_ms):
            yield records
