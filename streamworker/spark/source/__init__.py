"""The data source: all that travels to Spark's executors, and nothing that needs a driver.

The driver plans ranges of rows by partition, and executors read them from the acked logs. Each entry must
follow the one before, by rows, source ids and epoch: a gap or a row twice is ``DataLoss``. The position that
a query has committed is told to Redis, so that nothing it has not read is trimmed.
"""
