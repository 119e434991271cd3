"""Tests of models for Triton's own Python backend that call and load other models."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from collector import collecting
from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    tensors,
    write_model,
)
from server import Server, wait_until
from test_spans import flags as span_flags
from transports import RESPONSE_SECONDS_MAX, Grpc


ADD_SUB = tensors("INPUT0:FP32 INPUT1:FP32", "OUTPUT0:FP32 OUTPUT1:FP32")
BATCHES = "max_batch_size: 16 "
DECOUPLED = "model_transaction_policy { decoupled: true }"
#: Two steps of an ensemble, both in Python.
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 16
ensemble_scheduling {
  step { model_name: "add_sub" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" }
    input_map { key: "INPUT1" value: "INPUT1" }
    output_map { key: "OUTPUT0" value: "SUM" }
    output_map { key: "OUTPUT1" value: "DIFFERENCE" } }
  step { model_name: "add_sub" model_version: -1
    input_map { key: "INPUT0" value: "SUM" }
    input_map { key: "INPUT1" value: "DIFFERENCE" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" }
    output_map { key: "OUTPUT1" value: "OUTPUT1" } }
}
"""
SUM = {"OUTPUT0": [[11.0, 22.0]], "OUTPUT1": [[-9.0, -18.0]]}
EXPLICIT = "--model-control-mode=explicit"
ACTIVITIES = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
MODELS = ["add_sub", "bls", "describe", "errors", "repeat", "sender", "ensemble"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("python_calls")
    text = tensors("IN:STRING", "OUT:STRING")
    for name, config, python in [
        ("add_sub", BATCHES + ADD_SUB, "add_sub"),
        ("on_demand", BATCHES + ADD_SUB, "add_sub"),
        ("bls", tensors("WAY:STRING:1 ARGUMENT:STRING:1", "OUT:STRING"), "bls"),
        ("describe", tensors("IN:FP32", "OUT:STRING"), "describe"),
        ("errors", BATCHES + text, "errors"),
        ("repeat", tensors("IN:INT32 WAY:STRING:1", "OUT:INT32:1") + DECOUPLED, "repeat"),
        ("sender", tensors("IN:INT32", "OUT:INT32"), "sender"),
    ]:
        write_model(folder, name, config, python)
    (folder / "ensemble" / "1").mkdir(parents=True)
    (folder / "ensemble" / "config.pbtxt").write_text(ENSEMBLE + ADD_SUB)
    return folder


@pytest.fixture(scope="module")
def server(start_python: PythonServer, repository: pathlib.Path) -> Iterator[Server]:  # noqa: F811
    loads = [f"--load-model={name}" for name in MODELS]
    with start_python(repository, EXPLICIT, *loads) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def call_result(server: Server, way: str, argument: str) -> Any:
    """The response of the model that calls the others."""
    client = Grpc(server)
    texts = {"WAY": way, "ARGUMENT": argument}
    inputs = {name: numpy.array([text.encode()], numpy.object_) for name, text in texts.items()}
    try:
        return json.loads(client.infer("bls", inputs)["OUT"][0])
    finally:
        client.close()


@pytest.mark.parametrize("way", ["sync", "preferred"])
# row: BLS-02
def test_a_call(server: Server, way: str) -> None:
    assert call_result(server, way, "add_sub") == SUM


def test_a_call_of_an_ensemble(server: Server) -> None:
    assert call_result(server, "sync", "ensemble") == {
        "OUTPUT0": [[2.0, 4.0]],
        "OUTPUT1": [[20.0, 40.0]],
    }


@pytest.mark.parametrize(("way", "count"), [("many", 50), ("concurrent", 20)])
def test_many_calls(server: Server, way: str, count: int) -> None:
    expected = [
        {"OUTPUT0": [[number + 10.0, 22.0]], "OUTPUT1": [[number - 10.0, -18.0]]}
        for number in range(count)
    ]
    assert call_result(server, way, "add_sub") == expected


def test_calls_with_large_tensors(server: Server) -> None:
    assert call_result(server, "large", "add_sub") is True


# row: BLS-04
def test_a_call_carries_its_parameters(server: Server) -> None:
    seen = call_result(server, "parameters", "describe")
    assert seen["inputs"] == [["IN", [1.5]]]
    assert seen["id"] == "inner"
    assert seen["correlation_id"] == 9
    assert seen["flags"] == 1
    assert seen["timeout"] == 5_000_000
    assert seen["parameters"] == {"text": "é", "number": -3, "yes": True}
    assert seen["outputs"] == ["OUT"]


@pytest.mark.parametrize(
    ("way", "argument", "parts"),
    [
        ("sync", "nobody", ["Model nobody - Error when running inference", "not ready"]),
        ("sync", "on_demand", ["Model on_demand - Error when running inference", "not ready"]),
        ("version", "add_sub", ["Model add_sub - Error when running inference", "not ready"]),
        ("missing_input", "add_sub", ["Model add_sub - Error", "expected 2 inputs but got 1"]),
        ("unknown_output", "add_sub", ["Model add_sub - Error", "NOBODY"]),
        ("error", "plain", ["a plain error"]),
        ("error", "NOT_FOUND", ["error NOT_FOUND"]),
        ("error", "exception", ["the model raised"]),
        ("decoupled_called_plainly", "now", ["Model repeat is using the decoupled"]),
    ],
)
def test_calls_that_fail(server: Server, way: str, argument: str, parts: list[str]) -> None:
    response = call_result(server, way, argument)
    assert list(response) == ["error"]
    assert [part for part in parts if part not in response["error"]] == []
    assert call_result(server, "sync", "add_sub") == SUM


@pytest.mark.parametrize("way", ["now", "later"])
# row: DEC-03 BLS-02
def test_calls_of_decoupled_models(server: Server, way: str) -> None:
    values = [{"OUT": [value]} for value in (4, 5, 6)]
    assert call_result(server, "decoupled", way) in (values, [*values, {}])
    responses = call_result(server, "decoupled_concurrent", way)
    assert len(responses) == 5
    assert all(response in (values, [*values, {}]) for response in responses)


def test_a_decoupled_call_of_a_model_that_is_not_decoupled(server: Server) -> None:
    assert call_result(server, "decoupled_of", "add_sub") in ([SUM], [SUM, {}])


@pytest.mark.galatea_only
def test_the_final_flag_may_be_sent_separately(server: Server) -> None:
    assert call_result(server, "separate_flag", "sender") == {"OUT": [1, 2, 3]}


# row: BLS-03
def test_models_load_and_unload_others(server: Server) -> None:
    assert call_result(server, "control", "on_demand") == {
        "before": False,
        "loaded": True,
        "version": True,
        "other_version": False,
        "response": SUM,
    }
    is_unloaded = lambda: server.get("/v2/models/on_demand/ready").status != 200  # noqa: E731
    wait_until(is_unloaded, RESPONSE_SECONDS_MAX, "the model is gone")
    assert call_result(server, "ready", "on_demand") is False


# row: BLS-03
def test_models_load_other_models_with_a_configuration(server: Server) -> None:
    assert call_result(server, "load_configured", "on_demand") is True
    assert server.get("/v2/models/on_demand/config").json()["max_batch_size"] == 16
    assert call_result(server, "sync", "on_demand") == SUM
    assert call_result(server, "unload", "on_demand") is True


def test_many_requests_that_call(server: Server) -> None:
    before = int(server.statistics("add_sub")["inference_count"])
    for _ in range(20):
        assert call_result(server, "sync", "add_sub") == SUM

    def counted() -> bool:
        return int(server.statistics("add_sub")["inference_count"]) == before + 20

    wait_until(counted, RESPONSE_SECONDS_MAX, "all are counted")


# row: BLS-04
def test_calls_are_traced(
    start_python: PythonServer,  # noqa: F811
    repository: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "traces.json"
    settings = ["mode=triton", f"triton,file={file}", "rate=1", "level=TIMESTAMPS"]
    flags = [f"--trace-config={one}" for one in settings]
    models = [EXPLICIT, "--load-model=bls", "--load-model=add_sub"]
    with start_python(repository, *models, *flags) as running:
        running.wait_until_ready()
        assert call_result(running, "traced", "add_sub") == SUM
        assert call_result(running, "sync", "add_sub") == SUM
    entries = json.loads(file.read_text())
    models_traced = {one["id"]: one for one in entries if "model_name" in one}
    (child,) = (one for one in models_traced.values() if "parent_id" in one)
    assert child["model_name"] == "add_sub"
    assert models_traced[child["parent_id"]]["model_name"] == "bls"
    assert sorted(one["model_name"] for one in models_traced.values()) == ["add_sub", "bls", "bls"]
    names = [
        stamp["name"]
        for one in entries
        if one["id"] == child["id"]
        for stamp in one.get("timestamps", [])
    ]
    assert sorted(names) == sorted(ACTIVITIES)


# row: PY-12
def test_contexts_reach_models_and_their_calls(
    start_python: PythonServer,  # noqa: F811
    repository: pathlib.Path,
) -> None:
    """A model reads the context of its span, and its call becomes a span within it."""
    models = [EXPLICIT, *(f"--load-model={name}" for name in ("bls", "add_sub", "describe"))]
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    tensor = {"name": "IN", "shape": [1], "datatype": "FP32", "data": [1.0]}
    with collecting() as collector:
        flags = span_flags(collector, "rate=1")
        with start_python(repository, *models, *flags) as running:
            running.wait_until_ready()
            body = json.dumps({"inputs": [tensor]}).encode()
            reply = running.request("POST", "/v2/models/describe/infer", body, headers)
            seen = json.loads(reply.json()["outputs"][0]["data"][0])["trace"]
            assert call_result(running, "traced", "add_sub") == SUM
        spans = {span.name: span for span in collector.spans() if span.name != "compute"}
    assert spans["describe"].trace == trace
    assert json.loads(seen) == {"traceparent": f"00-{trace}-{spans['describe'].number}-01"}
    assert spans["bls"].trace == spans["add_sub"].trace != trace
    executions = [
        span.number
        for span in collector.spans()
        if span.name == "compute" and span.parent == spans["bls"].number
    ]
    assert spans["add_sub"].parent in (spans["bls"].number, *executions)
