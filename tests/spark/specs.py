"""Pipelines as an app declares them, for tests."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.specs import FunctionMode, PipelineSpec, ProcessorSpec, StreamSpec
from streamworker.records import RecordType


@dataclass
class Order:
    n: int
    user: str
    amount: float


def same(frame: Any) -> Any:
    """Return a frame as it is: the shortest pipeline."""
    return frame


def by_user(frame: Any) -> Any:
    """Return one row a user, of the number of orders and their amount: a whole result."""
    from pyspark.sql import functions as sf

    return frame.groupBy("user").agg(sf.count("*").alias("orders"), sf.sum("amount").alias("amount"))


def pipeline(function: Callable[..., Any] = print, *, forward: bool = True, **given: Any) -> PipelineSpec:
    """Return a pipeline over processor ``price`` that is well declared but for ``given``."""
    stream = StreamSpec(
        app="shop", name="orders", record=RecordType.of(Order), key=lambda order: order.user,
        declared_partitions=2, codec="json", records_max=100,
    )  # fmt: skip
    processor = ProcessorSpec(
        name="price", stream=stream, function=print, mode=FunctionMode.RECORD, is_async=False,
        takes_context=False, batch=10, options=ProcessorOptions(), forward=forward,
        output=stream.record if forward else None,
    )  # fmt: skip
    spec = PipelineSpec(
        name="revenue", processors=(processor,), function=function, trigger="100 milliseconds",
        path="lake/revenue", format="parquet", mode="append", checkpoint=None, options={},
    )  # fmt: skip
    return replace(spec, **given)
