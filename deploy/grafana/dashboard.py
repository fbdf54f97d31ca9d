"""The dashboard of streamworker for Grafana: python dashboard.py > streamworker.json."""

import json
from itertools import count

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
VARIABLES = ("cluster", "namespace", "app", "processor")
"""Each chooses by a label. Where the scrape adds no `cluster` or `namespace`, `.*` fits the missing label."""
APP = 'cluster=~"$cluster", namespace=~"$namespace", app=~"$app"'
GROUP = f'{APP}, processor=~"$processor"'
BY = "by (cluster, namespace, app, processor)"
PLACE = "{{cluster}} {{namespace}} {{app}}"
"""Begins each legend, so that environments and apps are told apart where several are chosen."""


def _group(metric: str, by: str = BY) -> str:
    return f"sum {by} ({metric}{{{GROUP}}})"


def _rate(metric: str, by: str = BY) -> str:
    return f"sum {by} (rate({metric}{{{GROUP}}}[$__rate_interval]))"


def _lost(metric: str, by: str) -> str:
    return f"sum {by} (increase({metric}{{{APP}}}[$__rate_interval]))"


def _sends(metric: str) -> str:
    return f"sum by (cluster, namespace, app, stream) (rate({metric}{{{APP}}}[$__rate_interval]))"


def _quantile(metric: str, share: float = 0.99) -> str:
    by = BY.replace("(", "(le, ")
    rates = f"sum {by} (rate({metric}_bucket{{{GROUP}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {rates})"


ROWS = {
    "What waits": [
        ("Records that wait", "short", {"{{processor}}": _group("streamworker_lag_records")}),
        (
            "Age of the oldest record that waits",
            "s",
            {"{{processor}}": f"streamworker_oldest_uncommitted_seconds{{{GROUP}}}"},
        ),
        (
            "Committed, of all workers, and as Redis counts them",
            "ops",
            {
                "{{processor}} by workers": _rate("streamworker_records_total"),
                "{{processor}} in Redis": _rate("streamworker_committed_records_total"),
            },
        ),
        (
            "Workers, and as many as it wants",
            "short",
            {
                "{{processor}} {{state}}": _group(
                    "streamworker_members", "by (cluster, namespace, app, processor, state)"
                ),
                "{{processor}} wants": f"streamworker_desired_workers{{{GROUP}}}",
            },
        ),
    ],
    "What is wrong": [
        (
            "Partitions that do not go on",
            "short",
            {
                "{{processor}} halted": _group("streamworker_partition_halted"),
                "{{processor}} retrying": _group("streamworker_partition_retrying"),
                "{{processor}} held up": _group("streamworker_partition_held_up"),
                "{{processor}} without an owner": _group("streamworker_partition_unowned"),
                "{{processor}} paused": _group("streamworker_partition_paused"),
            },
        ),
        (
            "Failures and dead letters",
            "ops",
            {
                "{{processor}} {{error}}": _rate(
                    "streamworker_failures_total", "by (cluster, namespace, app, processor, error)"
                ),
                "{{processor}} dead": _rate("streamworker_records_dead_total"),
                "{{processor}} fenced": _rate("streamworker_commits_fenced_total"),
            },
        ),
        (
            "Lost, of what was confirmed",
            "short",
            {
                "{{processor}} {{event}}": _lost(
                    "streamworker_records_lost_total", "by (cluster, namespace, app, processor, event)"
                ),
                "{{processor}} deleted by others": _lost("streamworker_deleted_records_total", BY),
                "{{stream}} sends": _lost(
                    "streamworker_sends_lost_total", "by (cluster, namespace, app, stream)"
                ),
            },
        ),
        (
            "Rebalances",
            "ops",
            {
                "{{processor}} {{cause}}": _rate(
                    "streamworker_rebalances_total", "by (cluster, namespace, app, processor, cause)"
                )
            },
        ),
        ("Event loop lag", "s", {"{{instance}}": f"streamworker_event_loop_lag_seconds{{{APP}}}"}),
    ],
    "How long it takes": [
        ("Calls of the function, 99 %", "s", {"{{processor}}": _quantile("streamworker_handler_seconds")}),
        ("Commits, 99 %", "s", {"{{processor}}": _quantile("streamworker_commit_seconds")}),
        (
            "Age of records at their commit",
            "s",
            {
                "{{processor}} 99 %": _quantile("streamworker_record_age_seconds"),
                "{{processor}} 50 %": _quantile("streamworker_record_age_seconds", 0.5),
            },
        ),
        (
            "Sends that were confirmed and that waited",
            "ops",
            {
                "{{stream}}": _sends("streamworker_sends_total"),
                "{{stream}} waited": _sends("streamworker_sends_waited_total"),
            },
        ),
    ],
    "Spark, timers and memory": [
        ("Lag of Spark readers", "s", {"{{reader}}": f"streamworker_reader_lag_seconds{{{GROUP}}}"}),
        ("Micro-batches", "s", {"{{reader}}": f"streamworker_reader_batch_seconds{{{GROUP}}}"}),
        (
            "Timers: time until the next run",
            "s",
            {"{{timer}}": f"streamworker_timer_next_run_timestamp_seconds{{{APP}}} - time()"},
        ),
        ("Memory", "bytes", {"{{kind}} {{name}}": f"streamworker_memory_bytes{{{APP}}}"}),
    ],
}
"""Titles of rows to their panels: a title, a unit, and queries by the legend."""


def build() -> str:
    """Return the dashboard as JSON, with one line for each panel."""
    board = (
        dashboard.Dashboard("streamworker")
        .uid("streamworker")
        .tags(["streamworker"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
    )
    for name in VARIABLES:
        query = f"label_values(streamworker_generation, {name})"
        board = board.with_variable(
            dashboard.QueryVariable(name)
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
            .all_value(".*")
        )
    for title, panels in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        for name, unit, queries in panels:
            board = board.with_panel(_panel(name, unit, queries))
    made = json.loads(JSONEncoder(sort_keys=True).encode(board.build()))
    panels = [json.dumps(panel, sort_keys=True) for panel in made.pop("panels")]
    head = json.dumps(made, sort_keys=True)[:-1]
    return head + ', "panels": [\n' + ",\n".join(panels) + "\n]}\n"


def _panel(name: str, unit: str, queries: dict[str, str]) -> timeseries.Panel:
    panel = timeseries.Panel().title(name).unit(unit).min(0 if not name.startswith("Timers") else None)
    panel = panel.datasource(SOURCE).span(6).height(7).fill_opacity(8)
    if name == "Memory":
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for letter, (legend, expr) in zip(count(ord("A")), queries.items(), strict=False):
        query = prometheus.Dataquery().expr(expr).legend_format(f"{PLACE} {legend}").ref_id(chr(letter))
        panel = panel.with_target(query.datasource(SOURCE))
    return panel


if __name__ == "__main__":
    print(build(), end="")  # noqa: T201
