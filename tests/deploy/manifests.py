"""The manifests of deploy/kubernetes, as they are written and as kustomize builds them."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="is of the extra `test`")
jsonschema = pytest.importorskip("jsonschema", reason="is of the extra `test`")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="is of the extra `test`")
Manifest = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
WORKERS = ("base", "autoscaled", "static-ids")
BUILT = (*WORKERS, "check", "static-ids with ../spark, ../monitored")
"""What a user applies; the other folders are components."""
VERSION = "1.32"
KUSTOMIZE_S = 60.0
OTHERS = {
    "Component": "of kustomize",
    "Kustomization": "of kustomize",
    "PodMonitor": "of Prometheus' operator",
    "ScaledObject": "of KEDA",
}
"""Kinds that Kubernetes' own schemas lack, so that it leaves them out. kubectl reads those of kustomize."""
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl, which builds overlays"
)


def sources() -> Iterator[tuple[str, Manifest]]:
    for path in sorted(FOLDER.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.relative_to(FOLDER).as_posix(), document


def build(folder: Path) -> list[Manifest]:
    built = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=KUSTOMIZE_S, check=False
    )
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


@cache
def built(name: str) -> list[Manifest]:
    """Return what a folder makes, with components that a user has named in `base`."""
    folder, _, components = name.partition(" with ")
    if not components:
        return build(FOLDER / folder)
    with TemporaryDirectory() as copy:
        shutil.copytree(FOLDER, copy, dirs_exist_ok=True)
        base = Path(copy, "base", "kustomization.yaml")
        base.write_text(base.read_text("utf-8").replace("[../pods]", f"[{components}, ../pods]"), "utf-8")
        return build(Path(copy, folder))


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Return the name, the template of the pod and its only container, of all that starts pods."""
    for manifest in manifests:
        if "template" in manifest.get("spec", {}):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            yield manifest["metadata"]["name"], manifest["spec"]["template"], container


def validate(manifest: Manifest) -> None:
    if manifest["kind"] not in OTHERS:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
