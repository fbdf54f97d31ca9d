"""The words by which people look for a page, where its text has others: `build.py` lets the search find them.

They weigh more than titles, and are not shown. A word that the title of the right page has needs no line here.
`tests/site/test_site.py` types what strangers typed, and says which page must be among the first three.
"""

WORDS = {
    "getting-started.md": "install pip quickstart tutorial first steps hello world",
    "sending.md": "delay later schedule a task eta countdown producer publish idempotency key deduplication id "
    "fastapi django flask starlette web application large payload blob size limit",
    "errors.md": "retry retries backoff dead letter queue dlq poison message pill skip",
    "types.md": "pydantic dataclass msgspec Decimal datetime union serialization codec avro protobuf",
    "chains.md": "pipeline of processors several steps topology dag",
    "timers.md": "cron timezone time zone periodic schedule crontab beat",
    "tables.md": "state store key value aggregate running total ktable",
    "windows.md": "event time watermark tumbling hopping session sliding aggregation lateness grace suppress",
    "concurrency.md": "async parallel calls backpressure threads in flight",
    "testing.md": "pytest xdist fake mock unit test virtual clock until_drained asyncio anyio fake_context",
    "resources.md": "dependency injection lifespan fastapi django middleware",
    "outbox.md": "postgresql transaction transactional outbox dual write idempotency sqlalchemy",
    "deploy.md": "kubernetes k8s helm docker systemd autoscale autoscaling hpa keda graceful shutdown sigterm rolling",
    "operations.md": "replay reprocess backfill reset offset rewind seek upgrade notebook jupyter tail",
    "incidents.md": "replay dead letter poison message stuck halted outage troubleshooting runbook",
    "personal-data.md": "GDPR erase delete a user encrypt pii privacy right to be forgotten",
    "monitoring.md": "prometheus grafana alerts metrics consumer lag autoscale",
    "retention.md": "trim memory maxlen backpressure full",
    "partitions.md": "repartition resize grow scale rebalance more partitions",
    "security.md": "acl tls password users multi tenant",
    "spark.md": "window join watermark jupyter notebook pyspark streaming aggregation",
    "spark-reference.md": "parquet delta duckdb polars pandas jupyter notebook read rows data frame postgresql",
    "guarantees.md": "exactly once at least once delivery order ordering idempotency",
    "settings.md": "environment variables STREAMWORKER_REDIS_URL configuration",
    "redis-keys.md": "consumer group offset checkpoint",
    "protocol.md": "consumer group rebalance offset",
    "assignments.md": "consumer group sticky partitions",
    "recipes/duplicates.md": "deduplicate idempotency idempotent exactly once",
    "recipes/fan-out.md": "scatter gather map reduce chord group",
    "recipes/http-calls.md": "async http httpx aiohttp rate limit throttle api",
    "recipes/join.md": "join merge union two streams enrich",
    "recipes/late-data.md": "window tumbling event time watermark",
    "recipes/noisy-tenant.md": "priority fairness multi tenant rate limit quota",
    "recipes/request-and-reply.md": "request reply rpc response result backend await a result",
    "recipes/session-timeout.md": "session timeout inactivity idle window reminder",
    "recipes/share-a-stream.md": "several services two apps bridge",
    "tutorials/production.md": "kubernetes backfill",
    "moving/kafka.md": "consumer group offset kafka streams",
    "api/context.md": "ctx.send ctx.forward headers",
    "api/errors.md": "RecordError exception",
}
