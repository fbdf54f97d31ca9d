"""The rules for Prometheus and the dashboard for Grafana name what there is, and the tools accept them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from streamworker.cli.workers.exporter import METRICS
from streamworker.runtime.meters import METERS
from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
RULES, TESTS = (ROOT / "deploy/prometheus" / name for name in ("rules.yml", "rules_test.yml"))
DASHBOARD = ROOT / "deploy/grafana/streamworker.json"


def alerts() -> dict[str, str]:
    """Return the text of each alert by its name."""
    texts = RULES.read_text("utf-8").split("- alert: ")[1:]
    return {text.partition("\n")[0]: text for text in texts}


def test_the_rules_and_the_dashboard_name_only_metrics_that_exist() -> None:
    measured = {f"{name}_bucket" if meter.kind == "histogram" else name for name, meter in METERS.items()}
    known = METRICS.keys() | measured
    board = json.loads(DASHBOARD.read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [each["query"] for each in board["templating"]["list"]]
    assert len(queries) > 20
    for text in (*alerts().values(), *queries, *variables, TESTS.read_text("utf-8")):
        named = set(re.findall(r"\bstreamworker_\w+", text))
        assert named <= known, named - known


def test_the_dashboard_is_that_of_its_program() -> None:
    """Else: python deploy/grafana/dashboard.py > deploy/grafana/streamworker.json."""
    import runpy

    pytest.importorskip("grafana_foundation_sdk", reason="is of the extra `test`")
    made = runpy.run_path(str(ROOT / "deploy/grafana/dashboard.py"))["build"]()
    assert DASHBOARD.read_text("utf-8") == made


def test_each_alert_waits_has_a_severity_and_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs/monitoring.md").read_text("utf-8")
    for name, text in alerts().items():
        assert re.search(r"\n        for: \d+m\n        labels: {severity: (critical|warning)}\n", text), name
        (runbook,) = re.findall(r"runbook: (\S+)#(\S+)", text)
        assert runbook[1] in anchors(ROOT / runbook[0]), f"{name} names {'#'.join(runbook)}"
        assert f"| `{name}` |" in page
    assert set(re.findall(r"\| `(Streamworker\w+)` \|", page)) == alerts().keys()


def test_each_alert_is_tried_when_its_cause_begins_hours_later_and_when_it_has_ended() -> None:
    """An alert that holds only at the beginning says an hour later that all is well."""
    yaml = pytest.importorskip("yaml", reason="is of the extra `test`")
    tried: set[str] = set()
    for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"]:
        looks = [(_minutes(look["eval_time"]), look) for look in test.get("alert_rule_test", ())]
        if [bool(look["exp_alerts"]) for _, look in looks] == [True, True, False]:
            (began, first), (later, second), (ended, third) = looks
            assert later - began >= 180 and ended > later, test["name"]
            (name,) = {each["alertname"] for each in (first, second, third)}
            tried.add(name)
    assert tried == alerts().keys()


def _minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def test_no_sum_adds_up_two_environments() -> None:
    """Neither in a rule nor in a panel: what staging works off hides nothing of production."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    texts = (*alerts().values(), *queries)
    for kept in re.findall(r"\b(?:by|on) \(([^)]*)\)", "\n".join(texts)):
        assert {"cluster", "namespace", "app"} <= set(kept.split(", ")), kept
    assert not any(re.search(r"\b(sum|max|min|count|avg) ?\(", text) for text in texts)
    assert all('cluster=~"$cluster", namespace=~"$namespace"' in query for query in queries)


@pytest.mark.full("needs promtool of the package prometheus")
@pytest.mark.timeout(600)  # On a busy machine the rules take more than a minute.
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "rules", "rules.yml"), "SUCCESS"),
        (("check", "config", "prometheus.yml"), "is valid prometheus config"),
        (("test", "rules", "rules_test.yml"), "SUCCESS"),
    ],
)
def test_promtool_accepts_the_files_and_each_alert_fires_on_its_cause_only(
    arguments: tuple[str, ...], says: str
) -> None:
    command, told = ["promtool", *arguments], subprocess.PIPE
    ran = subprocess.run(command, cwd=RULES.parent, stdout=told, stderr=told, text=True, check=False)
    assert (ran.returncode, says in ran.stdout) == (0, True), ran.stdout + ran.stderr
