"""Compares Triton's own backend `openvino`, compiled elsewhere, with ours on the same models."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server
from transports import TRANSPORTS

openvino = pytest.importorskip("openvino", reason="the package openvino is not installed")

from openvino_models import SUITE, OpenVinoModel, Tensors, parameter, saved  # noqa: E402

#: A directory of backends with openvino/libtriton_openvino.so, which was linked against the
#: library of the installed package.
ORIGINAL = os.environ.get("GALATEA_TRITON_OPENVINO")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(not ORIGINAL, reason="needs Triton's backend in GALATEA_TRITON_OPENVINO"),
]

LIBRARIES = pathlib.Path(openvino.__file__).parent / "libs"
#: Models that Triton's backend refuses to load and ours serves. It compares the sizes that it
#: completed itself, -1, with those of the model; it has neither FP64 nor such changes of shapes.
ADDED = {
    "elements", "frozen_graph", "converted", "double", "half", "lite_file", "onnx_file", "perceptron",
    "reshaped", "saved_model", "several_outputs", "shapes_by_contents", "unnamed_input",
    "without_names",
}  # fmt: skip
FULL_BATCH = "expected requests with batch size '"


def sizes(batch: int, one: str, dims: str, other: str = "FP32", outputs: str = "4") -> str:
    """A configuration with a batch size and these types and dimensions."""
    return (
        f"max_batch_size: {batch} input {{ name: 'x' data_type: TYPE_{one} dims: [ {dims} ] }} "
        f"output {{ name: 'y' data_type: TYPE_{other} dims: [ {outputs} ] }}"
    )


def setting(key: str, value: str) -> str:
    """A configuration with a parameter."""
    return f"max_batch_size: 1 parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}"


CONFIGS = {
    "as_it_is": sizes(0, "FP32", "1, 4", outputs="1, 4"),
    "variable": sizes(0, "FP32", "-1, 4", outputs="1, 4"),
    "rank": sizes(0, "FP32", "4", outputs="1, 4"),
    "size": sizes(2, "FP32", "5"),
    "open_input": sizes(2, "FP32", "-1"),
    "open_output": sizes(2, "FP32", "4", outputs="-1"),
    "integers": sizes(2, "INT8", "4"),
    "booleans": sizes(2, "BOOL", "4", other="BOOL"),
    "shorts": sizes(2, "FP32", "4", other="FP16"),
    "strings": sizes(2, "STRING", "4"),
    "double": sizes(2, "FP64", "4"),
    "half": sizes(2, "FP32", "4", other="BF16"),
    "dims": sizes(2, "FP32", "2, 2"),
    "threads": setting("INFERENCE_NUM_THREADS", "1"),
    "no_threads": setting("INFERENCE_NUM_THREADS", "X"),
    "compilation": setting("COMPILATION_NUM_THREADS", "2"),
    "no_compilation": setting("COMPILATION_NUM_THREADS", "-1"),
    "bf16": setting("HINT_BF16", "Yes"),
    "no_bf16": setting("HINT_BF16", "no"),
    "streams": setting("NUM_STREAMS", "2"),
    "all_streams": setting("NUM_STREAMS", "AUTO"),
    "no_streams": setting("NUM_STREAMS", "x"),
    "hint": setting("PERFORMANCE_HINT", "throughput"),
    "no_hint": setting("PERFORMANCE_HINT", "Fast"),
    "auto": setting("TARGET_DEVICE", "auto"),
    "no_device": setting("TARGET_DEVICE", "warp"),
    "no_extension": setting("CPU_EXTENSION_PATH", "/no/such.so"),
    "skip": setting("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"),
    "reshape": setting("RESHAPE_IO_LAYERS", "true"),
    "two": "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 4 ] },"
    " { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] } ]",
    "input_name": "input { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] }",
    "output_name": "output { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] }",
    "kind": "instance_group { kind: KIND_MODEL }",
}


def small(config: str) -> OpenVinoModel:
    """A model that consists of only a configuration."""
    x = parameter("x", [1, 4])
    y = openvino.opset15.relu(x)
    y.output(0).set_names({"y"})
    datatypes = {"integers": numpy.int8, "booleans": numpy.bool_}
    rows = 2 if "max_batch_size: 2" in config else 1
    values = numpy.arange(4 * rows).reshape(rows, 4) - 3
    name = next((name for name, text in CONFIGS.items() if text == config), "")
    request = {"x": values.astype(datatypes.get(name, numpy.float32))}
    return OpenVinoModel(saved([y.output(0)], [x]), [request], f'backend: "openvino" {config}')


MODELS = {**SUITE, **{name: lambda config=config: small(config) for name, config in CONFIGS.items()}}


@pytest.fixture(scope="module")
def servers(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Server]]:
    """Two servers for one repository: one with our backend, and one with Triton's."""
    repository = tmp_path_factory.mktemp("both")
    for name, make in MODELS.items():
        model = make()
        version = repository / name / "1"
        version.mkdir(parents=True)
        model.write(version / model.file)
        if model.config:
            (version.parent / "config.pbtxt").write_text(model.config)
    library = max(LIBRARIES.glob("libopenvino_c.so*"))
    explicit = "--model-control-mode=explicit"
    with contextlib.ExitStack() as stack:
        flags = [[f"--openvino-library={library}"], [f"--backend-directory={ORIGINAL}"]]
        yield [
            stack.enter_context(start_server(repository, explicit, *one)).wait_until_ready()
            for one in flags
        ]


def answer(server: Server, name: str, request: Tensors) -> Tensors | str:
    """The outputs, or the error."""
    client = TRANSPORTS["http"](server)
    with contextlib.closing(client):
        try:
            return client.infer(name, request)
        except InferenceServerException as error:
            return str(error)


@pytest.mark.parametrize("name", MODELS)
# row: BE-03 CFG-25
def test_a_model_is_as_with_tritons_backend(servers: list[Server], name: str) -> None:
    """The load or its error, the configuration, and the response to each request."""
    load = f"/v2/repository/models/{name}/load"
    ours, theirs = (server.request("POST", load, b"{}") for server in servers)
    if name in ADDED:
        assert (ours.status, theirs.status) == (200, 400)
        return
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    if ours.status != 200:
        return
    for path in (f"/v2/models/{name}/config", f"/v2/models/{name}"):
        ours, theirs = (server.request("GET", path) for server in servers)
        assert ours.body == theirs.body
    for request in MODELS[name]().requests:
        ours, theirs = (answer(server, name, request) for server in servers)
        if isinstance(theirs, str) and FULL_BATCH in theirs:
            assert not isinstance(ours, str), ours
            continue
        assert not isinstance(ours, str) and not isinstance(theirs, str), (ours, theirs)
        assert sorted(ours) == sorted(theirs)
        for output, array in theirs.items():
            assert (ours[output].dtype, ours[output].shape) == (array.dtype, array.shape)
            numpy.testing.assert_allclose(ours[output], array, rtol=1e-6, atol=1e-6)
