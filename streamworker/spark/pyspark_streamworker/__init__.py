"""How Spark finds ``format("streamworker")`` by itself.

Spark imports every top-level package named ``pyspark_*`` and takes its ``DefaultSource``. The
build puts this one beside ``streamworker`` at the top level of the wheel.
"""

from streamworker.spark.source import StreamworkerDataSource


class DefaultSource(StreamworkerDataSource):
    """The source under the name that Spark looks for."""


__all__ = ["DefaultSource"]
