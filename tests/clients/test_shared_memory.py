"""Tests of memory that clients share with the server, through the client library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from conftest import StartServer
from resilience import GOOD_MODEL, check_serving, grpc_stub, refusal, repeat
from server import Server, wait_until
from shm_clients import PAGE, PROTOCOLS, Object, infer, register, shared_object, unregister

ALLOWED = "--allow-client-shm=true"
DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
SHRUNK = "is not as large any more as it was when it was registered"
SECONDS = int(os.environ.get("GALATEA_TEST_REGION_SECONDS", "3"))
VALUES = np.array([[1.5, -2, 3.25, 4]], dtype=np.float32)


@pytest.fixture(scope="module")
def sharing(
    start_server: StartServer, models: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose clients may share memory."""
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
    with start_server(repository, ALLOWED) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.fixture(autouse=True)
def no_regions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins and ends without regions."""
    yield
    if "sharing" in request.fixturenames:
        unregister(request.getfixturevalue("sharing"))


def system_status(server: Server) -> list[dict[str, Any]]:
    """The regions that the server lists."""
    return server.get("/v2/systemsharedmemory/status").json()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_fp32", "onnx_identity_fp32"])
# row: SHM-05 GRPC-08
def test_inputs_and_outputs_in_regions(sharing: Server, protocol: str, model: str) -> None:
    """Regions of the client library's own module hold inputs and outputs."""
    names = [f"{part}_{uuid.uuid4().hex}" for part in ("in", "out")]
    handles = [shared_memory.create_shared_memory_region(n, f"/{n}", 2 * PAGE) for n in names]
    try:
        shared_memory.set_shared_memory_region(handles[0], [VALUES], offset=64)
        for name in names:
            register(sharing, name, f"/{name}", 2 * PAGE)
        place = (names[1], VALUES.nbytes, 128)
        given = ("FP32", [1, 4], names[0], VALUES.nbytes, 64)
        result = infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": place})
        found = shared_memory.get_contents_as_numpy(handles[1], np.float32, [1, 4], offset=128)
        assert (found == VALUES).all()
        output = result.get_output("OUTPUT0")
        if isinstance(output, dict):
            assert output == {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4]}
        else:
            assert (output.name, list(output.shape)) == ("OUTPUT0", [1, 4])
            assert list(result.get_response().raw_output_contents) == [b""]
        # One of them is in a region, and the other isn't.
        result = infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": None})
        assert (result.as_numpy("OUTPUT0") == VALUES).all()
        infer(sharing, protocol, model, {"INPUT0": -VALUES}, {"OUTPUT0": place})
        found = shared_memory.get_contents_as_numpy(handles[1], np.float32, [1, 4], offset=128)
        assert (found == -VALUES).all()
    finally:
        for handle in handles:
            shared_memory.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_bytes", "onnx_identity_bytes"])
def test_strings_in_regions(sharing: Server, protocol: str, model: str) -> None:
    """Strings are read and written in the client library's layout."""
    strings = np.array([[b"abc", b"", "käse".encode()]], dtype=np.object_)
    name = f"strings_{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", PAGE)
    try:
        shared_memory.set_shared_memory_region(handle, [serialize_byte_tensor(strings)])
        register(sharing, name, f"/{name}", PAGE)
        size = sum(4 + len(one) for one in strings[0])
        given = ("BYTES", [1, 3], name, size, 0)
        infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": (name, 512, 1024)})
        found = shared_memory.get_contents_as_numpy(handle, np.object_, [1, 3], offset=1024)
        assert (found == strings).all()
    finally:
        shared_memory.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_two_inputs_and_two_outputs(sharing: Server, protocol: str) -> None:
    """A model with two of each, all in one region."""
    numbers = np.arange(16, dtype=np.int32)
    with shared_object(PAGE) as one:
        one.put(numbers.tobytes())
        one.put(np.ones(16, dtype=np.int32).tobytes(), 64)
        register(sharing, "r", one.key, PAGE)
        given = {f"INPUT{i}": ("INT32", [1, 16], "r", 64, 64 * i) for i in range(2)}
        wanted = {f"OUTPUT{i}": ("r", 64, 1024 + 64 * i) for i in range(2)}
        infer(sharing, protocol, "simple", given, wanted)
        sums, differences = np.frombuffer(one.get(128, 1024), dtype=np.int32).reshape(2, 16)
        assert (sums == numbers + 1).all() and (differences == numbers - 1).all()


@pytest.mark.parametrize("protocol", ["http", "grpc", "http aio", "grpc aio"])
# row: SHM-02 SHM-03 GRPC-23
def test_every_method_of_the_client_library(sharing: Server, protocol: str) -> None:
    """Registering, listing and unregistering."""
    with shared_object(PAGE) as one:
        kind = {
            "http": tritonclient.http,
            "grpc": tritonclient.grpc,
            "http aio": tritonclient.http.aio,
            "grpc aio": tritonclient.grpc.aio,
        }[protocol]
        url = sharing.http_url if "http" in protocol else sharing.grpc_url

        async def calls() -> None:
            client = kind.InferenceServerClient(url)

            async def call(method: str, *arguments: Any, **named: Any) -> Any:
                result = getattr(client, method)(*arguments, **named)
                return await result if asyncio.iscoroutine(result) else result

            def listed(status: Any) -> list[str]:
                if "http" in protocol:
                    return [region["name"] for region in status]
                regions = status.get("regions", {}) if isinstance(status, dict) else status.regions
                return sorted(regions)

            for name in ("b", "a"):
                await call("register_system_shared_memory", name, one.key, 64, offset=0)
            assert listed(await call("get_system_shared_memory_status")) == ["a", "b"]
            assert listed(await call("get_system_shared_memory_status", "b")) == ["b"]
            assert listed(await call("get_cuda_shared_memory_status")) == []
            with pytest.raises(InferenceServerException, match="already in manager"):
                await call("register_system_shared_memory", "a", one.key, 64)
            with pytest.raises(InferenceServerException, match="Unable to find cuda"):
                await call("get_cuda_shared_memory_status", "x")
            with pytest.raises(InferenceServerException, match="invalid args|must be a valid base64"):
                await call("register_cuda_shared_memory", "x", b"AAAA", 0, 64)
            await call("unregister_cuda_shared_memory")
            await call("unregister_cuda_shared_memory", "a")
            await call("unregister_system_shared_memory", "a")
            assert listed(await call("get_system_shared_memory_status")) == ["b"]
            with pytest.raises(InferenceServerException, match="Unable to find system"):
                await call("get_system_shared_memory_status", "a")
            await call("unregister_system_shared_memory")
            assert listed(await call("get_system_shared_memory_status")) == []
            await call("close")

        asyncio.run(calls())


@pytest.mark.galatea_only
@pytest.mark.parametrize("name", ["", "r"])
def test_a_cuda_region_without_a_handle_has_invalid_arguments(sharing: Server, name: str) -> None:
    """This also works without a GPU. Triton 2.51's build without GPUs returns that error
    instead."""

    async def call() -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(sharing.grpc_url) as client:
            await client.register_cuda_shared_memory(name, b"", 0, 0)

    expected = "failed to register shared memory region.*invalid args"
    with pytest.raises(InferenceServerException, match=expected):
        asyncio.run(call())
    assert sharing.get("/v2/cudasharedmemory/status").json() == []


@pytest.mark.galatea_only
# row: SHM-01 CLI-25 SEC-04
def test_without_the_flag(server: Server) -> None:
    """Only the status works. The refusals of calls about regions name the flag."""
    assert system_status(server) == []
    with shared_object(PAGE) as one:
        body = json.dumps({"key": one.key, "byte_size": 8}).encode()
        for kind in ("system", "cuda"):
            for path in ("region/r/register", "region/r/unregister", "unregister", "register"):
                reply = server.request("POST", f"/v2/{kind}sharedmemory/{path}", body)
                assert (reply.status, reply.error()) == (501, DISABLED)
        with grpc_stub(server) as stub:
            call = stub.SystemSharedMemoryRegister
            message = service_pb2.SystemSharedMemoryRegisterRequest(key=one.key, byte_size=8)
            error = refusal(call, message)
            assert (error.code().name, error.details()) == ("UNIMPLEMENTED", DISABLED)
            message = service_pb2.SystemSharedMemoryUnregisterRequest()
            error = refusal(stub.SystemSharedMemoryUnregister, message)
            assert (error.code().name, error.details()) == ("UNIMPLEMENTED", DISABLED)
    given = ("FP32", [1, 4], "r", 16, 0)
    for protocol in PROTOCOLS:
        with pytest.raises(InferenceServerException, match="find shared memory region: 'r'"):
            infer(server, protocol, "identity_fp32", {"INPUT0": given}, {})
    extensions = server.get("/v2").json()["extensions"]
    assert {"system_shared_memory", "cuda_shared_memory"} <= set(extensions)


@pytest.mark.galatea_only
@pytest.mark.parametrize("value", ["false", "0"])
# row: CLI-25
def test_the_flag_may_say_no(
    start_server: StartServer, tmp_path: pathlib.Path, value: str
) -> None:
    """The same as without it."""
    with start_server(tmp_path, f"--allow-client-shm={value}") as server:
        server.wait_until_ready()
        reply = server.request("POST", "/v2/systemsharedmemory/unregister", b"")
        assert (reply.status, reply.error()) == (501, DISABLED)


@contextlib.contextmanager
def executing(
    server: Server, protocol: str, tensors: dict[str, Any], place: tuple[str, int, int] | None
) -> Iterator[None]:
    """During the block, a slow request executes; after it, the request has its response."""
    failures: list[Exception] = []

    def use() -> None:
        try:
            infer(server, protocol, "slow", tensors, {"OUTPUT0": place})
        except InferenceServerException as error:
            failures.append(error)

    def is_executing() -> bool:
        status = server.get("/v2/models/slow/scheduler").body
        return b"executing" in status or b"busy" in status

    thread = threading.Thread(target=use)
    thread.start()
    try:
        wait_until(is_executing, 30, "the request executes")
        yield
        assert thread.is_alive()
    finally:
        thread.join()
    assert not failures


@pytest.mark.galatea_only
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("everything", [False, True])
# row: SHM-04
def test_a_region_in_use_is_unregistered_later(
    sharing: Server, protocol: str, everything: bool
) -> None:
    """It is listed, is found and keeps its name until the last request has ended; then it is
    gone."""
    given = {"INPUT0": ("FP32", [1, 4], "in", 16, 0)}
    with shared_object(PAGE) as first, shared_object(PAGE) as second:
        first.put(VALUES.tobytes())
        for name in ("in", "out", "unused"):
            register(sharing, name, first.key, PAGE)
        before = system_status(sharing)
        with executing(sharing, protocol, given, ("out", 16, 64)):
            for name in [""] if everything else ["in", "out", "unused"]:
                unregister(sharing, name)
            # The input was copied, but is in use nevertheless.
            assert system_status(sharing) == [one for one in before if one["name"] != "unused"]
            with pytest.raises(InferenceServerException, match="'in' already in manager"):
                register(sharing, "in", second.key, PAGE)
            infer(sharing, "http", "identity_fp32", given, {"OUTPUT0": ("out", 16, 128)})
        assert system_status(sharing) == []
        register(sharing, "in", second.key, PAGE)
        assert first.get(16, 64) == first.get(16, 128) == VALUES.tobytes()
        assert second.get(16, 64) == bytes(16)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_fp32", "onnx_identity_fp32"])
def test_a_region_is_out_of_use_when_its_client_has_the_response(
    sharing: Server, protocol: str, model: str
) -> None:
    """When a client has its response, the name is free."""
    given = {"INPUT0": ("FP32", [1, 4], "r", 16, 0)}
    with shared_object(PAGE) as one:
        for _ in range(20):
            register(sharing, "r", one.key, PAGE)
            infer(sharing, protocol, model, given, {"OUTPUT0": ("r", 16, 64)})
            unregister(sharing, "r")
            assert system_status(sharing) == []


@pytest.mark.galatea_only
def test_a_client_that_does_not_read_keeps_no_name(sharing: Server) -> None:
    """A request ends when its response is created, even if its client never reads it."""
    values = np.zeros([1, 1 << 22], dtype=np.float32)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": values.nbytes}
    request = {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1 << 22], "parameters": place}
        ]
    }
    body = json.dumps(request).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    address = ("127.0.0.1", int(sharing.http_url.rsplit(":", 1)[1]))
    with shared_object(values.nbytes) as one, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address)
        register(sharing, "r", one.key, values.nbytes)
        client.sendall(head.encode() + b"\r\n" + body)
        # The response has begun, and is longer than what the system buffers for its reader.
        client.recv(1)
        unregister(sharing, "r")
        assert system_status(sharing) == []
        register(sharing, "r", one.key, PAGE)


def test_a_key_is_opened_anew(sharing: Server) -> None:
    """A region belongs to the object of its registration, not to a later one of that name."""
    with shared_object(PAGE) as one:
        one.put(VALUES.tobytes())
        register(sharing, "old", one.key, PAGE)
        one.path.unlink()
        other = os.open(one.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.pwrite(other, (-VALUES).tobytes().ljust(PAGE, b"\0"), 0)
            register(sharing, "new", one.key, PAGE)
        finally:
            os.close(other)
        for name, expected in (("old", VALUES), ("new", -VALUES)):
            given = ("FP32", [1, 4], name, 16, 0)
            result = infer(sharing, "grpc", "identity_fp32", {"INPUT0": given}, {})
            assert (result.as_numpy("OUTPUT0") == expected).all()


@pytest.mark.galatea_only
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_fp32", "onnx_identity_fp32"])
def test_a_shortened_region_fails_its_requests(
    sharing: Server, protocol: str, model: str
) -> None:
    """In Triton the process ends."""
    with shared_object(4 * PAGE) as short, shared_object(4 * PAGE) as sound:
        register(sharing, "short", short.key, 4 * PAGE)
        register(sharing, "sound", sound.key, 4 * PAGE)
        short.resize(PAGE)
        for source, target in (("short", None), ("short", "sound"), ("sound", "short")):
            given = ("FP32", [1, 2048], source, 8192, 0)
            place = target and (target, 8192, 0)
            with pytest.raises(InferenceServerException, match=SHRUNK):
                infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": place})
        given = ("FP32", [1, 4], "short", 16, 0)
        infer(sharing, protocol, model, {"INPUT0": given}, {"OUTPUT0": ("sound", 16, 0)})
        check_serving(sharing)


@pytest.mark.galatea_only
def test_strings_are_checked_in_a_copy(sharing: Server) -> None:
    """If lengths change while requests read them, the requests are refused, or the strings are
    complete."""
    good = b"".join(struct.pack("<I", 60) + b"x" * 60 for _ in range(64))
    bad = struct.pack("<I", 0xFFFFFFFF) * 1024
    is_over = threading.Event()
    with shared_object(PAGE) as one:
        one.put(good)
        register(sharing, "r", one.key, PAGE)

        def rewrite() -> None:
            while not is_over.is_set():
                one.put(bad)
                one.put(good)

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            for model in ("identity_bytes", "onnx_identity_bytes"):
                given = ("BYTES", [1, 64], "r", len(good), 0)
                for _ in range(100):
                    try:
                        result = infer(sharing, "http", model, {"INPUT0": given}, {})
                    except InferenceServerException as error:
                        assert "string" in str(error) or "element" in str(error), error
                    else:
                        assert result.as_numpy("OUTPUT0").shape == (1, 64)
        finally:
            is_over.set()
            writer.join()
        check_serving(sharing)


class Hostile(threading.Thread):
    """A client that shortens, rewrites and deletes its region during inferences."""

    def __init__(self, server: Server, is_over: threading.Event) -> None:
        """Not started yet."""
        super().__init__()
        self.server, self.is_over = server, is_over
        self.failed = self.succeeded = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Continues until the end."""
        try:
            while not self.is_over.is_set():
                with shared_object(64 * PAGE) as one:
                    self.use(one)
        except BaseException as error:
            self.error = error

    def use(self, one: Object) -> None:
        """One life cycle of a region."""
        stop = threading.Event()

        def spoil() -> None:
            while not stop.is_set():
                one.resize(PAGE)
                one.resize(64 * PAGE)
                one.put(b"\xff" * PAGE * 8)

        register(self.server, "hostile", one.key, 64 * PAGE)
        spoiler = threading.Thread(target=spoil)
        spoiler.start()
        for model in ("identity_fp32", "onnx_identity_fp32", "onnx_identity_bytes"):
            kind = "BYTES" if "bytes" in model else "FP32"
            given = (kind, [1, 32 * PAGE // 4], "hostile", 32 * PAGE, 0)
            place = ("hostile", 32 * PAGE, 32 * PAGE)
            for _ in range(10):
                try:
                    infer(self.server, "grpc", model, {"INPUT0": given}, {"OUTPUT0": place})
                    self.succeeded += 1
                except InferenceServerException as error:
                    text = str(error)
                    assert SHRUNK in text or "string" in text or "element" in text, text
                    self.failed += 1
        one.path.unlink()
        stop.set()
        spoiler.join()
        unregister(self.server, "hostile")


@pytest.mark.galatea_only
def test_a_client_that_spoils_its_region_disturbs_no_other(sharing: Server) -> None:
    """Meanwhile, eight others send inferences at full speed, using their own regions."""
    is_over = threading.Event()
    counts, errors = [0] * 8, []

    def work(number: int) -> None:
        model = ("identity_fp32", "onnx_identity_fp32")[number % 2]
        with shared_object(64 * PAGE) as one:
            values = np.full((1, 8192), number, dtype=np.float32)
            one.put(values.tobytes())
            name = f"sound_{number}"
            register(sharing, name, one.key, 64 * PAGE)
            kind = tritonclient.http if number % 4 < 2 else tritonclient.grpc
            url = sharing.http_url if number % 4 < 2 else sharing.grpc_url
            tensor = kind.InferInput("INPUT0", [1, 8192], "FP32")
            tensor.set_shared_memory(name, values.nbytes)
            output = kind.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory(name, values.nbytes, 32 * PAGE)
            with kind.InferenceServerClient(url) as client:
                while not is_over.is_set():
                    one.put(bytes(values.nbytes), 32 * PAGE)
                    client.infer(model, [tensor], outputs=[output])
                    assert one.get(values.nbytes, 32 * PAGE) == values.tobytes()
                    counts[number] += 1

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    hostile = Hostile(sharing, is_over)
    for thread in [*workers, hostile]:
        thread.start()
    deadline = time.monotonic() + SECONDS

    def is_enough() -> bool:
        if errors or hostile.error or not hostile.is_alive():
            return True
        return time.monotonic() > deadline and hostile.failed > 0 and min(counts) > 0

    wait_until(is_enough, SECONDS + 60, "all have sent requests")
    is_over.set()
    for thread in [*workers, hostile]:
        thread.join()
    print(f"inferences {counts}, hostile {hostile.succeeded} good, {hostile.failed} failed")
    assert not errors and hostile.error is None, (errors, hostile.error)
    check_serving(sharing)


# Published vulnerabilities, see test_security.py.


def status_of_infer(server: Server, **parameters: Any) -> int:
    """The status of an inference with these parameters of its input."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "parameters": parameters}
    return server.infer(GOOD_MODEL, {"inputs": [tensor]}).status


@pytest.mark.galatea_only
# row: SHM-05
def test_cve_2024_0088_2025_23328_offsets_and_sizes_are_bounded(sharing: Server) -> None:
    """Registering beyond an object, and tensors beyond a region, with sums that overflow."""
    with shared_object(PAGE) as one:

        def attempt() -> None:
            for offset, size in ((0, 2 * PAGE), (PAGE, 1), (2**63, 2**63), (PAGE, 2**64 - PAGE),
                                 (2**64 - 1, 2), (-1, 8), (0, -8), (0, 2**64), (0, 0)):
                body = {"key": one.key, "offset": offset, "byte_size": size}
                path = "/v2/systemsharedmemory/region/bad/register"
                reply = sharing.request("POST", path, json.dumps(body).encode())
                assert reply.status in (400, 500) and reply.error(), (offset, size, reply)
            register(sharing, "r", one.key, 64)
            region = {"shared_memory_region": "r"}
            for offset, size in ((64, 4), (61, 4), (2**63, 2**63), (1, 2**64 - 1), (0, 65),
                                 (2**64 - 4, 8), (-4, 4), (0, -1), (0, 2**64)):
                place = {"shared_memory_offset": offset, "shared_memory_byte_size": size}
                assert status_of_infer(sharing, **region, **place) in (400, 500)
            assert status_of_infer(sharing, **region, shared_memory_byte_size=4) == 200
            unregister(sharing, "r")

        repeat(sharing, attempt)
    assert system_status(sharing) == []


@pytest.mark.galatea_only
def test_cve_2024_0116_2026_47478_unregistering_in_use_frees_nothing_early(
    sharing: Server,
) -> None:
    """Registering and unregistering while requests use the region."""
    with shared_object(PAGE) as one:
        one.put(VALUES.tobytes())
        given = ("FP32", [1, 4], "r", 16, 0)

        def attempt() -> None:
            register(sharing, "r", one.key, PAGE)
            result: list[Any] = []

            def use() -> None:
                try:
                    result.append(infer(sharing, "grpc", "identity_fp32", {"INPUT0": given},
                                        {"OUTPUT0": ("r", 16, 64)}))
                except InferenceServerException as error:
                    result.append(error)

            users = [threading.Thread(target=use) for _ in range(2)]
            for user in users:
                user.start()
            unregister(sharing, "r")
            for user in users:
                user.join()
            for one_result in result:
                if isinstance(one_result, InferenceServerException):
                    assert "Unable to find shared memory region: 'r'" in str(one_result)

        repeat(sharing, attempt)


@pytest.mark.galatea_only
# row: SHM-08
def test_cve_2025_23320_2025_23329_2025_23333_2025_23334_internal_regions_are_refused(
    sharing: Server,
) -> None:
    """The memory of worker processes can't be registered, regardless of slashes in the name."""
    prefix = "triton_python_backend_shm_region_"
    with shared_object(PAGE) as one:
        internal = one.path.with_name(f"{prefix}{uuid.uuid4().hex}")
        internal.write_bytes(bytes(PAGE))
        link = one.path.with_name(f"{one.path.name}_link")
        link.symlink_to(internal)
        keys = [f"{slashes}{internal.name}" for slashes in ("", "/", "///")]

        def attempt() -> None:
            for key in [*keys, f"/{prefix}", f"/{link.name}", f"/../shm/{internal.name}"]:
                body = json.dumps({"key": key, "byte_size": 64}).encode()
                path = "/v2/systemsharedmemory/region/bad/register"
                assert sharing.request("POST", path, body).status in (400, 500)
                with grpc_stub(sharing) as stub:
                    message = service_pb2.SystemSharedMemoryRegisterRequest(
                        name="bad", key=key, byte_size=64
                    )
                    refusal(stub.SystemSharedMemoryRegister, message)

        try:
            repeat(sharing, attempt)
        finally:
            internal.unlink()
            link.unlink()
    assert system_status(sharing) == []
