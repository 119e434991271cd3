"""Tests every public method of the tensors, results and helpers of `tritonclient`.

As in `test_tritonclient_methods.py`, names are found by introspection.
"""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http
import tritonclient.utils
from tritonclient.utils import InferenceServerException, shared_memory

from client_kits import LIBRARIES, Kit, close, public_names
from conftest import StartServer
from server import Server
from shm_clients import PAGE, shared_object

MODEL = """
backend: "identity" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_{0} dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_{0} dims: [ -1 ] }}
"""
DATATYPES = {
    "BOOL": bool,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "STRING": np.object_,
}
VALUES = np.array([[1.5, -2, 3.25]], dtype=np.float32)
TEXTS = np.array([[b"abc", b"", "käse".encode()]], dtype=np.object_)
#: What each class has in all libraries, unless a library is named.
MEMBERS = {
    "InferInput": [
        *("datatype", "name", "set_data_from_numpy", "set_shape", "set_shared_memory", "shape")
    ],
    "InferRequestedOutput": ["name", "set_shared_memory", "unset_shared_memory"],
    "InferResult": ["as_numpy", "get_output", "get_response"],
}
ONLY_OVER_HTTP = {"InferResult": ["from_response_body"], "InferAsyncRequest": ["get_result"]}
FUNCTIONS = {
    tritonclient.utils: [
        *("deserialize_bytes_tensor", "np_to_triton_dtype", "raise_error"),
        *("serialize_byte_tensor", "serialized_byte_size", "triton_to_np_dtype"),
    ],
    shared_memory: [
        *("create_shared_memory_region", "destroy_shared_memory_region"),
        *("get_contents_as_numpy", "mapped_shared_memory_regions", "set_shared_memory_region"),
    ],
}


@pytest.fixture(scope="module")
def typed(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model for each data type, whose clients may share memory."""
    repository = tmp_path_factory.mktemp("values")
    for name in DATATYPES:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(MODEL.format(name))
    with start_server(repository, "--allow-client-shm=true") as running:
        yield running.wait_until_ready()


def with_kit(kind: str, server: Server, scene: Callable[[Kit], Any]) -> None:
    """Runs a coroutine with one of the clients."""

    async def play() -> None:
        kit = Kit(kind, server)
        try:
            await scene(kit)
        finally:
            await close(kit)

    asyncio.run(play())


@pytest.mark.parametrize("kind", LIBRARIES)
def test_every_member_is_known(kind: str) -> None:
    """Members of a later release need a test here."""
    library = LIBRARIES[kind]
    is_http = kind.startswith("http")
    for name in {*MEMBERS, *(ONLY_OVER_HTTP if is_http else [])}:
        known = MEMBERS.get(name, []) + (ONLY_OVER_HTTP.get(name, []) if is_http else [])
        assert public_names(getattr(library, name)) == sorted(known), name


@pytest.mark.parametrize("module", FUNCTIONS, ids=lambda module: module.__name__)
def test_every_function_is_known(module: ModuleType) -> None:
    """Functions of a later release need a test here."""
    assert public_names(module) == sorted(FUNCTIONS[module])


@pytest.mark.parametrize("kind", LIBRARIES)
# row: DEP-03
def test_inputs(typed: Server, kind: str) -> None:
    """An input's description of itself, a new shape, and memory instead of data."""

    async def scene(kit: Kit) -> None:
        tensor = kit.library.InferInput("INPUT0", [1, 1], "FP32")
        assert (tensor.name(), tensor.datatype()) == ("INPUT0", "FP32")
        assert list(tensor.shape()) == [1, 1]
        with pytest.raises(InferenceServerException, match="unexpected numpy array shape"):
            tensor.set_data_from_numpy(VALUES)
        with pytest.raises(InferenceServerException, match="got unexpected datatype"):
            tensor.set_data_from_numpy(VALUES.astype(np.int32))
        tensor.set_shape([1, 3]).set_data_from_numpy(VALUES)
        assert ((await kit.call("infer", "FP32", [tensor])).as_numpy("OUTPUT0") == VALUES).all()
        with shared_object(PAGE) as one:
            one.put((-VALUES).tobytes(), 8)
            await kit.call("register_system_shared_memory", "r", one.key, PAGE)
            tensor.set_shared_memory("r", VALUES.nbytes, offset=8)
            result = await kit.call("infer", "FP32", [tensor])
            assert (result.as_numpy("OUTPUT0") == -VALUES).all()
            await kit.call("unregister_system_shared_memory", "r")
        tensor.set_data_from_numpy(VALUES)
        assert ((await kit.call("infer", "FP32", [tensor])).as_numpy("OUTPUT0") == VALUES).all()

    with_kit(kind, typed, scene)


@pytest.mark.parametrize("binary", [True, False])
def test_json_and_binary_tensors(typed: Server, binary: bool) -> None:
    """Over HTTP, both sides may be text."""

    async def scene(kit: Kit) -> None:
        for array, model in ((VALUES, "FP32"), (TEXTS, "STRING")):
            datatype = tritonclient.utils.np_to_triton_dtype(array.dtype)
            tensor = kit.library.InferInput("INPUT0", [1, 3], datatype)
            tensor.set_data_from_numpy(array, binary_data=binary)
            wanted = kit.output(binary_data=not binary)
            result = await kit.call("infer", model, [tensor], outputs=[wanted])
            found = result.as_numpy("OUTPUT0")
            if model == "STRING":
                found = np.array([one if binary is False else one.encode() for one in found[0]])
                array = array[0]
            assert (found == array).all()
            assert ("data" in result.get_output("OUTPUT0")) is binary

    with_kit("http", typed, scene)
    with_kit("http aio", typed, scene)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_outputs(typed: Server, kind: str) -> None:
    """Classes, a location in shared memory, and the removal of that location."""

    async def scene(kit: Kit) -> None:
        wanted = kit.output(class_count=2)
        assert wanted.name() == "OUTPUT0"
        result = await kit.call("infer", "FP32", [kit.input(VALUES)], outputs=[wanted])
        classes = [one.split(b":")[1] for one in result.as_numpy("OUTPUT0").reshape(-1)]
        assert classes == [b"2", b"0"]
        with pytest.raises(InferenceServerException, match="classification"):
            wanted.set_shared_memory("r", 12)
        wanted = kit.output()
        with shared_object(PAGE) as one:
            await kit.call("register_system_shared_memory", "r", one.key, PAGE)
            wanted.set_shared_memory("r", 64, offset=16)
            result = await kit.call("infer", "FP32", [kit.input(VALUES)], outputs=[wanted])
            assert one.get(VALUES.nbytes, 16) == VALUES.tobytes()
            if kit.is_http:
                # Only the location is set, neither the data nor its size.
                assert set(result.get_output("OUTPUT0")) >= {"name", "datatype", "shape"}
                assert "data" not in result.get_output("OUTPUT0")
            else:
                assert list(result.get_response().raw_output_contents) == [b""]
            wanted.unset_shared_memory()
            result = await kit.call("infer", "FP32", [kit.input(VALUES)], outputs=[wanted])
            assert (result.as_numpy("OUTPUT0") == VALUES).all()
            await kit.call("unregister_system_shared_memory", "r")

    with_kit(kind, typed, scene)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_results(typed: Server, kind: str) -> None:
    """The response as it arrived, one of its outputs, and nothing for an unknown name."""

    async def scene(kit: Kit) -> None:
        result = await kit.call("infer", "FP32", [kit.input(VALUES)], request_id="x")
        assert result.as_numpy("ABSENT") is None and result.get_output("ABSENT") is None
        response, output = result.get_response(), result.get_output("OUTPUT0")
        if kit.is_http:
            assert (response["model_name"], response["model_version"]) == ("FP32", "1")
            assert list(response) == [
                "id", "model_name", "model_version", "parameters", "outputs",
            ]
            assert (output["name"], output["shape"]) == ("OUTPUT0", [1, 3])
            return
        assert (response.model_name, response.model_version, response.id) == ("FP32", "1", "x")
        assert (output.name, list(output.shape)) == ("OUTPUT0", [1, 3])
        document = result.get_response(as_json=True)
        assert document["model_name"] == "FP32"
        # The library forgets to return it.
        assert result.get_output("OUTPUT0", as_json=True) in (None, document["outputs"][0])

    with_kit(kind, typed, scene)


def test_results_of_other_clients(typed: Server) -> None:
    """A body, and a call that isn't finished."""
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    reply = typed.infer("FP32", body)
    result = tritonclient.http.InferResult.from_response_body(reply.body)
    assert (result.as_numpy("OUTPUT0") == [[1, 2, 3]]).all()
    with tritonclient.http.InferenceServerClient(typed.http_url) as client:
        tensor = tritonclient.http.InferInput("INPUT0", [1, 3], "FP32")
        call = client.async_infer("FP32", [tensor.set_data_from_numpy(VALUES)])
        assert (call.get_result(block=True, timeout=60).as_numpy("OUTPUT0") == VALUES).all()
        refused = client.async_infer("ABSENT", [tensor])
        with pytest.raises(InferenceServerException, match="unknown model"):
            refused.get_result()


@pytest.mark.parametrize("kind", LIBRARIES)
@pytest.mark.parametrize("name", DATATYPES)
# row: CFG-06
def test_datatypes(typed: Server, kind: str, name: str) -> None:
    """The names of types in NumPy and in Triton, and tensors of each type."""
    datatype = "BYTES" if name == "STRING" else name
    assert tritonclient.utils.np_to_triton_dtype(DATATYPES[name]) == datatype
    found = tritonclient.utils.triton_to_np_dtype(datatype)
    array = TEXTS if name == "STRING" else np.array([[0, 1, 1]]).astype(DATATYPES[name])

    async def scene(kit: Kit) -> None:
        tensor = kit.library.InferInput("INPUT0", [1, 3], datatype)
        tensor.set_data_from_numpy(array.astype(found))
        result = (await kit.call("infer", name, [tensor])).as_numpy("OUTPUT0")
        assert (result == array.astype(found)).all()

    with_kit(kind, typed, scene)


def test_strings_in_bytes() -> None:
    """The helpers for strings, and the library's exception."""
    coded = tritonclient.utils.serialize_byte_tensor(TEXTS)
    assert tritonclient.utils.serialized_byte_size(TEXTS) == sum(map(len, TEXTS[0]))
    assert list(tritonclient.utils.deserialize_bytes_tensor(coded.item())) == list(TEXTS[0])
    with pytest.raises(InferenceServerException, match="wrong"):
        tritonclient.utils.raise_error("wrong")


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_regions(typed: Server, kind: str) -> None:
    """The module creates, fills, lists, reads and removes what the server maps."""
    names = [f"region_{uuid.uuid4().hex}" for _ in range(2)]
    handles = [
        shared_memory.create_shared_memory_region(name, f"/{name}", PAGE, create_only=True)
        for name in names
    ]
    with pytest.raises(shared_memory.SharedMemoryException, match="unable to create"):
        shared_memory.create_shared_memory_region("x", f"/{names[0]}", PAGE, create_only=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = shared_memory.create_shared_memory_region("x", f"/{names[0]}", 2 * PAGE)
    assert "reusing shared memory region" in str(caught[0].message)
    assert {f"/{name}" for name in names} <= set(shared_memory.mapped_shared_memory_regions())
    shared_memory.set_shared_memory_region(handles[0], [VALUES, 2 * VALUES], offset=8)

    async def scene(kit: Kit) -> None:
        for name in names:
            await kit.call("register_system_shared_memory", name, f"/{name}", PAGE)
        tensor = kit.library.InferInput("INPUT0", [2, 3], "FP32")
        tensor.set_shared_memory(names[0], 2 * VALUES.nbytes, offset=8)
        wanted = kit.output()
        wanted.set_shared_memory(names[1], 64)
        await kit.call("infer", "FP32", [tensor], outputs=[wanted])
        await kit.call("unregister_system_shared_memory")

    with_kit(kind, typed, scene)
    found = shared_memory.get_contents_as_numpy(handles[1], np.float32, [2, 3])
    assert (found == np.concatenate([VALUES, 2 * VALUES])).all()
    del found
    for handle in (again, *handles):
        shared_memory.destroy_shared_memory_region(handle)
    assert not {f"/{name}" for name in names} & set(shared_memory.mapped_shared_memory_regions())


@pytest.mark.skipif(importlib.util.find_spec("cuda") is not None, reason="CUDA is installed")
def test_the_module_for_gpus_asks_for_cuda() -> None:
    """Without CUDA's package, the module itself reports what it needs."""
    with pytest.raises(RuntimeError, match="CUDA shared memory utilities require"):
        importlib.import_module("tritonclient.utils.cuda_shared_memory")
