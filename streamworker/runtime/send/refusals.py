"""The errors that a sender gets if Redis refuses its records, or does not confirm them in time."""

from collections.abc import Iterable

from streamworker.core.text import in_words
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendError, ProducerError, RecordError, StreamFull, StreamworkerError
from streamworker.redisio.wire.durability import Durability
from streamworker.runtime.send.lane import Lane, Part


def too_large(what: str, spec: StreamSpec, size: int, most: int) -> RecordError:
    """Return the error for a record or a row that does not fit into an entry."""
    return RecordError(
        f"A {what} of stream {spec.name!r} has {size} bytes, and entry_bytes_max is {most}.",
        remedy="Keep large values elsewhere and send where they are, or raise entry_bytes_max.",
    )


def full(spec: StreamSpec, partition: int) -> StreamFull:
    """Return the error for a partition that is at its limit."""
    return StreamFull(
        f"Partition {partition} of stream {spec.name!r} is at its limit of {spec.records_max} records, and a "
        "group has not committed them yet.",
        remedy="Start or speed up the processor that is behind (streamworker lag), or raise "
        "partition_records_max.",
    )


def too_many(spec: StreamSpec, partition: int) -> StreamFull:
    """Return the error for a partition that has its limit of records that are sent later."""
    return StreamFull(
        f"Partition {partition} of stream {spec.name!r} has {spec.records_max} scheduled records, which is "
        "its limit. Those that were sent or cancelled count for id_window.",
        remedy="Is a worker running, which sends what is due? Otherwise raise partition_records_max, or "
        "shorten id_window.",
    )


def refused_later(spec: StreamSpec, error: StreamworkerError) -> ProducerError:
    """Return the error for a refusal that follows a try without an answer."""
    return ProducerError(
        f"Stream {spec.name!r}: Redis gave no answer, and then refused: {error.message} The record may or "
        "may not be there: the first request may still be on its way.",
        remedy=error.remedy,
    )


def forgotten(spec: StreamSpec) -> ProducerError:
    """Return the error for a send whose first try had no answer, and that Redis can have forgotten since."""
    return ProducerError(
        f"Stream {spec.name!r}: Redis gave no answer for so long that it may have forgotten the first try. "
        "The record may or may not be there. To send it again could write it twice.",
        remedy="Look whether it is there. A timeout= ends a send sooner; one with an id= may be repeated for "
        "as long as id_window.",
    )


def unreadable(spec: StreamSpec, why: Exception) -> ProducerError:
    """Return the error for a record that waited when its stream grew, and that cannot be routed anew."""
    return ProducerError(
        f"Stream {spec.name!r} has grown, and a record that waited cannot be read again to be sent: "
        f"{in_words(why)}. What waited of this send was not written.",
        remedy="Send it again: it goes to the partition that has its key now.",
    )


def not_begun(spec: StreamSpec, timeout: float | None, trouble: BackendError | None) -> ProducerError:
    """Return the error for a send of which nothing has left this process; ``trouble`` says why."""
    return ProducerError(
        f"Stream {spec.name!r}: a send was not begun within {timeout} s, and nothing was written. "
        f"{trouble.message if trouble else ''}".strip(),
        remedy="Is Redis running, and can this machine reach it?",
    )


def not_grown(spec: StreamSpec, partition: int, timeout: float | None) -> ProducerError:
    """Return the error for a send that waited for the partitions that follow those that are sealed."""
    return ProducerError(
        f"Stream {spec.name!r}: partition {partition} takes no more records, and within {timeout} s "
        "nothing said which partitions follow it. Nothing was written.",
        remedy="A change of the partitions is under way, and not finished. Finish it, and send again.",
    )


def not_in_time(
    spec: StreamSpec, lane: Lane, part: Part, timeout: float | None, durability: Durability
) -> ProducerError:
    """Return the error for a part that was not confirmed before its sender's timeout."""
    waiting = sum(each.length for each in lane.parts if each.done is part.done)
    if waiting and not lane.in_flight and lane.pauses is not None:
        return full(spec, lane.partition)
    if waiting == part.length and lane.is_sealed:
        return not_grown(spec, lane.partition, timeout)
    if waiting == part.length and not lane.in_flight:
        return not_begun(spec, timeout, None)
    found_no_room = (batch.parts for batch in lane.in_flight if batch.found_no_room)
    if any(each.done is part.done for parts in found_no_room for each in parts):
        return refused_later(spec, full(spec, lane.partition))
    if lane.undurable:
        return ProducerError(
            f"Stream {spec.name!r}: within {timeout} s a record was not as safe as "
            f'durability="{durability.mode}" asks; it may be there, and may be lost. {lane.undurable}',
            remedy="Mend what it waits for. A larger timeout lets the producer wait for it.",
        )
    return ProducerError(
        f"Stream {spec.name!r}: Redis gave no answer within {timeout} s; the record may or may not be there.",
        remedy="A larger timeout lets the producer find out without writing twice.",
    )


def tell(parts: Iterable[Part], error: ProducerError) -> None:
    """Report an error to the senders that do not wait for room."""
    for part in parts:
        if part.on_full == "raise":
            part.refuse(error)
