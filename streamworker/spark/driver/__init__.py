"""What runs in Spark's driver: the session, the queries of pipelines, and their checks."""
