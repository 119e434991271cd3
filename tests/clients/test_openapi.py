"""Checks that docs/openapi.yaml describes the server: its routes, its responses and Triton's."""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import ROOT, StartServer
from openapi import DOCUMENT, METHODS, operations, path_of
from server import Server
from shm_clients import PAGE as PAGE_BYTES
from shm_clients import Object, shared_object

sys.path.insert(0, str(ROOT / "tests" / "differential"))

import suites  # noqa: E402

pytestmark = pytest.mark.galatea_only  # the flags of the server are its own

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")

OPERATIONS = [
    (method, template)
    for template in DOCUMENT["paths"]
    for method in operations(template)
    if template != "/metrics"
]


def strings(path: str, pattern: str) -> list[str]:
    """The strings of a source file, without its tests."""
    source = (ROOT / "crates" / path).read_text()
    return re.findall(f'"({pattern})"', source.split("#[cfg(test)]")[0])


#: The strings that have the words of all paths.
ROUTES = [
    *strings("http/src/route.rs", r"[\w/]+"),
    *strings("dispatch/src/dispatcher/reports/mod.rs", r"[\w/]+"),
    *strings("http/src/api/dashboard.rs", r"/[\w/]+"),
]
JSON = "application/json"
IDENTITY = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
"""
REQUEST = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
CONFIG = {
    "backend": "identity",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
}
#: A body for each operation that takes one, but for that of a registration.
BODIES: dict[str, Any] = {
    "infer": REQUEST | {"id": "a", "parameters": {"priority": 1}},
    "generate": {"INPUT0": 1.5},
    "repositoryIndex": {"ready": True},
    "loadModel": {"parameters": {"config": json.dumps(CONFIG)}},
    "unloadModel": {"parameters": {"unload_dependents": False}},
    "changeLogSettings": {"log_verbose_level": 0, "log_format": "default"},
    "changeTraceSettings": {"trace_rate": "7", "trace_count": None},
    "changeModelTraceSettings": {"trace_level": ["TIMESTAMPS"], "trace_rate": "7"},
}

#: What is there and has no success, because repositories have no names, there are no GPUs, and
#: the stream demands a header.
REFUSED = ("loadModelOf", "unloadModelOf", "cudaRegion", "registerCudaRegion",
           "dashboardEvents", "modelTraffic", "versionTraffic")


@functools.cache
def template_of(path: str) -> str | None:
    """The path in the document that matches a path, preferring one without names."""
    for template in sorted(DOCUMENT["paths"], key=lambda one: one.count("{")):
        pattern = re.sub(r"\\{(\w+)\\}", r"[^/]+", re.escape(template))
        digits = pattern.replace("versions/[^/]+", r"versions/\d+")
        if re.fullmatch(digits, path):
            return template
    return None


def check(schema: dict[str, Any], value: Any) -> None:
    """Validates a value, with references into the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def schema_of(method: str, template: str, status: int, kind: str) -> dict[str, Any] | None:
    """The schema of a response; None if it has no body of this kind."""
    responses = DOCUMENT["paths"][template][method]["responses"]
    response = responses.get(str(status), responses.get("default"))
    assert response is not None, (method, template, status)
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
    found = response.get("content", {}).get(kind)
    return None if found is None else found["schema"]


def test_the_document_is_valid() -> None:
    """This uses OpenAPI's own validator."""
    validator = pytest.importorskip("openapi_spec_validator", reason="needs its package")
    validator.validate(DOCUMENT)


@pytest.fixture(scope="module")
def open_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that refuses no endpoint."""
    repository = tmp_path_factory.mktemp("open")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(IDENTITY)
    traces = f"--trace-config=triton,file={repository / 'traces.json'}"
    explicit = ("--model-control-mode=explicit", "--load-model=m")
    allowed = (
        "--allow-client-shm=true", "--allow-dashboard=true", "--allow-traffic-recording=true"
    )
    with start_server(repository, *explicit, *allowed, traces) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def demand_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that loads models on demand."""
    repository = tmp_path_factory.mktemp("demand")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(IDENTITY)
    with start_server(repository, "--model-control-mode=demand", "--model-memory=1G") as running:
        yield running.wait_until_ready()


def status_of(connection: http.client.HTTPConnection, method: str, path: str) -> int:
    """The status of a request without a body."""
    connection.request(method, path)
    response = connection.getresponse()
    response.read()
    return response.status


def paths_to_try() -> Iterator[str]:
    """All paths of up to two of the words in routes, each after the words that it follows."""
    words = {
        word
        for text in ROUTES
        for word in text.strip("/").split("/")
        if word
    }
    assert {"dashboard", "infer", "scheduler", "trace", "unregister", "v2"} <= words
    heads = {"/v2"} | {
        path_of(template)[: match.end()]
        for template in DOCUMENT["paths"]
        for match in re.finditer(r"/(?=\w)", path_of(template))
    }
    for head in sorted(head.rstrip("/") for head in heads):
        yield head
        for count in (1, 2):
            for parts in itertools.product(sorted(words), repeat=count):
                yield "/".join([head, *parts])


def test_every_route_is_in_the_document(open_server: Server) -> None:
    """A path with endpoints refuses a method that none of them has."""
    connection = http.client.HTTPConnection("127.0.0.1", open_server.http_port, timeout=60)
    missing = []
    tried = set(paths_to_try())
    assert len(tried) > 5000
    for path in sorted(tried):
        status = status_of(connection, "PATCH", path)
        assert status in (404, 405), path
        is_there = template_of(path) not in (None, "/metrics") and not path.endswith("/memory")
        if (status == 405) != is_there:
            missing.append((path, status))
    assert missing == []


@pytest.mark.parametrize(("method", "template"), OPERATIONS)
def test_every_operation_is_there(
    open_server: Server, demand_server: Server, method: str, template: str
) -> None:
    """Other methods are refused."""
    server = demand_server if template.endswith("/memory") else open_server
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    path = path_of(template)
    # A body that isn't JSON changes nothing, whatever the operation.
    connection.request(method.upper(), path, b"x" if method == "post" else None)
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status != 405 and "Not Found" not in text, (response.status, text)
    for other in set(METHODS) - DOCUMENT["paths"][template].keys():
        assert status_of(connection, other.upper(), path) == 405


def order(server: Server, path: str, body: Any = None) -> int:
    """The status of a POST."""
    return server.request("POST", path, b"" if body is None else json.dumps(body).encode()).status


@pytest.fixture
def region() -> Iterator[Object]:
    """A shared memory object."""
    with shared_object(PAGE_BYTES) as one:
        yield one


@pytest.mark.parametrize(("method", "template"), OPERATIONS)
def test_responses_fit(
    open_server: Server, demand_server: Server, region: Object, method: str, template: str
) -> None:
    """The same is true of the requests that they respond to."""
    if template.endswith("/memory"):
        reply = demand_server.request(method.upper(), path_of(template))
        assert reply.status == 200, reply
        return check(schema_of(method, template, reply.status, JSON), reply.json())
    operation = DOCUMENT["paths"][template][method]
    name = operation["operationId"]
    body = BODIES.get(name.replace("Stream", "").replace("Version", "").removesuffix("Of"))
    assert order(open_server, "/v2/repository/models/m/load") == 200
    assert open_server.infer("m", REQUEST).status == 200
    assert order(open_server, "/v2/systemsharedmemory/unregister") == 200
    registration = {"key": region.key, "byte_size": PAGE_BYTES}
    if name == "registerSystemRegion":
        body = registration
    else:
        assert order(open_server, "/v2/systemsharedmemory/region/r/register", registration) == 200
    if body is not None:
        check(operation["requestBody"]["content"][JSON]["schema"], body)
    data = b"" if body is None else json.dumps(body).encode()
    path = path_of(template)
    reply = open_server.request(method.upper(), path, data if method == "post" else None)
    is_refused = "200" not in operation["responses"] or name in REFUSED
    assert (reply.status == 200) != is_refused, (reply.status, reply.body)
    if reply.body:
        kind = reply.headers["Content-Type"].split(";")[0]
        schema = schema_of(method, template, reply.status, kind)
        assert schema is not None, kind
        check(schema, reply.json() if kind == JSON else reply.body.decode())


def recorded() -> Iterator[tuple[str, str, int, Any]]:
    """The method, path, status and JSON of Triton's recorded responses."""
    for suite in suites.SUITES.values():
        goldens = json.loads(suite.golden_path.read_text())
        for case in suite.cases():
            reply = goldens.get(case.name)
            # The durations in statistics are not recorded.
            has_path = case.path and not case.door and not case.path.endswith("/stats")
            if reply and has_path and isinstance(reply.get("json"), (dict, list)):
                yield case.method.lower(), case.path, reply["status"], reply["json"]


def test_recorded_responses_fit() -> None:
    """Triton's responses to all requests over HTTP whose path and method exist."""
    checked = 0
    for method, path, status, value in recorded():
        template = template_of(path)
        if template is None or method not in DOCUMENT["paths"][template]:
            continue
        schema = schema_of(method, template, status, JSON)
        assert schema is not None, (method, path, status)
        try:
            check(schema, value)
        except jsonschema.ValidationError as error:
            raise AssertionError((method, path, status, value)) from error
        checked += 1
    assert checked > 500
