"""The data source: all that travels to Spark's executors, and nothing that needs a driver."""
