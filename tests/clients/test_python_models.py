"""Tests of the requests and responses of models for Triton's own Python backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    tensor,
    tensors,
    write_model,
)
from server import Server, wait_until
from transports import (
    RESPONSE_SECONDS_MAX,
    TRANSPORTS,
    GrpcCalls,
    GrpcStream,
    Transport,
    make_inputs,
)


ADD_SUB = tensors("INPUT0:FP32 INPUT1:FP32", "OUTPUT0:FP32 OUTPUT1:FP32")
DATATYPES = {
    "BOOL": numpy.bool_,
    "UINT8": numpy.uint8,
    "UINT16": numpy.uint16,
    "UINT32": numpy.uint32,
    "UINT64": numpy.uint64,
    "INT8": numpy.int8,
    "INT16": numpy.int16,
    "INT32": numpy.int32,
    "INT64": numpy.int64,
    "FP16": numpy.float16,
    "FP32": numpy.float32,
    "FP64": numpy.float64,
}
ECHO = "".join(
    tensor("input", f"IN_{name}", name, "-1, 2", True)
    + tensor("output", f"OUT_{name}", name, "-1, 2")
    for name in [*DATATYPES, "STRING"]
)
DLPACK = tensors("DLPACK_IN:FP32", "DLPACK_OUT:FP32")
FORCE_CPU = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
PARAMETERS = 'parameters { key: "custom" value { string_value: "a value" } }'
SEQUENCE = """
max_batch_size: 4
sequence_batching {
  %s
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START"
    control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  %s
}
"""
CORRID = """
control_input { name: "CORRID"
  control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
ITERATIVE = "max_batch_size: 4 sequence_batching { iterative_sequence: true }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
DESCRIBE = tensors("IN:FP32", "OUT:STRING")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("python_models")
    batches = "max_batch_size: 16 dynamic_batching { }"
    text = tensors("IN:STRING", "OUT:STRING")
    number = tensors("IN:INT32", "OUT:INT32")
    for name, config, python in [
        ("add_sub", f"{batches} {ADD_SUB} instance_group {{ count: 2 kind: KIND_CPU }}", "add_sub"),
        ("echo", ECHO, "echo"),
        ("dlpack", DLPACK + FORCE_CPU, "echo"),
        ("describe", DESCRIBE + tensor("output", "OTHER", "FP32") + PARAMETERS, "describe"),
        ("direct", SEQUENCE % ("direct { }", CORRID) + DESCRIBE, "describe"),
        ("oldest", SEQUENCE % ("oldest { }", "") + DESCRIBE, "describe"),
        ("errors", batches + text, "errors"),
        ("repeat", tensors("IN:INT32 WAY:STRING:1", "OUT:INT32:1") + DECOUPLED, "repeat"),
        ("sender", number, "sender"),
        ("together", tensors("IN:INT32:1", "OUT:INT32:1") + DECOUPLED, "together"),
        ("cancelled", tensors("FILE:STRING:1", "OUT:INT32:1"), "cancelled"),
        (
            "decoupled_cancelled",
            tensors("FILE:STRING:1", "OUT:INT32:1") + DECOUPLED,
            "cancelled",
        ),
        ("flood", tensors("COUNT:INT32:1 FILE:STRING:1", "OUT:UINT8") + DECOUPLED, "flood"),
        ("metrics", tensors("IN:FP32:1", "OUT:STRING:1"), "metrics"),
        ("countdown", ITERATIVE + tensors("IN:INT32:1", "OUT:INT32:1"), "countdown"),
        (
            "decoupled_countdown",
            ITERATIVE + tensors("IN:INT32:1", "OUT:INT32:1") + DECOUPLED,
            "countdown",
        ),
    ]:
        write_model(folder, name, config, python)
    return folder


@pytest.fixture(scope="module")
def server(start_python: PythonServer, repository: pathlib.Path) -> Iterator[Server]:  # noqa: F811
    with start_python(repository) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Transport]:
    one = TRANSPORTS[request.param](server)
    yield one
    one.close()


def texts(*values: bytes | str) -> numpy.ndarray:
    """A tensor of strings with one dimension."""
    encoded = [one if isinstance(one, bytes) else one.encode() for one in values]
    return numpy.array(encoded, numpy.object_)


def described(client: Transport, model: str = "describe", **options: Any) -> dict[str, Any]:
    """The model's description of a request."""
    values = numpy.array([1.5, 2.5], numpy.float32)
    if model != "describe":
        values = values.reshape(1, 2)
    outputs = client.infer(model, {"IN": values}, **options)
    return json.loads(outputs["OUT"].flat[0])


# row: PY-01
def test_numbers(client: Transport) -> None:
    a = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    outputs = client.infer("add_sub", {"INPUT0": a, "INPUT1": 2 * a})
    numpy.testing.assert_array_equal(outputs["OUTPUT0"], 3 * a)
    numpy.testing.assert_array_equal(outputs["OUTPUT1"], -a)


def test_many_requests_at_once(server: Server) -> None:
    calls = GrpcCalls(server)
    for number in range(100):
        values = numpy.full((1, 3), number, numpy.float32)
        calls.send("add_sub", {"INPUT0": values, "INPUT1": values})
    for number in range(100):
        assert calls.wait(number)["OUTPUT0"].tolist() == [[2 * number] * 3]
    calls.close()
    statistics = server.statistics("add_sub")
    counted = lambda: int(server.statistics("add_sub")["inference_count"]) >= 100  # noqa: E731
    wait_until(counted, RESPONSE_SECONDS_MAX, "all are counted")
    assert int(statistics["inference_stats"]["fail"]["count"]) == 0


def test_only_requested_outputs(client: Transport) -> None:
    a = numpy.ones((1, 2), numpy.float32)
    outputs = client.infer("add_sub", {"INPUT0": a, "INPUT1": a}, outputs=["OUTPUT1"])
    assert list(outputs) == ["OUTPUT1"]


@pytest.mark.parametrize("datatype", DATATYPES)
# row: PY-04
def test_each_datatype(client: Transport, datatype: str) -> None:
    values = numpy.array([[0, 1], [100, 3]]).astype(DATATYPES[datatype])
    outputs = client.infer("echo", {f"IN_{datatype}": values})
    numpy.testing.assert_array_equal(outputs[f"OUT_{datatype}"], values)
    assert outputs[f"OUT_{datatype}"].dtype == values.dtype


@pytest.mark.parametrize(
    "values",
    [
        [["", "a"], ["é" * 1000, "日本"]],
        [[b"\xff\x00\xfe", b"\x00"], [b"", b"\x80"]],
        [[b"x" * 100_000, b"y"]],
    ],
    ids=["texts", "bytes", "long"],
)
def test_strings(client: Transport, values: list[list[str | bytes]]) -> None:
    array = numpy.array(
        [[one if isinstance(one, bytes) else one.encode() for one in row] for row in values],
        numpy.object_,
    )
    outputs = client.infer("echo", {"IN_STRING": array})
    numpy.testing.assert_array_equal(outputs["OUT_STRING"], array)


@pytest.mark.parametrize("datatype", ["FP32", "STRING"])
def test_tensors_without_elements(client: Transport, datatype: str) -> None:
    empty = numpy.zeros((0, 2), DATATYPES.get(datatype, numpy.object_))
    outputs = client.infer("echo", {f"IN_{datatype}": empty})
    assert outputs[f"OUT_{datatype}"].shape == (0, 2)


# row: PY-04 PY-11
def test_dlpack(client: Transport) -> None:
    values = numpy.arange(7, dtype=numpy.float32)
    outputs = client.infer("dlpack", {"DLPACK_IN": values})
    numpy.testing.assert_array_equal(outputs["DLPACK_OUT"], values)


def test_shared_memory_grows(client: Transport) -> None:
    # A region initially has one MiB.
    a = numpy.arange(4_000_000, dtype=numpy.float32).reshape(1, -1)
    outputs = client.infer("add_sub", {"INPUT0": a, "INPUT1": a})
    numpy.testing.assert_array_equal(outputs["OUTPUT0"], a + a)


# row: PY-02
def test_the_arguments_of_initialize(client: Transport, repository: pathlib.Path) -> None:
    seen = described(client)
    assert seen["args"] == {
        "model_instance_kind": "CPU",
        "model_instance_name": "describe_0",
        "model_instance_device_id": "0",
        "model_repository": str(repository / "describe"),
        "model_version": "1",
        "model_name": "describe",
    }
    config = seen["config"]
    assert config["name"] == "describe"
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 0
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["parameters"] == {"custom": {"string_value": "a value"}}
    assert config["default_model_filename"] == "model.py"
    (group,) = config["instance_group"]
    assert (group["name"], group["kind"], group["count"]) == ("describe", "KIND_CPU", 1)
    assert seen["input_config"]["dims"] == [-1]
    assert seen["output_config"]["data_type"] == "TYPE_STRING"
    assert not seen["decoupled"]


# row: PY-05
def test_how_models_see_requests(client: Transport) -> None:
    seen = described(
        client,
        request_id="seven",
        outputs=["OUT"],
        timeout=30_000_000,
        parameters={"text": "é", "number": 3, "yes": True},
    )
    assert seen["inputs"] == [["IN", [1.5, 2.5]]]
    assert seen["id"] == "seven"
    assert seen["timeout"] == 30_000_000
    assert seen["parameters"] == {"text": "é", "number": 3, "yes": True}
    assert seen["outputs"] == ["OUT"]
    assert (seen["correlation_id"], seen["flags"], seen["cancelled"]) == (0, 0, False)
    assert seen["trace"] is None


def test_a_request_without_outputs_gets_all(client: Transport) -> None:
    assert described(client)["outputs"] == ["OTHER", "OUT"]


def test_sequences(client: Transport) -> None:
    first = described(client, "direct", sequence_id=5, sequence_start=True)
    assert (first["correlation_id"], first["flags"]) == (5, 1)
    assert dict(first["inputs"])["START"] == [[1]]
    assert dict(first["inputs"])["CORRID"] == [[5]]
    last = described(client, "direct", sequence_id=5, sequence_end=True)
    assert (last["correlation_id"], last["flags"]) == (5, 2)
    assert dict(last["inputs"])["START"] == [[0]]


def test_sequences_named_by_texts(client: Transport) -> None:
    seen = described(client, "oldest", sequence_id="five", sequence_start=True, sequence_end=True)
    assert (seen["correlation_id"], seen["flags"]) == ("five", 3)


@pytest.mark.parametrize(
    ("way", "status", "grpc_status", "message"),
    [
        ("UNKNOWN", 400, "UNKNOWN", "error UNKNOWN"),
        ("INTERNAL", 500, "INTERNAL", "error INTERNAL"),
        ("NOT_FOUND", 404, "NOT_FOUND", "error NOT_FOUND"),
        ("INVALID_ARG", 400, "INVALID_ARGUMENT", "error INVALID_ARG"),
        ("UNAVAILABLE", 503, "UNAVAILABLE", "error UNAVAILABLE"),
        ("UNSUPPORTED", 501, "UNIMPLEMENTED", "error UNSUPPORTED"),
        ("ALREADY_EXISTS", 400, "ALREADY_EXISTS", "error ALREADY_EXISTS"),
        ("CANCELLED", 400, "CANCELLED", "error CANCELLED"),
        ("plain", 500, "INTERNAL", "a plain error"),
        ("exception", 500, "INTERNAL", "the model raised"),
        ("model_exception", 500, "INTERNAL", "the model raised its own"),
        ("too_few", 500, "INTERNAL", "Number of InferenceResponse"),
        ("too_many", 500, "INTERNAL", "Number of InferenceResponse"),
        ("no_list", 500, "INTERNAL", "list"),
        ("wrong_element", 500, "INTERNAL", "InferenceResponse"),
    ],
)
# row: PY-06
def test_errors(server: Server, way: str, status: int, grpc_status: str, message: str) -> None:
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "BYTES", "data": [way]}
    reply = server.infer("errors", {"inputs": [tensor]})
    assert (reply.status, message in reply.error()) == (status, True), reply
    client = TRANSPORTS["grpc"](server)
    with contextlib.closing(client), pytest.raises(InferenceServerException) as raised:
        client.infer("errors", {"IN": texts(way).reshape(1, 1)})
    assert raised.value.status() == f"StatusCode.{grpc_status}"
    assert message in raised.value.message()
    fine = {"name": "IN", "shape": [1, 1], "datatype": "BYTES", "data": ["fine"]}
    assert server.infer("errors", {"inputs": [fine]}).status == 200


# row: PY-06
def test_an_exception_has_its_traceback(client: Transport) -> None:
    with pytest.raises(InferenceServerException, match=r"(?s)Traceback|model\.py\(\d+\): execute"):
        client.infer("errors", {"IN": texts("exception").reshape(1, 1)})


def test_unrequested_outputs_are_dropped(server: Server) -> None:
    document = {
        "inputs": [{"name": "IN", "shape": [1, 1], "datatype": "BYTES", "data": ["unknown_output"]}]
    }
    reply = server.infer("errors", document)
    assert (reply.status, reply.json().get("outputs", [])) == (200, [])


def repeat(server: Server, values: list[int], way: str) -> list[int | InferenceServerException]:
    """The responses of a decoupled model, and its error."""
    with GrpcStream(server) as stream:
        inputs = {"IN": numpy.array(values, numpy.int32), "WAY": texts(way)}
        stream.send("repeat", inputs, enable_empty_final_response=True)
        found: list[int | InferenceServerException] = []
        while True:
            result, error = stream._responses.get(timeout=RESPONSE_SECONDS_MAX)
            if error is not None:
                found.append(error)
                if way in ("error",):
                    continue
                return found
            response = result.get_response()
            if response.outputs:
                found.append(int(result.as_numpy("OUT")[0]))
            if response.parameters["triton_final_response"].bool_param:
                return found


@pytest.mark.parametrize("way", ["now", "later", "flag_with_last"])
# row: PY-07
def test_decoupled(server: Server, way: str) -> None:
    values = list(range(100))
    assert repeat(server, values, way) == values


# row: DEC-01
def test_decoupled_without_responses(server: Server) -> None:
    assert repeat(server, [], "now") == []


def test_decoupled_errors(server: Server) -> None:
    *values, error = repeat(server, [1, 2], "error")
    assert values == [1, 2]
    assert "enough" in str(error)
    (error,) = repeat(server, [1, 2], "raise")
    assert "the model raised" in str(error)
    assert repeat(server, [3], "now") == [3]


def test_decoupled_without_a_stream(server: Server) -> None:
    inputs = [
        {"name": "IN", "shape": [1], "datatype": "INT32", "data": [9]},
        {"name": "WAY", "shape": [1], "datatype": "BYTES", "data": ["flag_with_last"]},
    ]
    reply = server.infer("repeat", {"inputs": inputs})
    assert reply.status in (400, 501), reply
    assert "decoupled" in reply.error()


def test_a_sender_in_a_model_that_is_not_decoupled(client: Transport) -> None:
    values = numpy.arange(5, dtype=numpy.int32)
    numpy.testing.assert_array_equal(client.infer("sender", {"IN": values})["OUT"], values)


@pytest.mark.galatea_only
def test_models_wait_for_slow_readers(server: Server, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "note"
    count = 200

    async def read() -> str:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc_url) as client:
            tensors = {"COUNT": numpy.array([count], numpy.int32), "FILE": texts(str(file))}
            inputs = make_inputs(tritonclient.grpc.aio, tensors)
            done = asyncio.Event()

            async def requests() -> AsyncIterator[dict[str, Any]]:
                yield {"model_name": "flood", "inputs": inputs}
                await done.wait()

            responses = client.stream_infer(requests())
            await anext(responses)
            # The model may send until the limit is reached, while other work takes longer.
            wait_until(
                lambda: int(file.read_text() or 0) > 30, RESPONSE_SECONDS_MAX, "it sent many"
            )
            other = TRANSPORTS["http"](server)
            for number in range(300):
                described(other, request_id=str(number))
            other.close()
            noted = file.read_text()
            for _ in range(count - 1):
                result, error = await anext(responses)
                assert error is None
                assert result.as_numpy("OUT").nbytes == 1 << 20
            done.set()
            return noted

    assert asyncio.run(read()) not in ("done", str(count - 1))
    wait_until(lambda: has_written(file, "done"), RESPONSE_SECONDS_MAX, "the model is done")


# row: PY-07
def test_async_execute(server: Server) -> None:
    with GrpcStream(server) as stream:
        for _ in range(4):
            stream.send("together", {"IN": numpy.array([4], numpy.int32)})
        replies = [stream.receive()[1]["OUT"][0] for _ in range(4)]
    assert replies == [4] * 4


@pytest.mark.parametrize("executions", [1, 2, 5])
# row: ITER-02
def test_iterative_sequences(client: Transport, executions: int) -> None:
    values = numpy.array([[executions]], numpy.int32)
    outputs = client.infer("countdown", {"IN": values}, request_id=f"{client} {executions}")
    assert outputs["OUT"].tolist() == [[executions]]


def test_decoupled_iterative_sequences(server: Server) -> None:
    with GrpcStream(server) as stream:
        for number in range(3):
            values = numpy.array([[4]], numpy.int32)
            stream.send("decoupled_countdown", {"IN": values}, request_id=str(number))
            assert [int(stream.receive()[1]["OUT"][0][0]) for _ in range(4)] == [3, 2, 1, 0]


# row: PY-12 MET-16
def test_metrics(client: Transport, server: Server) -> None:
    def add(value: float) -> list[str]:
        outputs = client.infer("metrics", {"IN": numpy.array([value], numpy.float32)})
        return outputs["OUT"][0].decode().split()

    before = float(add(0)[0])
    assert add(2.5) == [str(before + 2.5), "2.5"]
    text = server.metrics()
    labels = r'model="metrics",where="in \"Python\""'
    assert f"metrics_COUNTER{{{labels}}} {before + 2.5:g}" in text
    assert f"metrics_GAUGE{{{labels}}} 2.5" in text
    assert "# HELP metrics_HISTOGRAM a HISTOGRAM" in text
    assert "# TYPE metrics_HISTOGRAM histogram" in text
    buckets = [line for line in text.splitlines() if line.startswith("metrics_HISTOGRAM_bucket")]
    assert ['le="10"' in line for line in buckets] == [False, True, False]


@pytest.mark.parametrize("model", ["cancelled", "decoupled_cancelled"])
def test_models_see_that_a_stream_was_cancelled(
    server: Server, tmp_path: pathlib.Path, model: str
) -> None:
    file = tmp_path / "note"
    stream = GrpcStream(server)
    stream.send(model, {"FILE": texts(str(file))})
    wait_until(lambda: has_written(file, "began"), RESPONSE_SECONDS_MAX, "the model began")
    stream.close(cancel=True)
    wait_until(lambda: has_written(file, "cancelled"), RESPONSE_SECONDS_MAX, "the model saw it")


# row: CAN-02
def test_models_see_that_a_call_was_cancelled(server: Server, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "note"
    calls = GrpcCalls(server)
    calls.send("cancelled", {"FILE": texts(str(file))})
    wait_until(lambda: has_written(file, "began"), RESPONSE_SECONDS_MAX, "the model began")
    calls.cancel(0)
    wait_until(lambda: has_written(file, "cancelled"), RESPONSE_SECONDS_MAX, "the model saw it")
    calls.close()


@pytest.mark.galatea_only
def test_models_see_an_http_disconnect(server: Server, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "note"
    tensor = {"name": "FILE", "shape": [1], "datatype": "BYTES", "data": [str(file)]}
    with contextlib.closing(connect(server)) as connection:
        body = json.dumps({"inputs": [tensor]})
        connection.request("POST", "/v2/models/cancelled/infer", body)
        wait_until(lambda: has_written(file, "began"), RESPONSE_SECONDS_MAX, "the model began")
    wait_until(lambda: has_written(file, "cancelled"), RESPONSE_SECONDS_MAX, "the model saw it")


def connect(server: Server) -> Any:
    """A connection from the standard library."""
    import http.client

    return http.client.HTTPConnection(server.http_url)


def has_written(file: pathlib.Path, text: str) -> bool:
    """Returns true if a model wrote this to its file."""
    return file.exists() and file.read_text() == text
