"""Tests of explanations: eight injected causes of delays, and the explanation of each.

The tests don't assert how long anything takes. Each injected cause takes longer than the rest of
the request, and the explanation has to name it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from conftest import StartServer
from latch import Latch
from python_backend import interpreter_flag, write_model
from raw_http import Connection
from server import REQUEST_SECONDS_MAX, Server, wait_until
from shm_clients import register, shared_object, unregister

pytestmark = pytest.mark.galatea_only  # Triton knows no such header.

HEADER = "triton-explain"
PARAMETER = "triton_explain"
ASKS = {HEADER: "1"}
#: How long an injected cause lasts: far longer than a small request takes otherwise.
HELD_SECONDS = 0.6
DOORS = ["http", "grpc"]
#: Larger than what counts as a copy; copied in some ten milliseconds.
LARGE_BYTES = 128 << 20
KEY, VALUE = "statistics-key", "secret"
#: What others have to do with a request.
OF_OTHERS = {"waits_us", "ahead", "batch"}
STAGES = {
    "receive",
    "decode",
    "admit",
    "queue",
    "hand_over",
    "input",
    "compute",
    "output",
    "execute",
    "respond",
    "reply",
    "encode",
}

IDENTITY = """
backend: "identity" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }}
{more}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling { step [
  {
    model_name: "echo" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "BETWEEN" }
  },
  {
    model_name: "delayed" model_version: -1
    input_map { key: "INPUT0" value: "BETWEEN" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
] }
"""
LENGTH = """
platform: "onnxruntime_onnx"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT64 dims: [ 1 ] }
"""
LIMITED = "instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: 'R' count: 1 } ] } } ]"
LATCHES = {
    "one": "",
    "cold": "",
    "warm": 'model_warmup [ { name: "w" batch_size: 1 inputs { key: "INPUT0" '
    "value: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]",
    "threads": "",
    "shapes": "dynamic_batching { preferred_batch_size: [ 4 ] "
    "max_queue_delay_microseconds: 3600000000 }",
    "holder": LIMITED,
    "limited": LIMITED,
}


@pytest.fixture(scope="module")
def latches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Latch]:
    """The models that a test can hold, in a repository with the others. Their latches are open."""
    repository = tmp_path_factory.mktemp("explained")
    latches = {name: Latch(repository, name, more, 4) for name, more in LATCHES.items()}
    shapes = repository / "shapes" / "config.pbtxt"
    shapes.write_text(shapes.read_text().replace("dims: [ 1 ]", "dims: [ -1 ]"))
    delay = "dynamic_batching { max_queue_delay_microseconds: %d }" % (HELD_SECONDS * 1e6)
    for name, text in {
        "echo": IDENTITY.format(more=""),
        "delayed": IDENTITY.format(more=delay),
        "ensemble": ENSEMBLE,
        "length": LENGTH,
    }.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    onnx.save(length_model(), repository / "length" / "1" / "model.onnx")
    for latch in latches.values():
        latch.open()
    return latches


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, latches: dict[str, Latch], repository: pathlib.Path
) -> Iterator[Server]:
    """A server with all of them."""
    flags = ["--rate-limit=execution_count", "--allow-client-shm=true"]
    with start_server(repository, *flags) as running:
        running.wait_until_ready()
        for name in ["one", "threads", "holder", "limited"]:
            assert running.infer(name, latches[name].request(0)).status == 200
        yield running
        for latch in latches.values():
            latch.open()
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def repository(latches: dict[str, Latch]) -> pathlib.Path:
    """The directory of the models."""
    return latches["one"].directory.parent


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Clients that wait."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def length_model() -> onnx.ModelProto:
    """A model that doesn't read the elements of its input, and returns their number."""
    graph = helper.make_graph(
        [helper.make_node("Shape", ["INPUT0"], ["OUTPUT0"])],
        "length",
        [helper.make_tensor_value_info("INPUT0", TensorProto.INT32, ["length"])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.INT64, [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def ones(rows: int = 1, length: int = 1) -> numpy.ndarray:
    """An input."""
    return numpy.ones([rows, length], numpy.int32)


class Ask:
    """A client that asks for explanations."""

    def __init__(self, server: Server, door: str) -> None:
        self.server, self.door = server, door

    def __call__(
        self,
        model: str,
        tensor: numpy.ndarray,
        headers: Mapping[str, str] | None = None,
        address: str | None = None,
    ) -> dict[str, Any]:
        """The explanation of a request, which must succeed."""
        told = self.optional(model, tensor, ASKS | dict(headers or {}), address)
        assert told is not None
        assert told["model"] == model and told["version"] == "1"
        assert STAGES >= set(told["stages_us"])
        # Each is rounded down.
        assert sum(told["stages_us"].values()) <= told["total_us"]
        assert told["cause"]["us"] <= told["total_us"] and told["cause"]["words"]
        return told

    def optional(
        self,
        model: str,
        tensor: numpy.ndarray,
        headers: Mapping[str, str],
        address: str | None = None,
    ) -> dict[str, Any] | None:
        """It is the same if there is one."""
        if self.door == "grpc":
            metadata = grpc_metadata(self.server, model, tensor, headers, address)
            return json.loads(metadata[HEADER]) if HEADER in metadata else None
        document = {
            "name": "INPUT0",
            "shape": list(tensor.shape),
            "datatype": "INT32",
            "data": tensor.flatten().tolist(),
        }
        reply = self.server.infer(model, {"inputs": [document]}, headers=headers)
        assert reply.status == 200, reply
        assert (reply.headers[HEADER] is None) == (reply.headers["Server-Timing"] is None)
        return None if reply.headers[HEADER] is None else json.loads(reply.headers[HEADER])


def grpc_request(model: str, tensor: numpy.ndarray) -> service_pb2.ModelInferRequest:
    """A request with one input."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="INT32", shape=tensor.shape)
    request.raw_input_contents.append(tensor.tobytes())
    return request


def grpc_metadata(
    server: Server,
    model: str,
    tensor: numpy.ndarray,
    headers: Mapping[str, str],
    address: str | None = None,
) -> dict[str, str]:
    """The metadata that follows the response."""
    with grpc.insecure_channel(address or server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response, call = stub.ModelInfer.with_call(
            grpc_request(model, tensor),
            metadata=tuple(headers.items()),
            timeout=REQUEST_SECONDS_MAX,
        )
    output = numpy.frombuffer(
        response.raw_output_contents[0], triton_to_np_dtype(response.outputs[0].datatype)
    )
    assert output.size == tensor.size
    assert not any(name == HEADER for name, _ in call.initial_metadata() or ())
    return dict(call.trailing_metadata() or ())


@pytest.fixture(params=DOORS)
def ask(request: pytest.FixtureRequest, server: Server) -> Ask:
    """A client for each door."""
    return Ask(server, request.param)


def waits(server: Server, model: str, reason: str) -> Callable[[], bool]:
    """Returns true if a request in the model's queue is waiting for this reason."""
    return lambda: [one["waits_for"]["reason"] for one in server.scheduler(model)["queues"]] == [
        reason
    ]


def hold() -> None:
    """Makes the injected cause last longer than anything else."""
    time.sleep(HELD_SECONDS)  # sleep: the server compares the times of causes


# Eight causes.


def test_a_shape_that_splits_a_batch(
    ask: Ask, latches: dict[str, Latch], pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The first batch closes when a request with a different shape arrives, which then waits for
    its execution."""
    server, latch = ask.server, latches["shapes"]
    latch.close()
    first = pool.submit(ask, "shapes", ones(1, 1))
    wait_until(waits(server, "shapes", "batch_delay"), 60, "the first waits for others")
    second = pool.submit(ask, "shapes", ones(2, 2))
    wait_until(waits(server, "shapes", "instance"), 60, "the first is executed")
    # With this request, the second batch has a preferred size.
    third = pool.submit(ask, "shapes", ones(2, 2))
    server.wait_for_pending("shapes", 2)
    hold()
    latch.open()
    assert first.result()["batch"] == {"requests": 1, "rows": 1, "closed": "shape"} | cold(first)
    told = second.result()
    assert told["cause"]["name"] == "shape_split", told
    assert told["batch"] == {"requests": 2, "rows": 4, "closed": "max_size"}
    assert told["ahead"]["requests"] == 1
    assert third.result()["cause"]["name"] in {"too_few_instances", "cold_load"}


def cold(told: concurrent.futures.Future[dict[str, Any]]) -> dict[str, bool]:
    """The text for a batch that may be the first of its instance."""
    return {"first": True} if "first" in told.result()["batch"] else {}


def test_a_delay_of_the_queue(ask: Ask) -> None:
    """A request that remains alone waits for the whole delay."""
    told = ask("delayed", ones())
    assert told["cause"]["name"] == "queue_delay", told
    assert told["batch"]["closed"] == "delay"
    assert told["waits_us"]["batch_delay"] >= HELD_SECONDS * 1e6


def test_too_few_instances(
    ask: Ask, latches: dict[str, Latch], pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The only instance is busy."""
    server, latch = ask.server, latches["one"]
    latch.close()
    running = pool.submit(ask, "one", ones())
    wait_until(lambda: server.is_executing("one"), 60, "the first is executed")
    waiting = pool.submit(ask, "one", ones())
    server.wait_for_pending("one", 1)
    hold()
    latch.open()
    assert running.result()["cause"]["name"] == "execution"
    told = waiting.result()
    assert told["cause"]["name"] == "too_few_instances", told
    ahead = told["ahead"]
    assert (ahead["requests"], ahead["instances"], ahead["busy"]) == (0, 1, 1)
    assert told["batch"] == {"requests": 1, "rows": 1, "closed": "unbatched"}


def test_a_cold_load(
    start_server: StartServer,
    repository: pathlib.Path,
    latches: dict[str, Latch],
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    """The first execution takes a long time, which also delays the requests that wait for it. A
    warmup prevents that."""
    latch = latches["cold"]
    latch.open()
    flags = ["--model-control-mode=explicit"]
    with start_server(repository, *flags) as server:
        server.wait_until_live()
        for door in DOORS:
            for name in ["cold", "warm"]:
                path = f"/v2/repository/models/{name}"
                assert server.request("POST", f"{path}/unload").status == 200
                assert server.request("POST", f"{path}/load").status == 200
            ask = Ask(server, door)
            for name, causes in [
                ("cold", ("cold_load", "cold_load", "execution")),
                ("warm", ("execution", "too_few_instances", "execution")),
            ]:
                told = slow_executions(ask, name, latches[name], pool)
                assert tuple(one["cause"]["name"] for one in told) == causes, told
                assert "first" in told[0]["batch"] and "first" not in told[1]["batch"]


def slow_executions(
    ask: Ask, model: str, latch: Latch, pool: concurrent.futures.ThreadPoolExecutor
) -> list[dict[str, Any]]:
    """The first request, which takes long, the request after it, and a later one that takes as
    long."""
    told = []
    for count in (2, 1):
        latch.close()
        pending = [pool.submit(ask, model, ones())]
        wait_until(lambda: ask.server.is_executing(model), 60, "the first is executed")
        pending += [pool.submit(ask, model, ones()) for _ in range(count - 1)]
        ask.server.wait_for_pending(model, count - 1)
        hold()
        latch.open()
        told += [one.result() for one in pending]
    return told


def test_a_thread_that_is_not_free(
    ask: Ask, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The batch is closed, but its instance's thread doesn't run."""
    server = ask.server
    (instance,) = server.scheduler("threads")["instances"]
    with stopped_thread(server, instance["name"][:15]):
        pending = pool.submit(ask, "threads", ones())
        wait_until(lambda: server.is_executing("threads"), 60, "the batch is closed")
        hold()
    told = pending.result()
    assert told["cause"]["name"] == "thread_starvation", told
    assert told["stages_us"]["hand_over"] >= HELD_SECONDS * 0.9e6


@contextlib.contextmanager
def stopped_thread(server: Server, name: str) -> Iterator[None]:
    """Stops one thread of the server, like a processor that has no time for it."""
    seize, interrupt, detach, any_child = 0x4206, 0x4207, 17, 0x40000000
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    (thread,) = (
        int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name
    )
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if trace(seize, thread, None, None) != 0:
        pytest.skip(f"threads can't be stopped here: {os.strerror(ctypes.get_errno())}")
    try:
        assert trace(interrupt, thread, None, None) == 0
        os.waitpid(thread, any_child)
        yield
    finally:
        assert trace(detach, thread, None, None) == 0


def test_a_slow_client_over_http(server: Server) -> None:
    """The second half of the body comes late."""
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    ).encode()
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: {len(body)}\r\n{HEADER}: 1\r\n"
    with Connection(server) as connection:
        connection.send(f"{head}\r\n".encode(), body[:10])
        hold()
        connection.send(body[10:])
        headers = connection.read_head().decode()
    (told,) = re.findall(rf"(?mi)^{HEADER}: (.*)\r$", headers)
    assert json.loads(told)["cause"]["name"] == "slow_client", told


def test_a_slow_client_over_grpc(server: Server) -> None:
    """The rest of the message comes late."""
    with contextlib.closing(SlowProxy(server, forwarded_bytes=20_000)) as proxy:
        told = Ask(server, "grpc")("echo", ones(1, 10_000), address=proxy.address)
    assert told["cause"]["name"] == "slow_client", told


class SlowProxy:
    """Forwards a connection to a server, and pauses after the client's first bytes."""

    def __init__(self, server: Server, forwarded_bytes: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._left = forwarded_bytes
        self._target = socket.create_connection(("127.0.0.1", server.grpc_port))
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._listener.close()
        self._target.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            back = (self._target, client)
            threading.Thread(target=self._forward, args=back, daemon=True).start()
            while data := client.recv(max(1, min(self._left, 65536)) if self._left else 65536):
                self._target.sendall(data)
                if self._left:
                    self._left -= len(data)
                    if self._left == 0:
                        hold()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


@pytest.mark.parametrize("door", DOORS)
def test_a_copy_of_large_tensors(server: Server, door: str) -> None:
    """A tensor in shared memory is copied before its model sees it."""
    tensor = {"name": "INPUT0", "shape": [LARGE_BYTES // 4], "datatype": "INT32"}
    with shared_object(LARGE_BYTES) as memory:
        register(server, "large", memory.key, LARGE_BYTES)
        if door == "http":
            place = {"shared_memory_region": "large", "shared_memory_byte_size": LARGE_BYTES}
            document = {"inputs": [tensor | {"parameters": place}]}
            reply = server.infer("length", document, headers=ASKS)
            assert reply.json()["outputs"][0]["data"] == [LARGE_BYTES // 4]
            told = json.loads(reply.headers[HEADER])
        else:
            request = service_pb2.ModelInferRequest(model_name="length")
            one = request.inputs.add(**tensor)
            one.parameters["shared_memory_region"].string_param = "large"
            one.parameters["shared_memory_byte_size"].int64_param = LARGE_BYTES
            with grpc.insecure_channel(server.grpc_url) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                _, call = stub.ModelInfer.with_call(request, metadata=tuple(ASKS.items()))
            told = json.loads(dict(call.trailing_metadata())[HEADER])
        unregister(server, "large")
    assert told["cause"]["name"] == "large_copy", told


def test_a_wait_for_the_rate_limiter(
    ask: Ask, latches: dict[str, Latch], pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Another model holds the resource."""
    server, latch = ask.server, latches["holder"]
    latch.close()
    holder = pool.submit(ask, "holder", ones())
    wait_until(lambda: server.is_executing("holder"), 60, "the resource is held")
    limited = pool.submit(ask, "limited", ones())
    wait_until(waits(server, "limited", "rate_limiter"), 60, "the other waits for it")
    hold()
    latch.open()
    holder.result()
    told = limited.result()
    assert told["cause"]["name"] == "rate_limiter", told


# The recipients of explanations and their contents.


@pytest.mark.parametrize("value", [None, "0", "", "2", "true"])
def test_without_the_header_there_is_no_explanation(ask: Ask, value: str | None) -> None:
    """Without the header, there is no explanation, and other values aren't an error."""
    headers = {} if value is None else {HEADER: value}
    assert ask.optional("echo", ones(), headers) is None


def test_stages_as_browsers_read_them(server: Server) -> None:
    """`Server-Timing` contains the stages in milliseconds."""
    reply = server.infer("echo", {"inputs": [INPUT]}, headers=ASKS)
    told = json.loads(reply.headers[HEADER])
    entries = reply.headers["Server-Timing"].split(", ")
    parsed = [re.fullmatch(r'(\w+);dur=(\d+\.\d{3})(;desc="(\w+)")?', one) for one in entries]
    assert [one[1] for one in parsed if one] == [*told["stages_us"], "total", "cause"]
    durations = {one[1]: round(float(one[2]) * 1000) for one in parsed if one}
    assert {name: durations[name] for name in told["stages_us"]} == told["stages_us"]
    assert durations["total"] == told["total_us"]
    assert parsed[-1] and parsed[-1][4] == told["cause"]["name"]


INPUT = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}


def test_hyper_and_compressed_requests(server: Server) -> None:
    """Requests that hyper parses are explained as well."""
    body = json.dumps({"inputs": [INPUT]}).encode()
    reply = server.request("POST", "/v2/models/echo/infer?x=1", body, ASKS)
    assert reply.status == 200
    assert json.loads(reply.headers[HEADER])["model"] == "echo"


def test_requests_that_no_model_received(server: Server) -> None:
    """There is nothing to explain."""
    for model, document in [("absent", {"inputs": [INPUT]}), ("echo", {"inputs": 1})]:
        reply = server.infer(model, document, headers=ASKS)
        assert reply.status in {400, 404, 500}
        assert reply.headers[HEADER] is None


def test_requests_that_fail_are_explained(server: Server) -> None:
    """A model that received a request may refuse it."""
    wrong = INPUT | {"datatype": "FP32"}
    reply = server.infer("echo", {"inputs": [wrong]}, headers=ASKS)
    assert reply.status == 400
    assert json.loads(reply.headers[HEADER])["model"] == "echo"
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = grpc_request("echo", ones())
        request.inputs[0].datatype = "FP32"
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request, metadata=tuple(ASKS.items()))
    assert json.loads(dict(caught.value.trailing_metadata())[HEADER])["model"] == "echo"


def test_steps_of_an_ensemble(ask: Ask) -> None:
    """Each step has an explanation, and the longest step's explanation is the ensemble's."""
    told = ask("ensemble", ones())
    assert [step["model"] for step in told["steps"]] == ["echo", "delayed"]
    assert told["cause"]["name"] == "queue_delay", told
    assert told["cause"]["step"] == "delayed"
    assert told["steps"][1]["batch"]["closed"] == "delay"


def test_a_stream_explains_each_request_in_its_first_response(server: Server) -> None:
    """Metadata belongs to the whole stream, so the explanation is a parameter."""
    requests = [grpc_request("delayed", ones()), grpc_request("echo", ones())]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for metadata, expected in [(ASKS, ["queue_delay", None]), ({}, [None, None])]:
            responses = list(stub.ModelStreamInfer(iter(requests), metadata=tuple(metadata.items())))
            assert not any(response.error_message for response in responses)
            given = [response.infer_response.parameters for response in responses]
            assert [PARAMETER in parameters for parameters in given] == [bool(metadata)] * 2
            for parameters, cause in zip(given, expected, strict=True):
                if cause:
                    told = json.loads(parameters[PARAMETER].string_param)
                    assert told["cause"]["name"] == cause, told


def test_generate_requests(server: Server) -> None:
    """Documents and events come with the header. For events, it covers the time until the first
    one."""
    body = json.dumps({"INPUT0": 1}).encode()
    for action in ["generate", "generate_stream"]:
        reply = server.request("POST", f"/v2/models/delayed/{action}", body, ASKS)
        assert reply.status == 200, reply
        told = json.loads(reply.headers[HEADER])
        assert told["cause"]["name"] == "queue_delay", told
        assert server.request("POST", f"/v2/models/echo/{action}", body).headers[HEADER] is None


def test_who_may_not_read_statistics_learns_nothing_of_others(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """A client sees the stages of its own request, but not its batch or the requests that it
    waited for."""
    flags = [f"--http-restricted-api=statistics:{KEY}={VALUE}"]
    flags += [f"--grpc-restricted-protocol=statistics:{KEY}={VALUE}"]
    flags += ["--model-control-mode=explicit", "--load-model=ensemble"]
    with start_server(repository, *flags) as server:
        server.wait_until_ready()
        for door, name in [("http", KEY), ("grpc", f"triton-grpc-protocol-{KEY}")]:
            ask = Ask(server, door)
            told = ask("ensemble", ones())
            for one in [told, *told["steps"]]:
                assert not OF_OTHERS & set(one), one
            assert told["cause"]["name"] == "queue"
            told = ask("ensemble", ones(), {name: VALUE})
            assert told["cause"]["name"] == "queue_delay"
            assert {"batch", "ahead"} <= set(told["steps"][1])


@pytest.mark.parametrize("door", DOORS)
def test_models_in_python(start_server: StartServer, tmp_path: pathlib.Path, door: str) -> None:
    """Workers, and the requests that their models make, are served in the same way as without an
    explanation."""
    config = 'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }\n'
    config += 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }\n'
    write_model(tmp_path, "calls", config, None)
    (tmp_path / "calls" / "1" / "model.py").write_text(CALLS)
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(IDENTITY.format(more=""))
    with start_server(tmp_path, interpreter_flag()) as running:
        running.wait_until_ready()
        told = Ask(running, door)("calls", ones())
    assert told["batch"] == {"requests": 1, "rows": 1, "closed": "unbatched", "first": True}
    assert {"input", "compute", "output"} & set(told["stages_us"]) or "execute" in told["stages_us"]


CALLS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            # No client traces it.
            assert not request.trace().get_context()
            inner = pb_utils.InferenceRequest(
                model_name="echo", inputs=[given], requested_output_names=["OUTPUT0"],
                trace=request.trace(),
            ).exec()
            assert not inner.has_error(), inner.error().message()
            responses.append(pb_utils.InferenceResponse(inner.output_tensors()))
        return responses
"""


# All requests of a model.


def test_the_scheduler_page_tells_the_same_of_all_requests(
    start_server: StartServer,
    repository: pathlib.Path,
    latches: dict[str, Latch],
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    """Closed batches and waits are counted, whether or not their requests are explained."""
    flags = ["--model-control-mode=explicit", "--load-model=delayed", "--load-model=warm"]
    with start_server(repository, *flags) as server:
        server.wait_until_ready()
        totals = server.scheduler("delayed")["totals"]
        nothing = {"queue": 0, "input": 0, "compute": 0, "output": 0}
        assert totals["stages_us"] == nothing
        assert (totals["waits_us"], totals["closed"], totals["not_executed"]) == ({}, {}, {})
        assert server.infer("delayed", {"inputs": [INPUT]}).status == 200
        totals = server.scheduler("delayed")["totals"]
        assert totals["closed"] == {"delay": {"batches": 1, "requests": 1}}
        assert totals["cause"]["name"] == "queue_delay", totals
        assert totals["waits_us"]["batch_delay"] >= HELD_SECONDS * 1e6
        assert list(totals["waits_us"]) == ["batch_delay"]
        latch = latches["warm"]
        latch.close()
        pending = [pool.submit(server.infer, "warm", latch.request(1))]
        wait_until(lambda: server.is_executing("warm"), 60, "the first is executed")
        pending += [pool.submit(server.infer, "warm", latch.request(1)) for _ in range(3)]
        server.wait_for_pending("warm", 3)
        hold()
        latch.open()
        assert [one.result().status for one in pending] == [200] * 4
        totals = server.scheduler("warm")["totals"]
        assert totals["closed"] == {"unbatched": {"batches": 4, "requests": 4}}
        # Three requests waited, each for the whole duration of the injected delay.
        assert totals["waits_us"]["instance"] >= 3 * HELD_SECONDS * 0.9e6
