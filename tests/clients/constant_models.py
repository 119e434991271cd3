"""ONNX models whose results identify the model."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from server import Server


def constant_model(value: int) -> bytes:
    """A model that adds `value` to its input, an INT32 of any batch size."""
    dims = ["batch", 1]
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT0", "added"], ["OUTPUT0"])],
        "add",
        [helper.make_tensor_value_info("INPUT0", TensorProto.INT32, dims)],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.INT32, dims)],
        [helper.make_tensor("added", TensorProto.INT32, [1], [value])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file atomically, as a careful deployment does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)


def write_model(
    repository: pathlib.Path, name: str, value: int, versions: Sequence[int] = (1,), config: str = ""
) -> None:
    """Writes versions that add `value`, and a configuration if one is given."""
    for version in versions:
        replace_file(repository / name / str(version) / "model.onnx", constant_model(value))
    if config:
        (repository / name / "config.pbtxt").write_text(config)


def request_body(value: int = 0) -> dict[str, Any]:
    """The body of a request to a model."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [value]}
    return {"inputs": [tensor]}


def added_value(server: Server, model: str, version: int | None = None) -> int:
    """The value that a model adds."""
    path = model if version is None else f"{model}/versions/{version}"
    reply = server.infer(path, request_body())
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"][0]
