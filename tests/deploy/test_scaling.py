"""The ScaledObject of deploy/kubernetes, which KEDA reads; Kubernetes has no schema of it."""

import re

from streamworker.cli.workers.exporter import METRICS
from tests.deploy.manifests import built, jsonschema, needs_kubectl, sources, validate

COUNT = {"type": "integer", "minimum": 1}
SCALED_OBJECT = {
    "required": ["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "triggers"],
    "additionalProperties": False,
    "properties": {
        "scaleTargetRef": {"const": {"name": "workers"}},
        **dict.fromkeys(("minReplicaCount", "maxReplicaCount", "pollingInterval"), COUNT),
        "fallback": {
            "required": ["failureThreshold", "replicas"],
            "additionalProperties": False,
            "properties": {
                "failureThreshold": COUNT,
                "replicas": COUNT,
                "behavior": {
                    "enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]
                },
            },
        },
        "advanced": {
            "additionalProperties": False,
            "properties": {"horizontalPodAutoscalerConfig": {"required": ["behavior"], "maxProperties": 1}},
        },
        "triggers": {
            "minItems": 1,
            "items": {
                "required": ["type", "metadata"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "prometheus"},
                    "metricType": {"const": "AverageValue"},  # `fallback` asks for it
                    "metadata": {
                        "required": ["serverAddress", "query", "threshold"],
                        "additionalProperties": {"type": "string"},
                    },
                },
            },
        },
    },
}
"""What KEDA 2.18 takes of a ScaledObject's `spec`, as far as ours uses it."""


def test_the_scaled_object_is_one_of_keda() -> None:
    """Its behaviour is that of an autoscaler of Kubernetes, whose schema judges it."""
    (scaled,) = [manifest for _, manifest in sources() if manifest["kind"] == "ScaledObject"]
    jsonschema.validate(scaled["spec"], SCALED_OBJECT)
    autoscaler = {"maxReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "workers"}}
    autoscaler |= scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    validate({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": autoscaler})


def test_what_scales_is_a_metric_of_the_exporter() -> None:
    """Its labels name the app; the highest of its groups counts, since each worker runs all processors."""
    (scaled,) = [manifest for _, manifest in sources() if manifest["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    (name,) = re.findall(r"streamworker_\w+", trigger["metadata"]["query"])
    assert name in METRICS


@needs_kubectl
def test_what_scales_workers_is_the_only_one_that_counts_them() -> None:
    """A number in the manifest would undo with each deploy what KEDA has scaled."""
    workers = next(found for found in built("autoscaled") if found["metadata"]["name"] == "workers")
    assert workers["kind"] == "Deployment"
    assert "replicas" not in workers["spec"]
