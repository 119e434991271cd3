"""The chart, as Helm renders it, and the files for KServe, against Kubernetes' schemas."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
import re
import tarfile
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import DEPLOY, ROOT, StartServer, write_models

helm = pytest.importorskip("helm_python")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = DEPLOY / "helm" / "galatea"

#: The oldest version that the chart's metadata allow, one in between, and the newest with a schema.
VERSIONS = ("1.30", "1.33", "1.37")

#: A directory with CustomResourceDefinitions of KEDA, KServe and the Prometheus operator.
DEFINITIONS = os.environ.get("GALATEA_CRDS")

Values = dict[str, Any]
Manifest = dict[str, Any]

MODELS_IN_AN_IMAGE = {"modelRepository": {"type": "image", "image": {"reference": "models:1"}}}

#: What users set, with the kinds that it adds or takes away.
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

#: What contradicts itself or is misspelled, with a part of what Helm must say.
MISTAKES: dict[str, tuple[Values, str]] = {
    "two autoscalers": (
        {"autoscaling": {"enabled": True}, "keda": {"enabled": True}},
        "exclude each other",
    ),
    "no metric": (
        {"autoscaling": {"enabled": True, "cpuUtilization": 0}},
        "needs one of cpuUtilization",
    ),
    "no metric for KEDA": (
        {"keda": {"enabled": True, "pendingRequests": 0, "queueMilliseconds": 0}},
        "needs one of pendingRequests",
    ),
    "no secret": ({"restrictedApis": {"apis": ["trace"]}}, "restrictedApis.secretName is needed"),
    "probes locked out": ({"restrictedApis": {"apis": ["health"], "secretName": "s"}}, "/restrictedApis/apis/0"),
    "models that are not loaded": ({"server": {"loadModels": ["a"]}}, "modelControlMode=explicit"),
    "an empty directory": ({"modelRepository": {"type": "emptyDir"}}, "needs initContainers"),
    "no image": ({"modelRepository": {"type": "image"}}, "image.reference is needed"),
    "no volume": ({"modelRepository": {"type": "volume"}}, "modelRepository.volume is needed"),
    "an unknown kind of volume": ({"modelRepository": {"type": "s3"}}, "modelRepository"),
    "a misspelled name": ({"autoScaling": {"enabled": True}}, "autoScaling"),
    "a misspelled name inside": ({"server": {"exitTimeoutSecs": 3}}, "exitTimeoutSecs"),
    "a text for a number": ({"replicas": "2"}, "replicas"),
}


def render(values: Values, name: str = "demo") -> list[Manifest]:
    """All objects that the chart makes of these values."""
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
    """The only object of its kind, or the first."""
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def container(manifests: list[Manifest]) -> dict[str, Any]:
    """The server's container."""
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    return pod["containers"][0]


def is_core(manifest: Manifest) -> bool:
    """Whether Kubernetes itself knows the kind."""
    group = manifest["apiVersion"].split("/")[0]
    return "." not in group or group.endswith(".k8s.io")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
# row: DEP-01
def test_kubernetes_knows_every_field(case: str, version: str) -> None:
    for manifest in filter(is_core, render(CASES[case])):
        kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)


def test_models_in_an_image_need_a_newer_kubernetes() -> None:
    """As values.yaml says."""
    deployment = of_kind(render(MODELS_IN_AN_IMAGE), "Deployment")
    kubernetes_validate.validate(deployment, "1.33", strict=True)


def test_a_misspelled_field_is_noticed() -> None:
    deployment = of_kind(render({}), "Deployment")
    deployment["spec"]["template"]["spec"]["securityContxt"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    values, text = MISTAKES[mistake]
    with pytest.raises(helm.HelmError, match=re.escape(text)):
        render(values)


# row: DEP-01
def test_the_linter_finds_nothing() -> None:
    """But that the chart has no icon."""
    messages = helm.lint(str(CHART))["messages"]
    assert [one["error"] for one in messages] == ["icon is recommended"]


def test_the_schema_covers_every_value() -> None:
    """A value without a place in the schema could not be set."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def test_every_value_has_an_effect() -> None:
    """Each path of values.yaml is read by a template."""
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(part: dict[str, Any]) -> set[str]:
        found = set()
        for name, inner in part.get("properties", {}).items():
            found |= {name} | names(inner)
        return found

    for name in names(schema) - {"global"}:
        assert re.search(rf"\.{name}\b", templates), name


def test_the_package_holds_alerts_and_dashboard(tmp_path: pathlib.Path) -> None:
    """They are links in the repository, and files in the package."""
    package = helm.package(str(CHART), destination=str(tmp_path))
    with tarfile.open(package) as archive:
        for name, source in (
            ("alerts.yml", DEPLOY / "prometheus" / "alerts.yml"),
            ("dashboard.json", DEPLOY / "grafana" / "galatea.json"),
        ):
            member = archive.extractfile(f"galatea/files/{name}")
            assert member is not None and member.read() == source.read_bytes()


def test_the_version_is_that_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    manifest = (ROOT / "Cargo.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in manifest


def test_nothing_is_lost_when_a_pod_ends() -> None:
    """The grace period is longer than what it must hold, whatever is set."""
    for values in ({}, {"server": {"exitTimeoutSeconds": 300}, "drain": {"preStopSeconds": 45}}):
        manifests = render(values)
        pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
        (flag,) = (one for one in container(manifests)["args"] if "exit-timeout-secs" in one)
        sleep = container(manifests)["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] > sleep + int(flag.split("=")[1])


# row: SEC-04
def test_pods_have_no_privileges() -> None:
    """What the profile "restricted" of Kubernetes demands, and a root that can't be written."""
    manifests = render({})
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    security = container(manifests)["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount for mount in container(manifests)["volumeMounts"]}
    assert [path for path, mount in mounts.items() if not mount.get("readOnly")] == ["/tmp"]


def test_a_replica_count_and_an_autoscaler_exclude_each_other() -> None:
    """Else each upgrade would undo what the autoscaler did."""
    for case, fixed in (("defaults", True), ("autoscaling", False), ("keda", False)):
        assert ("replicas" in of_kind(render(CASES[case]), "Deployment")["spec"]) is fixed


def test_selectors_find_the_pods() -> None:
    """Services, budget, monitors and policies select what the Deployment makes."""
    manifests = render(CASES["monitoring"] | CASES["a network policy"])
    labels = of_kind(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    of_services = [
        manifest["metadata"]["labels"] for manifest in manifests if manifest["kind"] == "Service"
    ]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector", {}))
        wanted = selector.get("matchLabels", selector)
        if manifest["kind"] == "ServiceMonitor":
            found = [one for one in of_services if wanted.items() <= one.items()]
            assert len(found) == 1, "each pod is scraped once"
        else:
            assert wanted.items() <= labels.items(), manifest["kind"]


@dataclasses.dataclass(frozen=True)
class Query:
    """What KEDA asks Prometheus."""

    text: str
    kind: str


def queries() -> list[Query]:
    """The triggers."""
    triggers = of_kind(render(CASES["keda"]), "ScaledObject")["spec"]["triggers"]
    return [Query(one["metadata"]["query"], one["metricType"]) for one in triggers]


def test_keda_adds_up_queues_and_averages_times() -> None:
    pending, time = queries()
    assert pending.text == (
        'sum(nv_inference_pending_request_count{namespace="prod", '
        'pod=~"demo-galatea-[a-z0-9]+-[a-z0-9]+", cluster="a"})'
    )
    assert pending.kind == "AverageValue" and time.kind == "Value"
    assert "\n" not in time.text


# row: DEP-01
def test_the_server_takes_every_flag(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With the longest list of flags that needs no certificates."""
    values = copy.deepcopy(CASES["secrets"] | CASES["everything else"])
    values.pop("tls")
    values["server"] |= CASES["secrets"]["server"] | {"loadModels": ["a"]}
    models = write_models(
        tmp_path / "models",
        {
            "a": 'backend: "identity" max_batch_size: 1 '
            'input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 } '
            'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }'
        },
    )
    flags = [
        flag.replace("$(GALATEA_RESTRICTED_API_KEY)", "secret")
        for flag in container(render(values))["args"]
        if not flag.startswith("--model-repository=")
    ]
    assert len(flags) > 8
    with start_server(models, *flags) as server:
        assert server.get("/v2/models/a/config").status == 403
        path = container(render(values))["readinessProbe"]["httpGet"]["path"]
        assert server.get(path).status == 200


def files_for_kserve() -> list[Manifest]:
    """The runtime and the example."""
    return [
        yaml.safe_load((DEPLOY / "kserve" / name).read_text())
        for name in ("runtime.yaml", "example.yaml")
    ]


def test_the_runtime_of_kserve_is_a_pod() -> None:
    """Its containers and volumes fit a pod, and the example names it."""
    runtime, example = files_for_kserve()
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)
    model = example["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"] in runtime["spec"]["supportedModelFormats"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_the_server_takes_the_flags_for_kserve(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """All but the repository and the ports."""
    runtime, _ = files_for_kserve()
    program, *flags = runtime["spec"]["containers"][0]["args"]
    kept = [flag for flag in flags if not re.match("--(model-repository|http-port|grpc-port)=", flag)]
    assert program == "tritonserver" and len(flags) - len(kept) == 3
    with start_server(tmp_path, *kept) as server:
        assert server.get("/v2/health/ready").status == 200


def closed(schema: Any) -> Any:
    """A schema of a definition that knows no further fields, as `kubectl --validate=strict`."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and schema.get("type") == "object":
        free = schema.get("x-kubernetes-preserve-unknown-fields", False)
        made.setdefault("additionalProperties", free)
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


def definitions() -> dict[tuple[str, str], dict[str, Any]]:
    """The schemas of custom resources by version and kind."""
    if DEFINITIONS is None:
        pytest.skip("GALATEA_CRDS names no directory with definitions of custom resources")
    found = {}
    for path in pathlib.Path(DEFINITIONS).glob("*.yaml"):
        spec = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = schema
    return found


def test_custom_resources_fit_their_definitions() -> None:
    schemas = definitions()
    manifests = [one for case in CASES.values() for one in render(case)] + files_for_kserve()
    custom = [one for one in manifests if not is_core(one)]
    kinds = {one["kind"] for one in custom}
    assert kinds == {
        *("ScaledObject", "PodMonitor", "ServiceMonitor", "PrometheusRule"),
        *("ClusterServingRuntime", "InferenceService"),
    }
    for manifest in custom:
        fits(manifest, schemas)


def fits(manifest: Manifest, schemas: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The schemas themselves hold patterns that Python doesn't know, so they are not checked."""
    schema = schemas[manifest["apiVersion"], manifest["kind"]]
    jsonschema.Draft202012Validator(schema).validate(manifest)


def test_a_misspelled_field_of_a_custom_resource_is_noticed() -> None:
    schemas = definitions()
    manifest = of_kind(render(CASES["keda"]), "ScaledObject")
    manifest["spec"]["triggers"][0]["metricTyp"] = "Value"
    with pytest.raises(jsonschema.ValidationError):
        fits(manifest, schemas)
