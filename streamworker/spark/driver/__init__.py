"""What runs in Spark's driver: the session, the queries of pipelines, and their checks.

An app's pipelines become queries with a checkpoint directory each, and one driver holds the lock of each.
The checks refuse, before a query starts, what would lose or repeat rows later. A query that fails is started
again if its failure may pass.
"""
