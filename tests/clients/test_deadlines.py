"""Tests of models that are batched by deadlines: where a deadline comes from, and which
requests are refused."""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from collector import collecting
from conftest import StartServer
from python_backend import interpreter_flag, tensors, write_model
from server import Program, Reply, Server
from test_check import errors, write
from test_spans import flags as span_flags
from transports import GrpcStream, make_inputs

pytestmark = pytest.mark.galatea_only  # Triton ignores the parameter.

#: How long executions of the slow models take, and a deadline that none of them keeps.
SLOW_MS = 2000
SHORT_MS = 1000
#: A deadline that never matters.
LONG_MS = 3_600_000

IDENTITY = """\
backend: "identity"
max_batch_size: 4
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{delay}
{more}
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
ensemble_scheduling {{ step [
  {{ model_name: "{first}" model_version: -1
     input_map {{ key: "INPUT0" value: "IN" }} output_map {{ key: "OUTPUT0" value: "between" }} }},
  {{ model_name: "slow" model_version: -1
     input_map {{ key: "INPUT0" value: "between" }} output_map {{ key: "OUTPUT0" value: "OUT" }} }}
] }}
{more}
"""


def parameter(name: str, value: object) -> str:
    """A parameter in a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def objective(microseconds: object) -> str:
    """The setting that enables deadline batching."""
    return parameter("latency_objective_us", microseconds) + "dynamic_batching { }\n"


def identity(more: str, delay_ms: int = 0) -> str:
    """A model that returns its input after a delay."""
    delay = parameter("execute_delay_ms", delay_ms) if delay_ms else ""
    return IDENTITY.format(delay=delay, more=more)


def write_models(folder: pathlib.Path) -> None:
    """The models for this file. Requests to `slow` have no deadlines except their own."""
    write(folder, "slow", identity(objective(0), SLOW_MS))
    write(folder, "objective", identity(objective(SHORT_MS * 1000), SLOW_MS))
    write(folder, "quick", identity(objective(LONG_MS * 1000)))
    write(folder, "plain", identity("dynamic_batching { }"))
    write(folder, "pause", identity("", 600))
    write(folder, "chain", ENSEMBLE.format(first="plain", more=""))
    limit = parameter("latency_objective_us", SHORT_MS * 1000)
    write(folder, "limited_chain", ENSEMBLE.format(first="plain", more=limit))
    write(folder, "late_chain", ENSEMBLE.format(first="pause", more=""))
    batches = "max_batch_size: 4 " + tensors("IN:INT32:1", "OUT:INT64:1")
    write_model(folder, "relay", batches, "relay")
    write_model(folder, "tells", batches + objective(0), "relay")
    write_model(folder, "tells_nothing", batches + "dynamic_batching { }", "relay")


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose models have learned how long executions take."""
    folder = tmp_path_factory.mktemp("deadlines")
    write_models(folder)
    with start_server(folder, interpreter_flag()) as running:
        running.wait_until_ready()
        for model in ("slow", "objective"):
            # As long as nothing is known, nothing is refused.
            assert ask(running, model).status == 200
        yield running
    assert running.process.returncode == 0


def ask(
    server: Server, model: str, headers: dict[str, str] | None = None, timeout_us: int = 0
) -> Reply:
    """A request over HTTP."""
    name = "INPUT0" if model in ("slow", "objective", "quick", "plain", "good") else "IN"
    tensor = {"name": name, "datatype": "INT32", "shape": [1, 1], "data": [7]}
    document: dict[str, Any] = {"inputs": [tensor]}
    if timeout_us:
        document["parameters"] = {"timeout": timeout_us}
    return server.infer(model, document, headers=headers)


def check_text(text: str, model: str) -> None:
    """The text of a refusal names the model, the deadline and the prediction."""
    pattern = (
        rf"the request to model '{model}' would be answered too late: its deadline is "
        r"([\d.]+) ms after its arrival, and ([\d.]+) ms are predicted"
    )
    found = re.search(pattern, text)
    assert found, text
    deadline, predicted = map(float, found.groups())
    assert 0 <= deadline <= SHORT_MS
    assert predicted >= SLOW_MS


def check_refused(reply: Reply, model: str = "slow") -> None:
    """The response is a refusal, and says when to try again."""
    assert reply.status == 503, reply
    check_text(reply.error(), model)
    milliseconds = int(reply.headers["retry-after-ms"])
    assert milliseconds >= SLOW_MS - SHORT_MS
    assert int(reply.headers["retry-after"]) == math.ceil(milliseconds / 1000)


# The sources of deadlines.


def test_the_envoy_header(server: Server) -> None:
    """A number of milliseconds."""
    check_refused(ask(server, "slow", {"x-envoy-expected-rq-timeout-ms": str(SHORT_MS)}))


def test_the_request_timeout_header(server: Server) -> None:
    """A number of seconds, with or without a fraction."""
    check_refused(ask(server, "slow", {"Request-Timeout": str(SHORT_MS // 1000)}))
    check_refused(ask(server, "slow", {"Request-Timeout": "0.5"}))


def test_the_timeout_parameter(server: Server) -> None:
    """As in Triton, a number of microseconds."""
    check_refused(ask(server, "slow", timeout_us=SHORT_MS * 1000))


def test_the_objective_of_the_model(server: Server) -> None:
    """It is a deadline for each request."""
    check_refused(ask(server, "objective"), "objective")


@pytest.mark.parametrize("short", ["envoy", "request", "timeout"])
def test_the_earliest_deadline_counts(server: Server, short: str) -> None:
    """This holds regardless of the others."""
    of = {one: SHORT_MS if one == short else LONG_MS for one in ("envoy", "request", "timeout")}
    headers = {
        "x-envoy-expected-rq-timeout-ms": str(of["envoy"]),
        "request-timeout": str(of["request"] / 1000),
    }
    check_refused(ask(server, "slow", headers, of["timeout"] * 1000))


def test_deadlines_that_are_kept(server: Server) -> None:
    """Such requests get a response."""
    headers = {"x-envoy-expected-rq-timeout-ms": str(LONG_MS), "request-timeout": "3600"}
    assert ask(server, "slow", headers, LONG_MS * 1000).status == 200
    assert ask(server, "quick").status == 200


@pytest.mark.parametrize(
    ("header", "value", "unit"),
    [
        ("x-envoy-expected-rq-timeout-ms", "1.5", "milliseconds"),
        ("request-timeout", "soon", "seconds"),
    ],
)
def test_headers_that_cannot_be_read(server: Server, header: str, value: str, unit: str) -> None:
    """The error names the header if the model uses deadlines."""
    reply = ask(server, "slow", {header: value})
    assert reply.status == 400
    assert reply.error().endswith(f"the header '{header}' is not a number of {unit}")
    assert ask(server, "plain", {header: value}).status == 200


def call(server: Server, timeout: float | None = None, **metadata: str) -> grpc.RpcError:
    """The failure of a call over gRPC, with its metadata."""
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        inputs = make_inputs(tritonclient.grpc, {"INPUT0": numpy.array([[7]], numpy.int32)})
        headers = {name.replace("_", "-"): value for name, value in metadata.items()}
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", inputs, headers=headers, client_timeout=timeout)
    failure = caught.value.__cause__ or caught.value.__context__
    assert isinstance(failure, grpc.RpcError)
    return failure


@pytest.mark.parametrize("source", ["grpc", "envoy", "request"])
def test_deadlines_of_calls(server: Server, source: str) -> None:
    """gRPC's deadline and the same headers; the trailers say when to try again."""
    match source:
        case "grpc":
            failure = call(server, timeout=SHORT_MS / 1000)
        case "envoy":
            failure = call(server, x_envoy_expected_rq_timeout_ms=str(SHORT_MS))
        case _:
            failure = call(server, request_timeout=str(SHORT_MS / 1000))
    assert failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, failure
    check_text(failure.details(), "slow")
    trailers = {**dict(failure.initial_metadata()), **dict(failure.trailing_metadata())}
    assert int(trailers["retry-after-ms"]) >= SLOW_MS - SHORT_MS
    assert trailers["grpc-retry-pushback-ms"] == trailers["retry-after-ms"]


def test_a_deadline_that_has_passed(server: Server) -> None:
    """gRPC clients can tell it apart by its status."""
    failure = call(server, request_timeout="0")
    assert failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    check_text(failure.details(), "slow")
    check_refused(ask(server, "slow", {"request-timeout": "0"}))


def test_requests_of_streams(server: Server) -> None:
    """A refusal is a message, and the stream continues."""
    with GrpcStream(server) as stream:
        tensor = {"INPUT0": numpy.array([[7]], numpy.int32)}
        stream.send("slow", tensor, timeout=SHORT_MS * 1000)
        with pytest.raises(InferenceServerException) as caught:
            stream.receive()
        check_text(caught.value.message(), "slow")
        stream.send("quick", tensor)
        assert stream.receive()[1]["OUTPUT0"].tolist() == [[7]]


# Requests that lead to other requests.


def test_steps_of_ensembles(server: Server) -> None:
    """The deadline of the ensemble's request is also that of its steps, and the same is true of
    its objective."""
    check_refused(ask(server, "chain", {"request-timeout": str(SHORT_MS / 1000)}))
    check_refused(ask(server, "chain", timeout_us=SHORT_MS * 1000))
    check_refused(ask(server, "limited_chain"))
    assert ask(server, "chain").status == 200


def test_time_that_earlier_steps_took(server: Server) -> None:
    """The second step can keep the deadline only without the first."""
    reply = ask(server, "late_chain", {"request-timeout": str((SLOW_MS + 500) / 1000)})
    assert reply.status == 503, reply
    assert "the request to model 'slow' would be answered too late" in reply.error()
    assert int(reply.headers["retry-after-ms"]) >= 100


def test_calls_of_models(server: Server) -> None:
    """A Python model's call has the deadline of the request that the model serves."""
    reply = ask(server, "relay", {"request-timeout": str(SHORT_MS / 1000)})
    assert reply.status == 503
    check_text(reply.error(), "slow")
    assert ask(server, "relay").json()["outputs"][0]["data"] == [7]


def test_the_timeout_that_backends_see(server: Server) -> None:
    """The time left until the deadline, if the model uses deadlines."""
    headers = {"request-timeout": str(LONG_MS // 1000)}

    def seen(model: str, timeout_us: int = 0) -> int:
        return ask(server, model, headers, timeout_us).json()["outputs"][0]["data"][0]

    assert 0 < seen("tells") < LONG_MS * 1000
    assert 0 < seen("tells", 5_000_000) < 5_000_000
    assert seen("tells_nothing") == 0
    assert seen("tells_nothing", 5_000_000) == 5_000_000


# The visible effects, and the behaviour that stays the same.


def test_models_without_an_objective(server: Server) -> None:
    """They ignore deadlines."""
    headers = {"x-envoy-expected-rq-timeout-ms": "0", "request-timeout": "0"}
    assert ask(server, "plain", headers, 1).status == 200
    assert ask(server, "plain", timeout_us=1).status == 200


def counter(server: Server, name: str, model: str, reason: str) -> int:
    """A counter for a given reason."""
    labels = rf'(?=.*model="{model}")(?=.*reason="{reason}")'
    (value,) = re.findall(rf"^{name}{{{labels}.*}} (\d+)", server.metrics(), re.MULTILINE)
    return int(value)


def test_refusals_are_counted(server: Server) -> None:
    """Both Triton's counter and ours count it."""
    names = [("nv_inference_request_failure", "REJECTED")]
    names.append(("galatea_inference_unexecuted_total", "too_late"))
    before = [counter(server, name, "objective", reason) for name, reason in names]
    check_refused(ask(server, "objective"), "objective")
    after = [counter(server, name, "objective", reason) for name, reason in names]
    assert after == [count + 1 for count in before]


#: A sample that makes the costs of executions known.
WARMUP = """
model_warmup {{ name: "sample" batch_size: 1 count: {count}
  inputs {{ key: "INPUT0" value {{ data_type: TYPE_INT32 dims: [ {dims} ] zero_data: true }} }} }}
"""
#: The same model with requests of any length, in padded batches.
PADDED = parameter("batch_padding", "INPUT0=0") + parameter("batch_padding_outputs", "OUTPUT0=1")


def test_warmups_teach_what_executions_cost(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The first request is judged; without samples, nothing is known about it."""
    limit = objective(100_000)
    write(tmp_path, "cold", identity(limit, 300))
    write(tmp_path, "warm", identity(limit + WARMUP.format(count=1, dims=1), 300))
    padded = limit + PADDED + WARMUP.format(count=4, dims=8)
    write(tmp_path, "padded", identity(padded, 300).replace("dims: [ 1 ] } ]", "dims: [ -1 ] } ]"))
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [7]}
        replies = {model: server.infer(model, {"inputs": [tensor]}) for model in ("cold", "warm")}
        assert replies["cold"].status == 200, replies
        assert replies["warm"].status == 503, replies
        assert "would be answered too late" in replies["warm"].error()
        tensor |= {"shape": [1, 8], "data": [7] * 8}
        reply = server.infer("padded", {"inputs": [tensor]})
        assert reply.status == 503 and "would be answered too late" in reply.error(), reply


def test_spans_show_the_deadline(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """It is given in microseconds from the arrival, if the model uses deadlines."""
    write(tmp_path, "quick", identity(objective(LONG_MS * 1000)))
    write(tmp_path, "plain", identity("dynamic_batching { }"))
    with collecting() as collector, start_server(tmp_path, *span_flags(collector)) as running:
        running.wait_until_ready()
        for model in ("quick", "plain"):
            assert ask(running, model, timeout_us=LONG_MS * 1000).status == 200
        spans = {span.name: span.attributes for span in collector.wait_for(6)}
        assert spans["quick"]["galatea.deadline_us"] == LONG_MS * 1000
        assert "galatea.deadline_us" not in spans["plain"]


def test_priorities_and_limits_hold(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A full queue refuses requests that could still be served in time."""
    policy = "default_queue_policy { max_queue_size: 1 }"
    batching = f"dynamic_batching {{ {policy} }}"
    held = parameter("latency_objective_us", LONG_MS * 1000) + batching
    write(tmp_path, "slow", identity(held).replace("max_batch_size: 4", "max_batch_size: 1"))
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "3"}
    with start_server(tmp_path, environment=environment) as running:
        running.wait_until_ready()
        with GrpcStream(running) as stream:
            tensor = {"INPUT0": numpy.array([[7]], numpy.int32)}
            stream.send("slow", tensor)
            running.wait_for_pending("slow", 1)
            reply = ask(running, "slow")
            assert (reply.status, "Exceeds maximum queue size" in reply.error()) == (503, True)
            stream.close(cancel=True)


def test_contradicting_settings(program: Program, tmp_path: pathlib.Path) -> None:
    """A model with such a configuration doesn't load, and the error names both settings."""
    delay = "dynamic_batching { max_queue_delay_microseconds: 5 }"
    limit = parameter("latency_objective_us", 5)
    write(tmp_path, "delay", identity(limit + delay))
    write(tmp_path, "bad", identity(objective("20ms")))
    write(tmp_path, "none", identity(limit))
    write(tmp_path, "good", identity(objective(5)))
    found = errors(program, tmp_path)
    texts = {model: [one["message"] for one in all_of] for model, all_of in found.items()}
    assert texts["good"] == []
    ((delayed,), (bad,), (none,)) = texts["delay"], texts["bad"], texts["none"]
    assert "max_queue_delay_microseconds" in delayed
    assert "'latency_objective_us'" in delayed
    assert "'20ms', which is not a number of microseconds" in bad
    assert "add 'dynamic_batching { }'" in none


def test_a_server_refuses_contradictions(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Other models are served."""
    write(tmp_path, "bad", identity(objective("-1")))
    write(tmp_path, "good", identity(objective(LONG_MS * 1000)))
    with start_server(tmp_path, "--exit-on-error=false") as running:
        running.wait_until_live()
        reply = running.request("POST", "/v2/repository/index")
        (bad,) = (one for one in reply.json() if one["name"] == "bad")
        assert "which is not a number of microseconds" in bad["reason"]
