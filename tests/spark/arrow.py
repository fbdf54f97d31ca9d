"""The rows of a micro-batch as Spark hands them to a sink, without a JVM."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass
class Rows:
    """What the sinks ask of a DataFrame that passes through the driver."""

    table: pa.Table

    def selectExpr(self, *_: Any) -> "Rows":  # noqa: N802, Spark's name
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.table
