"""The manifests of deploy/kubernetes: each is one of Kubernetes, and says what streamworker says."""

import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from streamworker.cli.root import app as command_line
from streamworker.cli.workers.probes import probes
from streamworker.redisio.admin.rights import ROLE_NAMES
from streamworker.runtime.watch.health import Health
from streamworker.settings import Settings
from streamworker.variables import ENV_PREFIX
from tests.deploy.manifests import (
    BUILT,
    FOLDER,
    OTHERS,
    WORKERS,
    build,
    built,
    needs_kubectl,
    pods,
    sources,
    validate,
)


def test_each_file_is_a_manifest_of_kubernetes() -> None:
    """Each field is one that Kubernetes knows, of the type that it takes."""
    for path, manifest in sources():
        if path != "pods/pod.yaml":  # That one is a patch, and lacks a selector.
            validate(manifest)


@needs_kubectl
@pytest.mark.parametrize("name", BUILT)
def test_kustomize_builds_manifests_of_kubernetes_alone(name: str) -> None:
    for manifest in built(name):
        validate(manifest)
    assert {manifest["kind"] for manifest in built(name)} & OTHERS.keys() <= {"PodMonitor", "ScaledObject"}


@needs_kubectl
@pytest.mark.parametrize("name", BUILT)
def test_pods_have_the_least_rights(name: str) -> None:
    """As the standard `restricted` of Kubernetes asks, and with a file system that cannot be written."""
    for _, template, container in pods(built(name)):
        pod, own = template["spec"]["securityContext"], container["securityContext"]
        assert pod["runAsNonRoot"] and pod["runAsUser"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["capabilities"] == {"drop": ["ALL"]} and own["readOnlyRootFilesystem"]
        assert own["allowPrivilegeEscalation"] is template["spec"]["automountServiceAccountToken"] is False
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


@needs_kubectl
@pytest.mark.parametrize("name", BUILT)
def test_pods_run_commands_and_settings_that_exist(name: str) -> None:
    """Each option is one of its command, and each variable sets something."""
    settings = {f"{ENV_PREFIX}{field.name.upper()}" for field in fields(Settings)}
    root = typer.main.get_command(command_line)
    for _, _, container in pods(built(name)):
        values = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        assert {variable for variable in values if variable.startswith(ENV_PREFIX)} <= settings
        command, args = root, [arg.replace("$(POD)", "workers-0") for arg in container["args"]]
        while isinstance(command, typer.core.TyperGroup):
            command = command.commands[args.pop(0)]
        command.make_context(str(command.name), args)


@needs_kubectl
@pytest.mark.parametrize("name", BUILT)
def test_each_program_has_the_url_of_one_role(name: str) -> None:
    """The Secret has a key for it, and the URL logs in as that user over TLS."""
    (secret,) = [manifest for manifest in built(name) if manifest["kind"] == "Secret"]
    roles = secret["data"].keys()
    assert roles <= set(ROLE_NAMES)
    for _, _, container in pods(built(name)):
        (url,) = [entry for entry in container["env"] if entry["name"] == f"{ENV_PREFIX}REDIS_URL"]
        reference = url["valueFrom"]["secretKeyRef"]
        assert reference["name"] == secret["metadata"]["name"] and reference["key"] in roles
    for line in (FOLDER / "pods" / "redis.env").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            role, _, url = line.partition("=")
            assert Settings(redis_url=url).redis_url.startswith(f"rediss://shop-{role}:")


@needs_kubectl
@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_probed_and_given_time_to_drain(name: str) -> None:
    """Kubernetes kills a worker later than it ends by itself, and starts it anew if it cannot go on."""
    (worker,) = [found for found in pods(built(name)) if found[0] == "workers"]
    _, template, container = worker
    assert template["spec"]["terminationGracePeriodSeconds"] * 1000 > Settings().shutdown_timeout_ms
    asked = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert asked == probes(Health()).keys()
    (port,) = container["ports"]
    assert f"--health-port=[::]:{port['containerPort']}" in container["args"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


@needs_kubectl
def test_a_static_worker_keeps_its_seat_until_its_pod_is_back() -> None:
    """Its id is the name of its pod, which stays. A pod takes longer to come back than a process."""
    (worker,) = [found for found in pods(built("static-ids")) if found[0] == "workers"]
    assert "--static-id=$(POD)" in worker[2]["args"]
    (hold,) = [entry["value"] for entry in worker[2]["env"] if entry["name"] == f"{ENV_PREFIX}HOLD_MS"]
    assert int(hold) > Settings().hold_ms
    assert not any(
        "--static-id" in arg for _, _, container in pods(built("base")) for arg in container["args"]
    )


@needs_kubectl
@pytest.mark.parametrize("name", WORKERS)
def test_selectors_select_pods_of_the_same_manifests(name: str) -> None:
    labels = [template["metadata"]["labels"] for _, template, _ in pods(built(name))]
    for manifest in built(name):
        spec = manifest.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            wanted = selector["matchLabels"].items() if selector else ()
            assert not selector or any(wanted <= pod.items() for pod in labels), manifest["metadata"]["name"]


@needs_kubectl
@pytest.mark.parametrize(("old", "new"), [(old, new) for old in WORKERS for new in WORKERS if old != new])
def test_the_page_says_what_to_delete_of_the_folder_that_was_applied_before(old: str, new: str) -> None:
    """`kubectl apply` leaves it, so that old workers would run beside the new ones."""
    left, there = ({(each["kind"], each["metadata"]["name"]) for each in built(name)} for name in (old, new))
    page = (FOLDER.parents[1] / "docs/deploy.md").read_text("utf-8")
    for kind, name in left - there:
        (line,) = re.findall(
            rf"^\| (.*) \| `kubectl -n shop delete {kind.lower()}/{name}`", page, re.MULTILINE
        )
        assert f"`{old}`" in line.partition(" to ")[0]
        assert f"`{new}`" in line.partition(" to ")[2] or line.endswith("to another one")


@needs_kubectl
@pytest.mark.parametrize("name", WORKERS)
def test_an_app_without_pipelines_needs_no_image_with_spark(name: str) -> None:
    """The job before the deploy needs none either."""
    images = {container["image"] for _, _, container in pods([*built(name), *built("check")])}
    assert images == {"registry.example/shop:1"}


@needs_kubectl
def test_pods_reach_dns_wherever_it_runs() -> None:
    """In `kube-system`, at an address of the node, or on OpenShift, where it listens on another port."""
    (policy,) = [manifest for manifest in built("base") if manifest["kind"] == "NetworkPolicy"]
    anywhere = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    found = {(each["port"], each.get("protocol", "TCP")) for ports in anywhere for each in ports}
    assert {(port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")} <= found


@needs_kubectl
def test_a_monitor_finds_the_ports_that_serve_metrics() -> None:
    """Those that the annotations name as well; the pod of Spark and the job have none."""
    manifests = built("static-ids with ../spark, ../monitored")
    (monitor,) = [manifest for manifest in manifests if manifest["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for name, template, container in pods(manifests):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        served = {
            str(port["containerPort"])
            for port in container.get("ports", ())
            if port["name"] == endpoint["port"]
        }
        annotations = template["metadata"].get("annotations", {})
        assert served == {annotations[key] for key in annotations if key == "prometheus.io/port"}, name


@needs_kubectl
def test_plain_text_is_allowed_by_a_component_alone(tmp_path: Path) -> None:
    """It tells each program so."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "mesh"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "resources: [../static-ids]\ncomponents: [../plaintext]\n", "utf-8"
    )
    allow = {"name": f"{ENV_PREFIX}ALLOW_PLAINTEXT", "value": "1"}
    assert all(allow in container["env"] for _, _, container in pods(build(overlay)))
    assert not any(allow in container["env"] for name in BUILT for _, _, container in pods(built(name)))
