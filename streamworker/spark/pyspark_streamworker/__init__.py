"""The package through which Spark finds ``format("streamworker")`` without registration.

Spark imports every top-level package named ``pyspark_*`` and registers its ``DefaultSource``. The
build puts this package beside ``streamworker`` at the top level of the wheel.
"""

from streamworker.spark.source.datasource import StreamworkerDataSource as DefaultSource

__all__ = ["DefaultSource"]
