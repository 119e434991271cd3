"""Tests of ONNX models on OpenVINO through ONNX Runtime's own provider for it."""

from __future__ import annotations

import os
import pathlib

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from conftest import StartServer
from transports import TRANSPORTS

#: The library of the package onnxruntime-openvino, beside its providers.
LIBRARY = os.environ.get("GALATEA_ONNXRUNTIME_OPENVINO")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(
        not LIBRARY, reason="needs ONNX Runtime with OpenVINO in GALATEA_ONNXRUNTIME_OPENVINO"
    ),
]

ACCELERATED = """\
optimization {{ execution_accelerators {{
  cpu_execution_accelerator {{ name: "openvino" {options} }}
}} }}
"""
OPTION = 'parameters {{ key: "{key}" value: "{value}" }}'
WEIGHTS = numpy.random.default_rng(3).standard_normal((4, 4)).astype(numpy.float32)
#: What the computation of 16-bit numbers on some processors changes.
ERROR_MAX = 0.02


def write(folder: pathlib.Path, config: str) -> None:
    """A small network."""
    (folder / "1").mkdir(parents=True)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "model",
        [tensor("x", TensorProto.FLOAT, ["n", 4])],
        [tensor("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(config)


# row: ONNX-06
def test_a_model_is_executed_by_openvino(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With and without options; an invalid option prevents the model from loading."""
    options = {
        "plain": "",
        "device": OPTION.format(key="device_type", value="CPU"),
        "wrong": OPTION.format(key="nonsense", value="1"),
    }
    for name, text in options.items():
        write(tmp_path / name, ACCELERATED.format(options=text))
    flags = [f"--onnxruntime-library={LIBRARY}", "--model-control-mode=explicit"]
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        for name in ("plain", "device"):
            load = f"/v2/repository/models/{name}/load"
            reply = server.request("POST", load, b"{}")
            assert reply.status == 200, reply
            rows = numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(3, 4)
            for transport in ("http", "grpc"):
                client = TRANSPORTS[transport](server)
                found = client.infer(name, {"x": rows})["y"]
                client.close()
                assert numpy.abs(found - numpy.tanh(rows @ WEIGHTS)).max() < ERROR_MAX
        maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libonnxruntime_providers_openvino.so" in maps
        assert "libopenvino_intel_cpu_plugin.so" in maps
        reply = server.request("POST", "/v2/repository/models/wrong/load", b"{}")
        assert reply.status == 400 and "ExecutionProvider_OpenVINO" in reply.error(), reply
