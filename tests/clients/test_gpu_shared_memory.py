"""Tests of GPU memory that clients share with the server.

The driver in tests/devices stands in for NVIDIA's, in the server and in the test. Both processes
have its GPUs, and one can open memory that the other allocated. As a result, the tests verify the
server, but not that a real driver opens a handle.
"""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from conftest import StartServer
from gpu_clients import ALLOWED, SIZE, Client, Memory, register, unregister
from gpus import StandIn, build_driver
from server import Reply, Server, wait_until
from shm_clients import PROTOCOLS, infer, shared_object
from shm_clients import register as register_system
from shm_clients import unregister as unregister_system

VALUES = np.array([[1.5, -2, 3.25, 4]], dtype=np.float32)
INVALID = "failed to register shared memory region: invalid args"
TOO_SHORT = "failed to register shared memory region 'r': invalid args"
NO_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def client(libraries: pathlib.Path) -> Client:
    return Client(libraries)


@pytest.fixture(scope="module")
def stand_in(libraries: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return StandIn(libraries, tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def sharing(
    start_server: StartServer,
    models: pathlib.Path,
    stand_in: StandIn,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server with two GPUs whose clients may share memory. It leaves nothing behind."""
    repository = tmp_path_factory.mktemp("sharing")
    for model in models.iterdir():
        (repository / model.name).symlink_to(model)
    slow = repository / "slow"
    (slow / "1").mkdir(parents=True)
    (slow / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8 '
        'parameters { key: "execute_delay_ms" value { string_value: "500" } } '
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    )
    with start_server(repository, ALLOWED, environment=stand_in.environment()) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0
    assert stand_in.violations() == []


@pytest.fixture(autouse=True)
def no_regions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins and ends without regions."""
    yield
    if "sharing" in request.fixturenames:
        server = request.getfixturevalue("sharing")
        unregister_system(server)
        unregister(server)


@pytest.fixture
def memory(client: Client) -> Iterator[Memory]:
    """Memory on the second GPU."""
    one = Memory(client, 1)
    yield one
    one.free()


def register_raw(server: Server, body: bytes) -> Reply:
    return server.request("POST", "/v2/cudasharedmemory/region/r/register", body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_fp32", "onnx_identity_fp32"])
# row: SHM-07
def test_inputs_and_outputs(sharing: Server, memory: Memory, protocol: str, model: str) -> None:
    """Inputs are read from a region, and outputs are in it when the response arrives."""
    memory.put(VALUES.tobytes(), 64)
    register(sharing, "r", memory)
    given = ("FP32", [1, 4], "r", VALUES.nbytes, 64)
    place = ("r", VALUES.nbytes, 128)
    result = infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": place})
    assert memory.get(VALUES.nbytes, 128) == VALUES.tobytes()
    assert memory.get(16, 256) == bytes(16)
    output = result.get_output("OUTPUT0")
    if isinstance(output, dict):
        assert output == {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4]}
    result = infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": None})
    assert (result.as_numpy("OUTPUT0") == VALUES).all()
    infer(sharing, protocol, model, {"INPUT0": -VALUES}, {"OUTPUT0": place})
    assert memory.get(VALUES.nbytes, 128) == (-VALUES).tobytes()


@pytest.mark.parametrize("model", ["identity_fp32", "onnx_identity_fp32"])
def test_regions_of_several_kinds(sharing: Server, client: Client, model: str) -> None:
    """Between all kinds of regions, and from GPU to GPU."""
    gpus = [Memory(client, 0), Memory(client, 1)]
    with shared_object(SIZE) as system:
        system.put(VALUES.tobytes())
        register_system(sharing, "system", system.key, SIZE)
        for number, gpu in enumerate(gpus):
            gpu.put(VALUES.tobytes())
            register(sharing, f"gpu{number}", gpu)
        stores: dict[str, Any] = {"system": system, "gpu0": gpus[0], "gpu1": gpus[1]}
        for at, (source, target) in enumerate((a, b) for a in stores for b in stores):
            given = ("FP32", [1, 4], source, 16, 0)
            place = (target, 16, 64 + 16 * at)
            infer(sharing, "http", model, {"INPUT0": given}, {"OUTPUT0": place})
            assert stores[target].get(16, 64 + 16 * at) == VALUES.tobytes(), (source, target)
        unregister(sharing)
    for gpu in gpus:
        gpu.free()


def test_strings(sharing: Server, memory: Memory) -> None:
    strings = np.array([[b"abc", b"", "käse".encode()]], dtype=np.object_)
    content = serialize_byte_tensor(strings).item()
    memory.put(content)
    register(sharing, "r", memory)
    given = ("BYTES", [1, 3], "r", len(content), 0)
    for model in ("identity_bytes", "onnx_identity_bytes"):
        place = ("r", 512, 1024)
        infer(sharing, "grpc", model, {"INPUT0": given}, {"OUTPUT0": place})
        assert memory.get(len(content), 1024) == content
        memory.put(bytes(512), 1024)


def test_lists(sharing: Server, memory: Memory) -> None:
    """Both kinds share the same names, but each has its own lists."""
    register(sharing, "b", memory, 64)
    register(sharing, "a", memory, SIZE)
    listed = [
        {"name": "a", "device_id": 1, "byte_size": SIZE},
        {"name": "b", "device_id": 1, "byte_size": 64},
    ]
    http, path = sharing.get, "/v2/cudasharedmemory"
    reply = http(f"{path}/status")
    assert reply.body == json.dumps(listed, separators=(",", ":")).encode()
    assert http(f"{path}/region/b/status").json() == listed[1:]
    with tritonclient.grpc.InferenceServerClient(sharing.grpc_url) as grpc:
        status = grpc.get_cuda_shared_memory_status()
        found = {key: (one.name, one.device_id, one.byte_size) for key, one in status.regions.items()}
        assert found == {"a": ("a", 1, SIZE), "b": ("b", 1, 64)}
        assert list(grpc.get_cuda_shared_memory_status("b").regions) == ["b"]
    wrong = http("/v2/systemsharedmemory/region/a/status")
    text = "The region named 'a' is registered as CUDA shared memory, not system shared memory"
    assert (wrong.status, wrong.error()) == (404, text)
    missing = http(f"{path}/region/x/status")
    assert (missing.status, missing.error()) == (404, "Unable to find cuda shared memory region: 'x'")
    with shared_object(SIZE) as system:
        with pytest.raises(InferenceServerException, match="shared memory region 'a' already in"):
            register_system(sharing, "a", system.key, SIZE)
        register_system(sharing, "s", system.key, SIZE)
        unregister(sharing, "s")
        unregister(sharing, "a")
        assert [one["name"] for one in http(f"{path}/status").json()] == ["b"]
        unregister(sharing)
        assert http(f"{path}/status").json() == []
        assert [one["name"] for one in http("/v2/systemsharedmemory/status").json()] == ["s"]


def test_wrong_registrations(sharing: Server, memory: Memory) -> None:
    """As in Triton, the texts don't contain a reason."""
    handle = {"b64": base64.b64encode(memory.raw_handle).decode()}
    good = {"raw_handle": handle, "device_id": 1, "byte_size": SIZE}

    def check(body: Any, status: int, text: str) -> None:
        reply = register_raw(sharing, json.dumps(body).encode())
        assert (reply.status, reply.error()) == (status, text), body

    def without(name: str, **more: Any) -> dict[str, Any]:
        return {key: value for key, value in good.items() if key != name} | more

    member = "attempt to access non-existing object member '{}'"
    number = "attempt to access JSON non-unsigned-integer as unsigned-integer"
    check({}, 400, "Shared memory register request has no 'raw_handle' field")
    check(without("raw_handle"), 400, "Shared memory register request has no 'raw_handle' field")
    check(good | {"raw_handle": {}}, 500, member.format("b64"))
    check(good | {"raw_handle": "AAAA"}, 500, member.format("b64"))
    check(good | {"raw_handle": {"b64": 1}}, 500, "attempt to access JSON non-string as string")
    check(without("byte_size"), 500, member.format("byte_size"))
    check(without("device_id"), 500, member.format("device_id"))
    check(good | {"byte_size": -1}, 500, number)
    check(good | {"device_id": "1"}, 500, number)
    check(good | {"raw_handle": {"b64": "AAAA"}}, 400, NO_HANDLE)
    check(good | {"raw_handle": {"b64": "!"}}, 400, NO_HANDLE)
    check(good | {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}}, 400, INVALID)
    # As in Triton, the driver's message is for the operator.
    assert "failed to open CUDA IPC handle: " in sharing.log()
    # It belongs to the other GPU, or to none.
    for device in (0, 2, 2**40):
        check(good | {"device_id": device}, 400, INVALID)
    check(good | {"byte_size": SIZE + 1}, 400, TOO_SHORT)
    check(good | {"byte_size": 2**63}, 400, TOO_SHORT)
    register(sharing, "r", memory)
    check(good, 400, "shared memory region 'r' already in manager")
    with tritonclient.grpc.InferenceServerClient(sharing.grpc_url) as grpc:
        for raw_handle, device in ((b"", 1), (bytes(63), 1), (bytes(64), 1), (bytes(64), -1)):
            with pytest.raises(InferenceServerException) as raised:
                grpc.register_cuda_shared_memory("x", base64.b64encode(raw_handle), device, 8)
            assert (raised.value.status(), raised.value.message()) == (
                "StatusCode.INVALID_ARGUMENT",
                INVALID,
            )
        grpc.register_cuda_shared_memory("y", base64.b64encode(memory.raw_handle), 1, SIZE)
        grpc.unregister_cuda_shared_memory("y")


def test_parts_beyond_a_region(sharing: Server, memory: Memory) -> None:
    """The checks and texts are the same as for other regions; a region that is too small stays
    unchanged."""
    register(sharing, "r", memory, 64)
    given = ("FP32", [1, 4], "r", 16, 56)
    with pytest.raises(InferenceServerException, match="Invalid offset . byte size for shared"):
        infer(sharing, "http", "identity_fp32", {"INPUT0": given}, {"OUTPUT0": None})
    with pytest.raises(InferenceServerException, match=r"\(8 bytes\) should be at least 16 bytes"):
        infer(sharing, "http", "identity_fp32", {"INPUT0": VALUES}, {"OUTPUT0": ("r", 8, 0)})
    assert memory.get(64) == bytes(64)


def test_an_unregistered_region_stays_with_its_requests(sharing: Server, memory: Memory) -> None:
    """The output goes to the region, which is listed until then."""
    register(sharing, "r", memory)
    with tritonclient.grpc.InferenceServerClient(sharing.grpc_url) as grpc:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(VALUES)
        output = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("r", VALUES.nbytes, 0)
        results: list[Any] = []
        grpc.async_infer(
            "slow", [tensor], lambda result, error: results.append(error or result), outputs=[output]
        )
        wait_until(lambda: sharing.is_executing("slow"), 30, "the request is not executed")
        before = sharing.get("/v2/cudasharedmemory/status").json()
        unregister(sharing, "r")
        assert sharing.get("/v2/cudasharedmemory/status").json() == before != []
        wait_until(lambda: bool(results), 30, "there is no response")
        assert sharing.get("/v2/cudasharedmemory/status").json() == []
    assert not isinstance(results[0], Exception), results
    assert memory.get(VALUES.nbytes) == VALUES.tobytes()


def test_a_lost_gpu_fails_its_own_requests(
    start_server: StartServer,
    models: pathlib.Path,
    client: Client,
    libraries: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """Requests with regions on other GPUs, and requests without regions, continue."""
    stand_in = StandIn(libraries, tmp_path / "reports")
    gpus = [Memory(client, 0), Memory(client, 1)]
    with start_server(models, ALLOWED, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        for number, gpu in enumerate(gpus):
            gpu.put(VALUES.tobytes())
            register(server, f"gpu{number}", gpu)
        stand_in.lose(0)

        def send(source: str, target: str) -> Any:
            given = ("FP32", [1, 4], source, 16, 0)
            return infer(server, "http", "onnx_identity_fp32", {"INPUT0": given}, {"OUTPUT0": (target, 16, 64)})

        send("gpu1", "gpu1")
        for source, target in (("gpu0", "gpu1"), ("gpu1", "gpu0")):
            with pytest.raises(InferenceServerException) as raised:
                send(source, target)
            text = "failed to use CUDA copy for shared memory region 'gpu"
            assert text in raised.value.message() and raised.value.status() == "500", raised.value
        send("gpu1", "gpu1")
        assert gpus[1].get(16, 64) == VALUES.tobytes()
        unregister(server)
    assert server.process.returncode == 0
    for gpu in gpus:
        gpu.free()


def test_without_gpus_or_permission(
    start_server: StartServer, models: pathlib.Path, stand_in: StandIn, tmp_path: pathlib.Path
) -> None:
    """Without GPUs, no handle is valid; without permission, the server reports that first."""
    disabled = "Client shared memory is disabled."
    wrong = "failed to register shared memory region: invalid args"
    other = StandIn(stand_in.libraries, tmp_path / "reports")
    for flags, environment, http_text, grpc_text in (
        ((ALLOWED,), {}, "failed to parse the request JSON buffer", wrong),
        ((), {}, disabled, disabled),
        ((), other.environment(), disabled, disabled),
    ):
        with start_server(models, *flags, environment=environment) as server:
            server.wait_until_ready()
            reply = register_raw(server, b"no JSON")
            assert reply.error().startswith(http_text)
            with tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc:
                with pytest.raises(InferenceServerException) as raised:
                    grpc.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 8)
                assert raised.value.message().startswith(grpc_text)
