"""Checks the chart against Kubernetes' schemas, and checks what its objects promise."""

from __future__ import annotations

import copy
import json
import pathlib
import re
import tarfile
from typing import Any

import jsonschema
import pytest
import yaml
from charts import CASES, CHART, Values, container, helm, is_core, of_kind, render
from conftest import DEPLOY, ROOT, StartServer, write_models

kubernetes_validate = pytest.importorskip("kubernetes_validate")

#: The oldest version that the chart's metadata allow, and the newest with a schema.
VERSIONS = ("1.30", "1.37")

IDENTITY = (
    'backend: "identity" max_batch_size: 1 '
    'input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 } '
    'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }'
)
MODELS_IN_AN_IMAGE = {"modelRepository": {"type": "image", "image": {"reference": "models:1"}}}

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
    "demand without a limit": (
        {"server": {"modelControlMode": "demand"}},
        "server.modelMemory is needed",
    ),
    "a limit without demand": ({"server": {"modelMemory": "4G"}}, "need server.modelControlMode"),
    "a limit of a GPU without demand": (
        {"server": {"modelGpuMemory": ["0:4G"]}},
        "need server.modelControlMode",
    ),
    "no bytes": ({"server": {"modelMemory": "101%"}}, "/server/modelMemory"),
    "an empty directory": ({"modelRepository": {"type": "emptyDir"}}, "needs initContainers"),
    "no image": ({"modelRepository": {"type": "image"}}, "image.reference is needed"),
    "no volume": ({"modelRepository": {"type": "volume"}}, "modelRepository.volume is needed"),
    "no address": ({"modelRepository": {"type": "bucket"}}, "bucket.url is needed"),
    "no bucket's address": (
        {"modelRepository": {"type": "bucket", "bucket": {"url": "http://models"}}},
        "must begin with s3://, gs:// or as://",
    ),
    "a folder beside a bucket": (
        {"modelRepository": {"type": "bucket", "subPath": "a", "bucket": {"url": "s3://b"}}},
        "belongs into bucket.url",
    ),
    "a bucket out of reach": (
        {
            "modelRepository": {"type": "bucket", "bucket": {"url": "s3://b"}},
            "networkPolicy": {"enabled": True},
        },
        "must let the server reach the bucket",
    ),
    "an unknown kind of volume": ({"modelRepository": {"type": "s3"}}, "modelRepository"),
    "a misspelled name": ({"autoScaling": {"enabled": True}}, "autoScaling"),
    "a misspelled name inside": ({"server": {"exitTimeoutSecs": 3}}, "exitTimeoutSecs"),
    "a text for a number": ({"replicas": "2"}, "replicas"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
# row: DEP-01
def test_kubernetes_knows_every_field(case: str, version: str) -> None:
    for manifest in filter(is_core, render(CASES[case])):
        kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)


def test_models_in_an_image_need_a_newer_kubernetes() -> None:
    """They are as in values.yaml."""
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
    """The only remark is that the chart has no icon."""
    messages = helm.lint(str(CHART))["messages"]
    assert [one["error"] for one in messages] == ["icon is recommended"]


def test_the_schema_covers_every_value() -> None:
    """A value without an entry in the schema couldn't be set."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def test_every_value_has_an_effect() -> None:
    """A template reads each path in values.yaml."""
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
    """The grace period is longer than what it must cover, regardless of the settings."""
    for values in ({}, {"server": {"exitTimeoutSeconds": 300}, "drain": {"preStopSeconds": 45}}):
        manifests = render(values)
        pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
        (flag,) = (one for one in container(manifests)["args"] if "exit-timeout-secs" in one)
        sleep = container(manifests)["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] > sleep + int(flag.split("=")[1])


# row: SEC-04
def test_pods_have_no_privileges() -> None:
    """The requirements of Kubernetes' profile "restricted", and a read-only root."""
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


# row: CLD-02 CLD-04
def test_a_bucket_is_read_with_the_credentials_that_were_named() -> None:
    """Apart from /tmp, its copies are the only thing that may be written."""

    def parts(case: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        manifests = render(CASES[case])
        pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
        server = container(manifests)
        variables = {one["name"]: one.get("value") for one in server["env"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        (address,) = (one for one in server["args"] if one.startswith("--model-repository="))
        wanted = CASES[case]["modelRepository"]["bucket"]["url"]
        assert address == f"--model-repository={wanted}"
        for cloud in ("AWS", "GCS", "AZURE"):
            assert variables[f"TRITON_{cloud}_MOUNT_DIRECTORY"] == "/copies"
        writable = [one["mountPath"] for one in server["volumeMounts"] if not one.get("readOnly")]
        assert sorted(writable) == ["/copies", "/tmp"]
        assert "models" not in volumes
        return server, variables, volumes

    server, variables, volumes = parts("a bucket, with keys")
    assert server["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert variables["AWS_DEFAULT_REGION"] == "eu-west-1"

    server, variables, volumes = parts("a bucket, with a file")
    assert variables["GOOGLE_APPLICATION_CREDENTIALS"] == "/credentials/key.json"
    assert volumes["credentials"]["secret"]["secretName"] == "account"
    assert volumes["copies"]["emptyDir"] == {"sizeLimit": "50Gi"}
    (mount,) = (one for one in server["volumeMounts"] if one["name"] == "credentials")
    assert mount == {"name": "credentials", "mountPath": "/credentials", "readOnly": True}

    server, variables, volumes = parts("a bucket, with a role")
    assert "envFrom" not in server and "credentials" not in volumes


def test_a_replica_count_and_an_autoscaler_exclude_each_other() -> None:
    """Otherwise, each upgrade would undo the autoscaler's changes."""
    for case, fixed in (("defaults", True), ("autoscaling", False), ("keda", False)):
        assert ("replicas" in of_kind(render(CASES[case]), "Deployment")["spec"]) is fixed


def test_selectors_find_the_pods() -> None:
    """Services, budgets, monitors and policies select what the Deployment creates."""
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


def test_keda_adds_up_queues_and_averages_times() -> None:
    triggers = of_kind(render(CASES["keda"]), "ScaledObject")["spec"]["triggers"]
    pending, time = triggers
    assert pending["metadata"]["query"] == (
        'sum(nv_inference_pending_request_count{namespace="prod", '
        'pod=~"demo-galatea-[a-z0-9]+-[a-z0-9]+", cluster="a"})'
    )
    assert [one["metricType"] for one in triggers] == ["AverageValue", "Value"]
    assert "\n" not in time["metadata"]["query"]


def test_the_server_takes_the_flags_for_models_on_demand(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    values = copy.deepcopy(CASES["models on demand"])
    args = container(render(values))["args"]
    assert "--model-memory=60%" in args
    assert {"--model-gpu-memory=0:8G", "--model-gpu-memory=1:80%"} < set(args)
    values["server"]["loadModels"] = []
    args = container(render(values))["args"]
    flags = [flag for flag in args if not flag.startswith("--model-repository=")]
    models = write_models(tmp_path / "models", {"a": IDENTITY})
    with start_server(models, *flags) as server:
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/a/ready").status == 400
        assert server.get("/v2/models/a/memory").json()["state"] == "not_resident"


# row: DEP-01
def test_the_server_takes_every_flag(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """This uses the longest list of flags that doesn't need certificates."""
    values = copy.deepcopy(CASES["secrets"] | CASES["everything else"])
    values.pop("tls")
    values["server"] |= CASES["secrets"]["server"] | {"loadModels": ["a"]}
    models = write_models(
        tmp_path / "models",
        {
            "a": IDENTITY,
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
