"""Options of the source that are refused; tests try each."""

from streamworker.errors import ConfigurationError
from streamworker.spark.source.options import parse_options

NEEDED = {"app": "shop", "stream": "orders", "processor": "price"}

VALUES = {
    **dict.fromkeys(("app", "stream", "processor", "connection", "reader", "siblings"), ("a{b}", "a:b")),
    **dict.fromkeys(
        ("startingOffsets", "endingOffsets"), ("oldest", "[1]", '{"0": -3}', '{"0": true}', '{"x": 1}')
    ),
    **dict.fromkeys(("startingTimestamp", "endingTimestamp"), ("soon",)),
    **dict.fromkeys(
        ("maxRowsPerTrigger", "minPartitions", "maxPartitions", "parallelism"), ("0", "-1", "ten")
    ),
    **dict.fromkeys(("failOnDataLoss", "includeMetadata", "includeHeaders"), ("yes", "1")),
    "otherColumns": ("keep",),
    **dict.fromkeys(("retryTimeout", "idleWait"), ("soon", "-1", "nan")),
}
"""Values that an option refuses. The source itself reads ``recordSchema``; a directory may have any name."""

TOGETHER = [
    {"startingTimestamp": "2026-01-31T12:00Z", "startingOffsets": "latest"},
    {"endingTimestamp": "2026-01-31T12:00Z", "endingOffsets": "latest"},
    {"startingTimestamp": "2026-01-31T12:00Z", "endingTimestamp": "2026-01-30T12:00Z"},
    {"minPartitions": "5", "maxPartitions": "4"},
    {"siblings": "legs"},
    {"table": "totals"},
    {"sinkPath": "lake/legs"},
    {"sinkCheckpoint": "lake/checkpoint"},
    {"path": "shop/orders/price"},
    {"maxRowPerTrigger": "10"},
    {"connection": "rediss://:password@host"},
]
"""Options that are refused together, or alone, or that are none."""

OF_A_STREAM = {"maxRowsPerTrigger": "5", "idleWait": "1", "reader": "mine"}
"""What a batch read refuses; and a stream the others."""
OF_A_BATCH = {"endingOffsets": "latest", "endingTimestamp": "2026-01-31T12:00Z"}


def refusal(given: dict[str, str], *, streaming: bool | None = None) -> str:
    """Return the error of these options beside the needed ones."""
    try:
        parse_options({**NEEDED, **given}, streaming=streaming)
    except ConfigurationError as error:
        return str(error)
    raise AssertionError(f"{given} is taken")
