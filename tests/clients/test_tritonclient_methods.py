"""Tests every public method of the four clients of `tritonclient`.

The methods are found by introspection, so one that a later release adds fails here until it has an
entry in `CALLS`.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from client_kits import LIBRARIES, Kit, Responses, close, public_names
from conftest import StartServer
from server import Server
from shm_clients import PAGE, shared_object

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]
MODEL = """
backend: "identity" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
CHANGED = {
    "backend": "identity",
    "max_batch_size": 3,
    "input": [{"name": "INPUT0", **TENSOR}],
    "output": [{"name": "OUTPUT0", **TENSOR}],
}
VALUES = np.array([[1.5, -2, 3.25]], dtype=np.float32)
USER = BasicAuth("ann", "secret")
#: What the server demands of those who read its log settings.
SECRET = "authorization=Basic YW5uOnNlY3JldA=="

Call = Callable[[Kit], Awaitable[None]]


@pytest.fixture(scope="module")
def open_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with all extensions; the model `spare` is not loaded."""
    repository = tmp_path_factory.mktemp("methods")
    for name in ("numbers", "spare"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(MODEL)
    flags = (
        "--model-control-mode=explicit",
        "--load-model=numbers",
        "--allow-client-shm=true",
        f"--trace-config=triton,file={repository.parent / 'methods_traces.json'}",
    )
    with start_server(repository, *flags) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def same(result: Any, values: np.ndarray = VALUES) -> bool:
    """Returns true if the output is the same as the input."""
    return bool((result.as_numpy("OUTPUT0") == values).all())


async def health(kit: Kit) -> None:
    """Server and model."""
    assert await kit.call("is_server_live") is True
    assert await kit.call("is_server_ready") is True
    assert await kit.call("is_model_ready", "numbers") is True
    assert await kit.call("is_model_ready", "numbers", "1") is True
    assert await kit.call("is_model_ready", "spare") is False


async def metadata(kit: Kit) -> None:
    """Server, model and configuration."""
    server = await kit.read("get_server_metadata")
    assert (server["name"], server["extensions"]) == ("triton", EXTENSIONS)
    model = await kit.read("get_model_metadata", "numbers", "1")
    assert (model["name"], model["versions"]) == ("numbers", ["1"])
    assert [one["name"] for one in model["inputs"] + model["outputs"]] == ["INPUT0", "OUTPUT0"]
    config = await kit.read("get_model_config", "numbers", "1")
    config = config if kit.is_http else config["config"]
    assert (config["name"], config["max_batch_size"]) == ("numbers", 8)


async def repository(kit: Kit) -> None:
    """A model is loaded with a configuration, with files, and unloaded."""

    async def states() -> dict[str, str]:
        index = await kit.read("get_model_repository_index")
        models = index if kit.is_http else index["models"]
        return {f"{one['name']} {one.get('version')}": one.get("state", "") for one in models}

    await kit.call("load_model", "spare", config=json.dumps(CHANGED))
    assert (await states())["spare 1"] == "READY"
    config = await kit.read("get_model_config", "spare")
    assert (config if kit.is_http else config["config"])["max_batch_size"] == 3
    files = {"file:2/note.txt": b"a file of the second version"}
    await kit.call("load_model", "spare", config=json.dumps(CHANGED), files=files)
    assert (await kit.read("get_model_metadata", "spare"))["versions"] == ["2"]
    assert (await states())["spare 2"] == "READY"
    await kit.call("unload_model", "spare", unload_dependents=True)
    with pytest.raises(InferenceServerException):
        await kit.call("get_model_metadata", "spare")
    with pytest.raises(InferenceServerException, match="failed to load 'absent'"):
        await kit.call("load_model", "absent")


async def statistics(kit: Kit) -> None:
    """The statistics of all models and of one version."""
    await kit.call("infer", "numbers", [kit.input(VALUES)])
    for arguments in ((), ("numbers",), ("numbers", "1")):
        found = (await kit.read("get_inference_statistics", *arguments))["model_stats"]
        (entry,) = (one for one in found if one["name"] == "numbers")
        assert int(entry["inference_count"]) >= 1
        assert int(entry["inference_stats"]["success"]["count"]) >= 1


async def traces(kit: Kit) -> None:
    """Settings for all models and for one model, which are reset to those for all."""

    async def settings(method: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        found = await kit.read(method, *arguments, **named)
        if kit.is_http:
            return found
        values = {name: one.get("value", []) for name, one in found["settings"].items()}
        return {k: v if k == "trace_level" else v[0] for k, v in values.items() if v}

    before = await settings("get_trace_settings")
    given = {"trace_level": ["TIMESTAMPS"], "trace_rate": "7", "trace_count": "3"}
    changed = await settings("update_trace_settings", settings=given)
    assert {name: changed[name] for name in given} == given
    one = await settings("update_trace_settings", "numbers", {"trace_rate": "5"})
    assert one["trace_rate"] == "5"
    assert (await settings("get_trace_settings", "numbers"))["trace_rate"] == "5"
    back = await settings("update_trace_settings", "numbers", {"trace_rate": None})
    assert back["trace_rate"] == "7"
    restored = await settings("update_trace_settings", settings=dict.fromkeys(given))
    assert restored == before
    with pytest.raises(InferenceServerException):
        await kit.call("update_trace_settings", settings={"trace_rate": "often"})


async def log(kit: Kit) -> None:
    """A verbosity level is set and reset."""

    async def settings(method: str, *arguments: Any) -> dict[str, Any]:
        found = await kit.read(method, *arguments)
        if kit.is_http:
            return found
        return {name: next(iter(one.values())) for name, one in found["settings"].items() if one}

    before = await settings("get_log_settings")
    changed = await settings("update_log_settings", {"log_verbose_level": 1, "log_info": False})
    assert (changed["log_verbose_level"], changed["log_info"]) == (1, False)
    await settings("update_log_settings", {"log_verbose_level": 0, "log_info": True})
    assert await settings("get_log_settings") == before


async def system_regions(kit: Kit) -> None:
    """A region is listed, used and unregistered, both by name and with all others.

    Triton looks for tensors in regions with an offset in the wrong place.
    """
    start = 0 if kit.server.is_triton else PAGE

    async def names(*arguments: str) -> list[str]:
        found = await kit.read("get_system_shared_memory_status", *arguments)
        return [one["name"] for one in found] if kit.is_http else sorted(found.get("regions", {}))

    with shared_object(2 * PAGE) as one, shared_object(PAGE) as other:
        await kit.call("register_system_shared_memory", "a", one.key, PAGE, offset=start)
        await kit.call("register_system_shared_memory", "b", other.key, PAGE)
        assert await names() == ["a", "b"] and await names("b") == ["b"]
        tensor = kit.library.InferInput("INPUT0", [1, 3], "FP32")
        tensor.set_shared_memory("a", 12, offset=64)
        one.put(VALUES.tobytes(), start + 64)
        assert same(await kit.call("infer", "numbers", [tensor]))
        await kit.call("unregister_system_shared_memory", "a")
        assert await names() == ["b"]
        await kit.call("unregister_system_shared_memory")
        assert await names() == []


async def cuda_regions(kit: Kit) -> None:
    """A server without a GPU has no such regions."""
    found = await kit.read("get_cuda_shared_memory_status")
    assert (found if kit.is_http else found.get("regions", {})) in ([], {})
    with pytest.raises(InferenceServerException, match="invalid args|must be a valid base64"):
        await kit.call("register_cuda_shared_memory", "gpu", b"AAAA", 0, 64)
    with pytest.raises(InferenceServerException, match="Unable to find cuda"):
        await kit.call("get_cuda_shared_memory_status", "gpu")
    await kit.call("unregister_cuda_shared_memory", "gpu")
    await kit.call("unregister_cuda_shared_memory")


def options(kit: Kit) -> dict[str, Any]:
    """All options of an inference request."""
    common = {
        "model_version": "1",
        "outputs": [kit.output()],
        "request_id": "seven",
        "priority": 0,
        "timeout": 50_000_000,
        "headers": {"x-one": "1"},
        "parameters": {"text": "a", "number": 1, "flag": True},
    }
    if not kit.is_http:
        return {**common, "client_timeout": 60, "compression_algorithm": "gzip"}
    sides = {f"{side}_compression_algorithm": "gzip" for side in ("request", "response")}
    return {**common, **sides, "query_params": {"a": "b"}}


async def inference(kit: Kit) -> None:
    """Without options and with all of them; an error has the library's type."""
    assert same(await kit.call("infer", "numbers", [kit.input(VALUES)]))
    result = await kit.call("infer", "numbers", [kit.input(VALUES)], **options(kit))
    assert same(result)
    response = result.get_response()
    assert (response["id"] if kit.is_http else response.id) == "seven"
    with pytest.raises(InferenceServerException, match="unknown model: 'absent'"):
        await kit.call("infer", "absent", [kit.input(VALUES)])


async def later(kit: Kit) -> None:
    """Many at the same time; over gRPC, a callback gets the results."""
    arrays = [VALUES * factor for factor in range(8)]
    if kit.is_http:
        calls = [await kit.call("async_infer", "numbers", [kit.input(one)]) for one in arrays]
        assert all(same(call.get_result(), one) for call, one in zip(calls, arrays, strict=True))
        return
    responses = Responses(len(arrays))
    for one in arrays:
        await kit.call("async_infer", "numbers", [kit.input(one)], responses, **options(kit))
    sums = sorted(float(result.as_numpy("OUTPUT0").sum()) for result in responses.results())
    assert sums == sorted(float(one.sum()) for one in arrays)
    refused = Responses(1)
    call = await kit.call("async_infer", "absent", [kit.input(VALUES)], refused)
    (pair,) = refused.wait()
    assert "unknown model" in str(pair[1])
    call.cancel()


async def bodies(kit: Kit) -> None:
    """Requests and responses for other HTTP clients."""
    kit.called |= {"generate_request_body", "parse_response_body"}
    body, length = type(kit.client).generate_request_body([kit.input(VALUES)], request_id="x")
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    reply = kit.server.request("POST", "/v2/models/numbers/infer", body, headers)
    found = reply.headers["Inference-Header-Content-Length"]
    parse = type(kit.client).parse_response_body
    assert same(parse(reply.body, header_length=int(found) if found else None))


async def stream(kit: Kit) -> None:
    """Requests on one stream, in order, with all options."""
    given = {k: v for k, v in options(kit).items() if k in ("outputs", "parameters", "timeout")}
    arrays = [VALUES * factor for factor in range(4)]
    responses = Responses(len(arrays))
    await kit.call("start_stream", responses, headers={"x-one": "1"}, compression_algorithm="gzip")
    for one in arrays:
        await kit.call("async_stream_infer", "numbers", [kit.input(one)], **given)
    pairs = zip(responses.results(), arrays, strict=True)
    assert all(same(result, one) for result, one in pairs)
    await kit.call("stop_stream")
    await kit.call("start_stream", Responses(1))
    await kit.call("stop_stream", cancel_requests=True)


async def asyncio_stream(kit: Kit) -> None:
    """The same with an iterator of requests and an iterator of responses."""
    arrays = [VALUES * factor for factor in range(4)]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for index, one in enumerate(arrays):
            yield {"model_name": "numbers", "inputs": [kit.input(one)], "request_id": str(index)}

    responses = await kit.call("stream_infer", requests(), headers={"x-one": "1"})
    found = [response async for response in responses]
    assert [error for _, error in found] == [None] * len(arrays)
    assert all(same(result, one) for (result, _), one in zip(found, arrays, strict=True))


async def plugins(kit: Kit) -> None:
    """A plug-in adds a header to each request until it is removed."""
    assert await kit.call("plugin") is None
    await kit.call("register_plugin", USER)
    assert await kit.call("plugin") is USER
    with pytest.raises(InferenceServerException, match="already registered"):
        await kit.call("register_plugin", USER)
    assert await kit.call("is_server_live")
    await kit.call("unregister_plugin")
    with pytest.raises(InferenceServerException, match="No plugin"):
        await kit.call("unregister_plugin")


async def end(kit: Kit) -> None:
    """The connection is closed permanently."""
    assert await kit.call("is_server_live")
    await kit.call("close")


CALLS: dict[str, Call] = {
    "async_infer": later,
    "async_stream_infer": stream,
    "close": end,
    "generate_request_body": bodies,
    "get_cuda_shared_memory_status": cuda_regions,
    "get_inference_statistics": statistics,
    "get_log_settings": log,
    "get_model_config": metadata,
    "get_model_metadata": metadata,
    "get_model_repository_index": repository,
    "get_server_metadata": metadata,
    "get_system_shared_memory_status": system_regions,
    "get_trace_settings": traces,
    "infer": inference,
    "is_model_ready": health,
    "is_server_live": health,
    "is_server_ready": health,
    "load_model": repository,
    "parse_response_body": bodies,
    "plugin": plugins,
    "register_cuda_shared_memory": cuda_regions,
    "register_plugin": plugins,
    "register_system_shared_memory": system_regions,
    "start_stream": stream,
    "stop_stream": stream,
    "stream_infer": asyncio_stream,
    "unload_model": repository,
    "unregister_cuda_shared_memory": cuda_regions,
    "unregister_plugin": plugins,
    "unregister_system_shared_memory": system_regions,
    "update_log_settings": log,
    "update_trace_settings": traces,
}
METHODS = [
    (kind, method)
    for kind, library in LIBRARIES.items()
    for method in public_names(library.InferenceServerClient)
]
KNOWN = [(kind, name, CALLS[name].__name__) for kind, name in METHODS if name in CALLS]
SCENES = sorted({(kind, scene) for kind, _, scene in KNOWN})
BY_NAME = {call.__name__: call for call in CALLS.values()}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_every_method_is_in_the_table(kind: str) -> None:
    """Methods of a later release need an entry, and methods that were removed must not have
    one."""
    here = {name for one, name in METHODS if one == kind}
    assert here <= set(CALLS), "these have no call here"
    assert set(CALLS) == {name for _, name in METHODS}


@pytest.mark.parametrize(("kind", "scene"), SCENES)
# row: DEP-03
def test_methods(open_server: Server, kind: str, scene: str) -> None:
    """Each scene calls all of the client's methods that the table assigns to it."""

    async def play() -> set[str]:
        kit = Kit(kind, open_server)
        try:
            await BY_NAME[scene](kit)
        finally:
            await close(kit)
        return kit.called

    mine = {name for one, name, of in KNOWN if (one, of) == (kind, scene)}
    assert mine <= asyncio.run(play())


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_plugin_authenticates(
    start_server: StartServer, tmp_path: pathlib.Path, kind: str
) -> None:
    """The library's own plug-in sends what a server requires over HTTP, and another does so
    over gRPC."""

    class Secret:
        def __call__(self, request: Any) -> None:
            request.headers["triton-grpc-protocol-key"] = secret

    secret = uuid.uuid4().hex
    flags = (
        f"--http-restricted-api=logging:{SECRET}",
        f"--grpc-restricted-protocol=logging:key={secret}",
    )

    async def play(server: Server) -> None:
        kit = Kit(kind, server)
        with pytest.raises(InferenceServerException, match="restricted"):
            await kit.call("get_log_settings")
        await kit.call("register_plugin", USER if kit.is_http else Secret())
        assert await kit.call("get_log_settings")
        await kit.call("unregister_plugin")
        with pytest.raises(InferenceServerException, match="restricted"):
            await kit.call("get_log_settings")
        await close(kit)

    with start_server(tmp_path, *flags) as server:
        asyncio.run(play(server.wait_until_ready()))
