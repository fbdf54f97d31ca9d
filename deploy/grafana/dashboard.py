"""The dashboard of streamworker for Grafana: python dashboard.py > streamworker.json."""

import json
from itertools import count

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
GROUP = 'app=~"$app", processor=~"$processor"'
BY = "by (app, processor)"


def _group(metric: str, by: str = BY) -> str:
    return f"sum {by} ({metric}{{{GROUP}}})"


def _rate(metric: str, by: str = BY) -> str:
    return f"sum {by} (rate({metric}{{{GROUP}}}[$__rate_interval]))"


def _sends(metric: str) -> str:
    return f'sum by (stream) (rate({metric}{{app=~"$app"}}[$__rate_interval]))'


def _quantile(metric: str, share: float = 0.99) -> str:
    rates = f"sum by (le, app, processor) (rate({metric}_bucket{{{GROUP}}}[$__rate_interval]))"
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
                "{{processor}} {{state}}": _group("streamworker_members", "by (app, processor, state)"),
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
                "{{processor}} paused": _group("streamworker_partition_paused"),
            },
        ),
        (
            "Failures and dead letters",
            "ops",
            {
                "{{processor}} {{error}}": _rate("streamworker_failures_total", "by (app, processor, error)"),
                "{{processor}} dead": _rate("streamworker_records_dead_total"),
                "{{processor}} fenced": _rate("streamworker_commits_fenced_total"),
            },
        ),
        (
            "Rebalances",
            "ops",
            {"{{processor}} {{cause}}": _rate("streamworker_rebalances_total", "by (app, processor, cause)")},
        ),
        ("Event loop lag", "s", {"{{instance}}": 'streamworker_event_loop_lag_seconds{app=~"$app"}'}),
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
            {"{{timer}}": 'streamworker_timer_next_run_timestamp_seconds{app=~"$app"} - time()'},
        ),
        ("Memory", "bytes", {"{{kind}} {{name}}": 'streamworker_memory_bytes{app=~"$app"}'}),
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
    for name, label in (("app", "app"), ("processor", "processor")):
        query = f"label_values(streamworker_generation, {label})"
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
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(letter))
        panel = panel.with_target(query.datasource(SOURCE))
    return panel


if __name__ == "__main__":
    print(build(), end="")  # noqa: T201
