"""The SageMaker and Vertex AI endpoints: their routes, the length of the JSON in the content type,
archives that are loaded and unloaded, and redirects.

Model archives are where SageMaker puts them, in directories whose names contain the run's word.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from cases import CRASH, Case
from shared_memory_cases import RUN

SAGEMAKER_FLAGS = (
    "--allow-sagemaker=true",
    "--model-control-mode=explicit",
    "--load-model=identity",
    "--load-model=int32",
)
SAGEMAKER_ENVIRONMENT = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "identity"}
VERTEX_AI_FLAGS = ("--allow-vertex-ai=true", "--vertex-ai-default-model=identity")
VERTEX_AI_ENVIRONMENT = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}

ARCHIVES = pathlib.Path("/opt/ml/models")
SAGEMAKER_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_AI_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"

#: Why some requests are refused that Triton 2.51 takes.
LATER: dict[str, Any] = {"ours": "as in later releases", "ours_status": 400}
FORBIDDEN: dict[str, Any] = {"ours": "as in later releases", "ours_status": 403}

#: Why texts differ, as at the endpoint for HTTP.
RAW = "names the input"
SHAPE = "as in later releases"

CONFIG = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""

REQUEST = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
BODY = json.dumps(REQUEST).encode()
BINARY = json.dumps(
    {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "FP32",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 8},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
).encode()
TENSOR = struct.pack("<ff", 1.5, -2)


def write_models(root: pathlib.Path) -> None:
    """Two models that the endpoints serve."""
    for name, kind in [("identity", "FP32"), ("int32", "INT32")]:
        write(root / name, CONFIG % (kind, kind))


def write(directory: pathlib.Path, config: str) -> None:
    """A model that consists of only a configuration."""
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)


@contextlib.contextmanager
def archives(run: str) -> Iterator[None]:
    """The archives, while a server receives requests."""
    folder = {letter: ARCHIVES / f"{run}{letter}" for letter in "abcdef"}
    model = CONFIG % ("FP32", "FP32")
    try:
        write(folder["a"] / "model", model)
        write(folder["b"] / "model" / f"inner_{run}", model)
        write(folder["c"] / "model" / f"one_{run}", model)
        write(folder["c"] / "model" / f"whole_{run}", ENSEMBLE % f"one_{run}")
        (folder["d"] / "model").mkdir(parents=True)
        write(folder["e"] / "model", model.replace("identity", "no_such_backend"))
        write(folder["f"] / "model" / "sub", model)
        write(folder["f"] / "other", model)
        yield
    finally:
        for path in folder.values():
            shutil.rmtree(path, ignore_errors=True)


def sagemaker(name: str, method: str, path: str, body: Any = b"", **extra: Any) -> Case:
    """A request to SageMaker's endpoint."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    name = f"{name}: {method} {path}".replace("\n", " ")
    return Case(name, method, path, body=body, door="sagemaker", **extra)


def load(name: str, model: Any, url: Any, **extra: Any) -> Case:
    """A request to load an archive."""
    return sagemaker(f"load, {name}", "POST", "/models", {"model_name": model, "url": url}, **extra)


def archive(letter: str, rest: str = "/model") -> str:
    """The url of an archive."""
    return f"{ARCHIVES}/{RUN}{letter}{rest}"


def typed(prefix: str, length: object) -> dict[str, Any]:
    """A content type with the length of the JSON."""
    return {"headers": (("Content-Type", f"{prefix}{length}"),)}


def named(model: str) -> dict[str, Any]:
    """The header that names a model."""
    return {"headers": ((TARGET, model),)}


def length_cases(prefix: str, send: Any) -> Iterator[Case]:
    """The length of the JSON in the content type."""
    body, later = BINARY + TENSOR, "as in later releases"
    lengths: Sequence[tuple[object, bytes, dict[str, Any]]] = [
        (len(BINARY), body, {}),
        (f"{len(BINARY)}; charset=utf-8", body, {}),
        (f" {len(BINARY)}", body, {}),
        (len(BODY), BODY, {}),
        (0, TENSOR, {}),
        (0, TENSOR + b"x", {"ours_text": RAW}),
        (-1, body, {}),
        (len(body) + 1, body, {}),
        ("99999999999", body, {"ours_text": later}),
        ("", body, {"ours_text": later, "ours_headers": later}),
        ("x", body, {"ours_text": later, "ours_headers": later}),
    ]
    for length, content, extra in lengths:
        name = f"length {str(length)!r} with {len(content)} bytes"
        yield send(name, content, **typed(prefix, length), **extra)
    yield send("length behind something", body, **typed(f"x{prefix}", len(BINARY)))
    yield send("json type", BODY, headers=(("Content-Type", "application/json"),))
    yield send("text type", BODY, headers=(("Content-Type", "text/plain"),))
    gzip = (("Content-Encoding", "gzip"), ("Accept-Encoding", "gzip"))
    yield send("codings are not read", BODY, headers=gzip)
    unknown = (("Content-Encoding", "br"),)
    yield send("an unknown coding", BODY, headers=unknown)
    yield send("forged header", BODY, headers=(("Inference-Header-Content-Length", "3"),))


def single_model_cases() -> Iterator[Case]:
    """Health, and the default model."""
    for method in ["GET", "POST", "PUT", "DELETE"]:
        yield sagemaker("ping", method, "/ping")
    for path in ["/ping/", "/pings", "/", "/v2", "/v2/health/ready", "/invocations/", "/metrics"]:
        yield sagemaker("unknown", "GET", path)
        yield sagemaker("unknown", "POST", path)

    def invoke(name: str, body: bytes, **extra: Any) -> Case:
        return sagemaker(name, "POST", "/invocations", body, **extra)

    yield invoke("infer", BODY)
    yield invoke("infer with an id", json.dumps(REQUEST | {"id": "7"}).encode())
    yield invoke("no inputs", b"{}")
    yield invoke("wrong input", BODY.replace(b"INPUT0", b"INPUT9"))
    yield invoke("no JSON", b"x")
    for method in ["GET", "PUT", "DELETE"]:
        yield sagemaker("wrong method", method, "/invocations")
    yield sagemaker("with a query", "POST", "/invocations?a=b", BODY)
    yield from length_cases(SAGEMAKER_TYPE, invoke)


def archive_cases() -> Iterator[Case]:
    """Archives that are loaded and unloaded."""
    yield sagemaker("nothing is loaded", "GET", "/models")
    yield sagemaker("nothing is loaded", "GET", "/models/")
    yield sagemaker("nothing is loaded", "GET", "/models//invoke")
    yield sagemaker("nothing is loaded", "GET", "/models/first")
    yield sagemaker("nothing is loaded", "DELETE", "/models/first")
    yield sagemaker("nothing is loaded", "POST", "/models/first/invoke", BODY)
    yield sagemaker("not an archive", "GET", "/models/identity")
    yield sagemaker("not an archive", "POST", "/models/identity/invoke", BODY)
    yield sagemaker("not an archive", "DELETE", "/models/identity")
    yield load("a model", "first", archive("a"))
    yield sagemaker("one is loaded", "GET", "/models")
    yield sagemaker("one is loaded", "GET", "/models/first")
    yield sagemaker("one is loaded", "GET", "/modelsfirst")
    yield sagemaker("one is loaded", "GET", "/models/first/invoke")
    yield load("the same again", "first", archive("a"))
    yield load("the same under another name", "other", archive("a"))
    yield load("another under the same name", "first", archive("b"))
    yield from invoke_cases()
    yield load("a model in a folder", "second", archive("b"), **named("target"))
    yield sagemaker("named by a header", "GET", "/models")
    yield sagemaker("named by a header", "GET", "/models/second")
    invoke = "/models/second/invoke"
    yield sagemaker("without the header", "POST", invoke, BODY)
    yield sagemaker("with the header", "POST", invoke, BODY, **named("target"))
    yield sagemaker("with another's name", "POST", invoke, BODY, **named("identity"))
    yield sagemaker("with an unknown name", "POST", invoke, BODY, **named("nope"))
    yield sagemaker("with the header", "DELETE", "/models/second", **named("target"))
    yield sagemaker("unloaded", "GET", "/models/second")
    yield load("an ensemble", "whole", archive("c"))
    yield sagemaker("an ensemble", "GET", "/models/whole")
    yield sagemaker("an ensemble", "POST", "/models/whole/invoke", BODY)
    yield sagemaker("an ensemble", "DELETE", "/models/whole")
    yield sagemaker("unloaded", "POST", "/models/whole/invoke", BODY)
    yield sagemaker("first", "DELETE", "/models/first/invoke")
    yield sagemaker("first again", "DELETE", "/models/first")
    yield sagemaker("nothing is loaded again", "GET", "/models")
    yield load("the first again", "first", archive("a", "/model/"))
    yield sagemaker("with a slash", "GET", "/models/first")
    yield sagemaker("with a slash", "DELETE", "/models/first")
    yield from refused_load_cases()


def invoke_cases() -> Iterator[Case]:
    """Requests to an archive's model."""

    def invoke(name: str, body: bytes, **extra: Any) -> Case:
        return sagemaker(f"archive, {name}", "POST", "/models/first/invoke", body, **extra)

    yield invoke("infer", BODY)
    yield sagemaker("archive", "POST", "/modelsfirst/invoke", BODY)
    yield invoke("no JSON", b"x")
    yield invoke("no inputs", b"{}")
    yield invoke("wrong input", BODY.replace(b"INPUT0", b"INPUT9"))
    yield invoke("wrong shape", BODY.replace(b"[1, 2]", b"[1, 3]", 1), ours_text=SHAPE)
    yield invoke("no body", b"")
    yield from length_cases(SAGEMAKER_TYPE, invoke)
    for path in ["/models/first/invoke/", "/models/first/infer", "/models/first/invoke/x"]:
        yield sagemaker("archive, unknown", "POST", path, BODY)
    for method in ["PUT", "PATCH", "HEAD"]:
        yield sagemaker("archive, unknown", method, "/models/first/invoke")
        yield sagemaker("archive, unknown", method, "/models")


def refused_load_cases() -> Iterator[Case]:
    """Loads that fail."""
    yield load("nothing there", "m", archive("z"))
    yield load("an empty folder", "m", archive("d"))
    yield load("a broken model", "m", archive("e"))
    yield sagemaker("a broken model", "GET", "/models/m")
    yield load("a broken model again", "m", archive("e"))
    yield load("a folder of the archive", "m", archive("f", "/model/sub"))
    outside = {"ours_text": "as in later releases"}
    yield load("another folder", "m", archive("f", "/other"), **LATER)
    yield load("up and down", "m", archive("f", "/model/../../../../../nope"), **outside)
    yield load("a repository of the server", "m", "/nope", **outside)
    yield load("a relative path", "m", "opt/ml", **outside)
    yield load("an object store", "m", "s3://bucket/model", **LATER)
    for place in ["/dev/shm", "/proc/self", "/sys/kernel", "/dev/../proc/x"]:
        yield load(f"the system's {place}", "m", place, **LATER)
    yield load("a number for the url", "m", 7, ours=CRASH, ours_status=400)
    yield load("a number for the name", 7, archive("a"), ours=CRASH, ours_status=400)
    yield load("null for the name", None, archive("a"), ours=CRASH, ours_status=400)
    for body in [b"", b"{}", b"[]", b"null", b'"x"']:
        text = body.decode()
        yield sagemaker(f"load, body {text!r}", "POST", "/models", body, **LATER)
    for body in [b"{", b"x", b'{"url":"/x"} y']:
        text = body.decode()
        extra = {"ours": CRASH, "ours_status": 400}
        yield sagemaker(f"load, body {text!r}", "POST", "/models", body, **extra)


def sagemaker_cases() -> list[Case]:
    """All SageMaker cases."""
    return [*single_model_cases(), *archive_cases()]


def vertex_ai(name: str, body: bytes = b"", **extra: Any) -> Case:
    """A request to Vertex AI's endpoint."""
    return Case(f"vertex: {name}", "POST", "/predict", body=body, door="vertex-ai", **extra)


def redirected(path: str, body: bytes = b"", **extra: Any) -> Case:
    """A request that is redirected."""
    headers = ((REDIRECT, path),)
    return vertex_ai(f"to {path!r} with {len(body)} bytes", body, headers=headers, **extra)


#: Redirects without a body.
READ = [
    "v2", "v2/", "/v2", "", "v2/health", "v2/health/live", "v2/health/ready", "v2/health/x",
    "v2/models", "v2/models/identity", "v2/models/identity/", "v2/models/identity/versions/1",
    "v2/models/identity/versions/9", "v2/models/identity/versions/x", "v2/models/nope",
    "v2/models/identity/ready", "v2/models/identity/versions/1/ready", "v2/models/nope/ready",
    "v2/models/identity/config", "v2/models/nope/config", "v2/models/identity/stats",
    "v2/models/nope/stats", "v2/models/identity/generate", "v2/models/identity/generate_stream",
    "v2/models/identity/trace/setting", "v2/models/identity/other", "v2/trace/setting",
    "v2/logging", "v2/repository/index", "v2/repository/r/index", "v2/systemsharedmemory/status",
    "v2/systemsharedmemory/region/r/status", "v2/cudasharedmemory/status",
    "v2/cudasharedmemory/region/r/status", "metrics/", "health", "predict", "ping",
]
#: Redirects that change the server, which later releases forbid.
CHANGE = [
    "v2/repository/models/identity/load", "v2/repository/models/identity/unload",
    "v2/repository/r/models/identity/load", "v2/systemsharedmemory/register",
    "v2/systemsharedmemory/region/r/register", "v2/systemsharedmemory/region/r/unregister",
    "v2/systemsharedmemory/unregister", "v2/cudasharedmemory/unregister",
    "v2/cudasharedmemory/region/r/register",
]


def vertex_ai_cases() -> list[Case]:
    """All Vertex AI cases."""
    cases = [vertex_ai("infer", BODY), vertex_ai("no JSON", b"x"), vertex_ai("no inputs", b"{}")]
    for path in ["/health", "/predict", "/predict/", "/", "/v2", "/v2/health/ready", "/healthy"]:
        for method in ["GET", "POST", "PUT", "DELETE"]:
            if (method, path) != ("POST", "/predict"):
                cases.append(Case(f"vertex: {method} {path}", method, path, door="vertex-ai"))
    for method in ["GET", "PUT", "DELETE"]:
        name = f"vertex: {method} with a redirect"
        headers = ((REDIRECT, "v2"),)
        cases.append(Case(name, method, "/predict", headers=headers, door="vertex-ai"))
    cases += length_cases(VERTEX_AI_TYPE, vertex_ai)
    cases += [redirected(path) for path in READ]
    cases += [redirected(path, **FORBIDDEN) for path in CHANGE]
    cases += [
        redirected("v2/models/identity/infer", BODY),
        redirected("v2/models/identity/versions/1/infer", BODY),
        redirected("v2/models/int32/infer", BODY.replace(b"FP32", b"INT32")),
        redirected("v2/models/nope/infer", BODY),
        redirected("v2/models/identity/versions/9/infer", BODY),
        redirected("v2/models/identity/infer", b"x"),
        redirected("v2/repository/index", b'{"ready":true}'),
        redirected("v2/repository/index", b'{"ready":1}', **LATER),
    ]
    return cases
