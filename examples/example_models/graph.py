"""Helpers for building ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import onnx
from onnx import helper, numpy_helper

# This version is old enough for every ONNX Runtime since 1.14 to load the files.
OPSET_VERSION = 17
IR_VERSION = 8
# Joining strings has been an operator since this version.
OPSET_WITH_STRINGS = 20

Dimension = int | str


class GraphBuilder:
    """Collects nodes and weights; each method returns the name of its output."""

    def __init__(self, name: str, opset: int = OPSET_VERSION) -> None:
        self._name = name
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._value_count = 0

    def input(self, name: str, element_type: int, shape: Sequence[Dimension]) -> str:
        """Declares a model input."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def output(self, name: str, element_type: int, shape: Sequence[Dimension]) -> None:
        """Declares a value that a node already produces as a model output."""
        self._outputs.append(helper.make_tensor_value_info(name, element_type, shape))

    def weight(self, array: numpy.ndarray, name: str | None = None) -> str:
        """Adds a constant."""
        name = name or self._fresh("weight")
        self._weights.append(numpy_helper.from_array(numpy.asarray(array, order="C"), name))
        return name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes) -> str:
        """Adds a node with one output, which gets a name unless one is given."""
        output = output or self._fresh(operator.lower())
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def split_strings(self, value: str) -> str:
        """Adds a node that splits each string at its blanks, and drops the counts."""
        parts = self._fresh("parts")
        self._nodes.append(helper.make_node("StringSplit", [value], [parts, self._fresh("count")]))
        return parts

    def top(self, value: str, count: int) -> tuple[str, str]:
        """Adds a node that finds the largest elements of each row, and their indices."""
        found = self._fresh("top"), self._fresh("indices")
        length = self.weight(numpy.array([count], numpy.int64))
        self._nodes.append(helper.make_node("TopK", [value, length], list(found), axis=-1))
        return found

    def _fresh(self, stem: str) -> str:
        self._value_count += 1
        return f"{stem}_{self._value_count}"

    def graph(self) -> onnx.GraphProto:
        """The graph itself, for a node that takes one as an attribute."""
        return helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._weights
        )

    def bytes(self) -> bytes:
        """Checks the graph, and serialises it as the contents of `model.onnx`."""
        model = helper.make_model(
            self.graph(),
            producer_name="galatea-examples",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", self._opset)],
        )
        onnx.checker.check_model(model)
        return model.SerializeToString(deterministic=True)
