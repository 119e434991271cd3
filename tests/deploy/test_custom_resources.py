"""Tests of custom resources: those that the chart creates, and the files for KServe."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import jsonschema
import pytest
import yaml
from charts import CASES, Manifest, is_core, of_kind, render
from conftest import DEPLOY, StartServer

kubernetes_validate = pytest.importorskip("kubernetes_validate")

#: The newest version with a schema.
VERSION = "1.37"

#: A directory with CustomResourceDefinitions of KEDA, KServe and the Prometheus operator.
DEFINITIONS = os.environ.get("GALATEA_CRDS")


def files_for_kserve() -> list[Manifest]:
    """The runtime, the example, and a service with models on demand."""
    return [
        yaml.safe_load((DEPLOY / "kserve" / name).read_text())
        for name in ("runtime.yaml", "example.yaml", "demand.yaml")
    ]


def test_the_runtime_of_kserve_is_a_pod() -> None:
    """Its containers and volumes fit a pod, and the example names it."""
    runtime, *services = files_for_kserve()
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(pod, VERSION, strict=True)
    for service in services:
        model = service["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        assert model["modelFormat"] in runtime["spec"]["supportedModelFormats"]
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_the_server_takes_the_flags_for_kserve(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Everything except the repository and the ports."""
    runtime, _, demand = files_for_kserve()
    program, *flags = runtime["spec"]["containers"][0]["args"]
    kept = [flag for flag in flags if not re.match("--(model-repository|http-port|grpc-port)=", flag)]
    assert program == "tritonserver" and len(flags) - len(kept) == 3
    with start_server(tmp_path, *kept) as server:
        assert server.get("/v2/health/ready").status == 200
    more = demand["spec"]["predictor"]["model"]["args"]
    with start_server(tmp_path, *kept, *more) as server:
        assert server.get("/v2/health/ready").status == 200
        assert "galatea_model_memory_limit_bytes" in server.metrics()


def closed(schema: Any) -> Any:
    """A definition's schema that refuses additional fields, like `kubectl --validate=strict`."""
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
    """The schemas of custom resources, by version and kind."""
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
    """The schemas themselves contain patterns that Python doesn't support, so they aren't
    checked."""
    schema = schemas[manifest["apiVersion"], manifest["kind"]]
    jsonschema.Draft202012Validator(schema).validate(manifest)


def test_a_misspelled_field_of_a_custom_resource_is_noticed() -> None:
    schemas = definitions()
    manifest = of_kind(render(CASES["keda"]), "ScaledObject")
    manifest["spec"]["triggers"][0]["metricTyp"] = "Value"
    with pytest.raises(jsonschema.ValidationError):
        fits(manifest, schemas)
