"""The Helm chart, rendered with the values that users set."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from conftest import DEPLOY

helm = pytest.importorskip("helm_python")

CHART = DEPLOY / "helm" / "galatea"

Values = dict[str, Any]
Manifest = dict[str, Any]

#: What users set.
CASES: dict[str, Values] = {
    "defaults": {},
    "a claim that exists": {"modelRepository": {"persistentVolumeClaim": {"existing": "mine"}}},
    "a directory that is filled": {
        "modelRepository": {"type": "emptyDir"},
        "initContainers": [
            {
                "name": "fetch",
                "image": "fetch:1",
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            }
        ],
    },
    "another volume": {
        "modelRepository": {
            "type": "volume",
            "subPath": "production/models",
            "volume": {"nfs": {"server": "nfs.example", "path": "/models"}},
        }
    },
    "a bucket, with keys": {
        "modelRepository": {
            "type": "bucket",
            "bucket": {"url": "s3://models/production", "variablesSecret": "keys"},
        },
        "server": {"env": [{"name": "AWS_DEFAULT_REGION", "value": "eu-west-1"}]},
    },
    "a bucket, with a file": {
        "modelRepository": {
            "type": "bucket",
            "bucket": {
                "url": "gs://models",
                "fileSecret": "account",
                "fileKey": "key.json",
                "fileVariable": "GOOGLE_APPLICATION_CREDENTIALS",
                "copiesSize": "50Gi",
            },
        },
    },
    "a bucket, with a role": {
        "modelRepository": {"type": "bucket", "bucket": {"url": "as://account/models"}},
        "server": {"env": [{"name": "AZURE_STORAGE_AUTH_TYPE", "value": "default"}]},
        "serviceAccount": {"annotations": {"azure.workload.identity/client-id": "1"}},
        "podLabels": {"azure.workload.identity/use": "true"},
    },
    "autoscaling": {
        "autoscaling": {"enabled": True, "pendingRequests": 20, "queueMilliseconds": 50}
    },
    "keda": {"keda": {"enabled": True, "selector": 'cluster="a"', "authentication": "prometheus"}},
    "monitoring": {
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        }
    },
    "a network policy": {
        "networkPolicy": {
            "enabled": True,
            "clients": [{"podSelector": {"matchLabels": {"role": "client"}}}],
            "prometheus": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
            ],
            "egress": [{"ports": [{"protocol": "TCP", "port": 4318}]}],
        }
    },
    "secrets": {
        "tls": {"secretName": "certificate"},
        "restrictedApis": {"apis": ["model-repository", "model-config"], "secretName": "admin"},
        "server": {"modelControlMode": "explicit", "loadModels": ["a", "b"]},
    },
    "models on demand": {
        "server": {
            "modelControlMode": "demand",
            "loadModels": ["a"],
            "modelMemory": "60%",
            "modelGpuMemory": ["0:8G", "1:80%"],
        },
    },
    "everything else": {
        "image": {"tag": "2", "pullSecrets": [{"name": "registry"}]},
        "replicas": 1,
        "server": {
            "logVerbose": 1,
            "memoryLimit": "4G",
            "extraArgs": ["--cache-config=local,size=100000000"],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
        "extraContainers": [{"name": "sidecar", "image": "sidecar:1"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "sharedMemorySize": "1Gi",
        "drain": {"preStopSeconds": 0},
        "service": {"type": "LoadBalancer", "headless": False, "annotations": {"a": "b"}},
        "serviceAccount": {"create": False, "name": "mine", "annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "podDisruptionBudget": {"minAvailable": "50%"},
        "fullnameOverride": "x" * 70,
    },
}


def render(values: Values, name: str = "demo") -> list[Manifest]:
    """All objects that the chart creates from these values."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=name, namespace="prod")
    documents = [
        document
        for path, text in texts.items()
        if not path.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
    ]
    return [document for document in documents if document]


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    """The only object of its kind, or the first one."""
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def container(manifests: list[Manifest]) -> dict[str, Any]:
    """The server's container."""
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    return pod["containers"][0]


def is_core(manifest: Manifest) -> bool:
    """Returns true if Kubernetes itself defines the kind."""
    group = manifest["apiVersion"].split("/")[0]
    return "." not in group or group.endswith(".k8s.io")
