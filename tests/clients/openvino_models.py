"""Models written by OpenVINO's own package, with their configurations and requests."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy
import onnx
import openvino
from onnx import TensorProto, helper
from openvino import Type, opset15
from openvino.op.util import Variable, VariableInfo

from tensorflow_files import frozen_relu, lite_relu, saved_model_relu

Tensors = dict[str, numpy.ndarray]

#: The element types of OpenVINO that requests have, by the names of configurations.
ELEMENTS = {
    "BOOL": (Type.boolean, numpy.bool_),
    "UINT8": (Type.u8, numpy.uint8),
    "UINT16": (Type.u16, numpy.uint16),
    "UINT32": (Type.u32, numpy.uint32),
    "UINT64": (Type.u64, numpy.uint64),
    "INT8": (Type.i8, numpy.int8),
    "INT16": (Type.i16, numpy.int16),
    "INT32": (Type.i32, numpy.int32),
    "INT64": (Type.i64, numpy.int64),
    "FP16": (Type.f16, numpy.float16),
    "FP32": (Type.f32, numpy.float32),
    "FP64": (Type.f64, numpy.float64),
}


@dataclasses.dataclass(frozen=True)
class OpenVinoModel:
    """A model, its configuration, and the requests that are sent to it."""

    write: Callable[[pathlib.Path], None]
    requests: Sequence[Tensors]
    config: str = ""
    file: str = "model.xml"
    #: The shape of the input `x` that the server gives to the model of the file.
    shape: Sequence[int] | None = None
    #: The outputs for the inputs, if the model of the file alone does not compute them.
    compute: Callable[[Tensors], Tensors] | None = None

    def expected(self, path: pathlib.Path) -> list[Tensors]:
        """The results of OpenVINO's own package for each request in turn."""
        if self.compute is not None:
            return [self.compute(request) for request in self.requests]
        core = openvino.Core()
        graph = core.read_model(path)
        if self.shape is not None:
            graph.reshape({"x": openvino.PartialShape(list(self.shape))})
        request = core.compile_model(graph, "CPU").create_infer_request()
        results = [request.infer(tensors) for tensors in self.requests]
        return [
            {port.get_any_name(): array.copy() for port, array in result.items()}
            for result in results
        ]


def parameter(name: str, shape: Sequence[int], element: Type = Type.f32) -> openvino.Node:
    """An input with a name."""
    node = opset15.parameter(list(shape), element, name=name)
    node.output(0).set_names({name})
    return node


def named(name: str, node: openvino.Node, index: int = 0) -> openvino.Output:
    """An output with a name."""
    node.output(index).set_names({name})
    return node.output(index)


def saved(
    outputs: Sequence[openvino.Output], inputs: Sequence[openvino.Node], layout: str = ""
) -> Callable[[pathlib.Path], None]:
    """Writes a model with these outputs. Each tensor has the layout."""
    results = [opset15.result(output) for output in outputs]
    model = openvino.Model(results, list(inputs), "model")
    if layout:
        for node in (*inputs, *results):
            node.set_layout(openvino.Layout(layout))
    return lambda path: openvino.save_model(model, path, compress_to_fp16=False)


def weights(*shape: int) -> openvino.Node:
    """Constants of this shape."""
    values = numpy.random.default_rng(sum(shape)).standard_normal(shape)
    return opset15.constant(values.astype(numpy.float32))


def rows(*shapes: tuple[int, ...], name: str = "x") -> list[Tensors]:
    """Requests with random numbers."""
    random = numpy.random.default_rng(7)
    return [{name: random.standard_normal(shape).astype(numpy.float32)} for shape in shapes]


def perceptron() -> OpenVinoModel:
    """Layouts declare that it supports batches, so no configuration is needed."""
    x = parameter("x", [-1, 8])
    hidden = opset15.relu(opset15.matmul(x, weights(8, 16), False, False))
    y = opset15.softmax(opset15.matmul(hidden, weights(16, 4), False, False), 1)
    return OpenVinoModel(saved([named("y", y)], [x], "NC"), rows((1, 8), (3, 8), (4, 8)))


def convolution() -> OpenVinoModel:
    """The batch dimension in its file is fixed, as in most exports."""
    x = parameter("x", [1, 3, 8, 8])
    convolved = opset15.convolution(x, weights(5, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])
    y = opset15.reduce_mean(opset15.relu(convolved), numpy.array([2, 3]), False)
    config = 'backend: "openvino" max_batch_size: 4'
    requests = rows((1, 3, 8, 8), (4, 3, 8, 8), (2, 3, 8, 8))
    write = saved([named("y", y)], [x])
    return OpenVinoModel(write, requests, config, shape=[-1, 3, 8, 8])


def elements() -> OpenVinoModel:
    """One input of each type, each of which is returned twice."""
    inputs, outputs, request = [], [], {}
    for name, (element, datatype) in ELEMENTS.items():
        x = parameter(name, [-1, 3], element)
        inputs.append(x)
        outputs.append(named(f"{name}_TWICE", opset15.concat([x, x], 1)))
        values = numpy.arange(6).reshape(2, 3) if name != "BOOL" else numpy.eye(2, 3)
        request[name] = values.astype(datatype)
    return OpenVinoModel(saved(outputs, inputs), [request])


def several_outputs() -> OpenVinoModel:
    """The largest numbers in each row, their positions, and their count."""
    x = parameter("x", [-1, 6])
    top = opset15.topk(x, opset15.constant(2), 1, "max", "value", "i64")
    count = opset15.reduce_sum(x, numpy.array([1]), True)
    outputs = [named("values", top), named("places", top, 1), named("sum", count)]
    return OpenVinoModel(
        saved(outputs, [x]), rows((2, 6), (1, 6)), 'backend: "openvino" max_batch_size: 8'
    )


def variable_shapes() -> OpenVinoModel:
    """Without batches, and with sizes that differ between requests."""
    x = parameter("x", [-1, -1])
    y = opset15.concat([x, opset15.relu(x)], 1)
    return OpenVinoModel(saved([named("y", y)], [x]), rows((1, 2), (3, 5), (2, 1)))


def fixed_shapes() -> OpenVinoModel:
    """Without batches, and with one shape."""
    x = parameter("x", [3, 2])
    y = opset15.transpose(x, numpy.array([1, 0]))
    return OpenVinoModel(saved([named("y", y)], [x]), rows((3, 2), (3, 2)))


def shapes_by_contents() -> OpenVinoModel:
    """The shape of the output depends on the contents of the input."""
    x = parameter("x", [-1])
    y = opset15.non_zero(x)
    request = {"x": numpy.array([0, 3, 0, 5, 1], numpy.float32)}
    return OpenVinoModel(saved([named("y", y)], [x]), [request])


def state() -> OpenVinoModel:
    """It adds every request to the sum that it keeps."""
    info = VariableInfo()
    info.data_shape = openvino.PartialShape([1, 2])
    info.data_type = Type.f32
    info.variable_id = "sum"
    variable = Variable(info)
    x = parameter("x", [1, 2])
    before = opset15.read_value(opset15.constant(numpy.zeros((1, 2), numpy.float32)), variable)
    y = opset15.add(before, x)
    named("y", y)
    model = openvino.Model(
        [opset15.result(y)], [opset15.assign(y, variable)], [x], "model"
    )
    return OpenVinoModel(
        lambda path: openvino.save_model(model, path, compress_to_fp16=False),
        rows((1, 2), (1, 2), (1, 2)),
    )


def without_names() -> OpenVinoModel:
    """Neither its input nor its output was named."""
    x = opset15.parameter([-1, 4], Type.f32)
    x.set_friendly_name("Parameter_1")
    y = opset15.result(opset15.relu(x))
    y.set_friendly_name("Result_2")
    model = openvino.Model([y], [x], "model")
    return OpenVinoModel(
        lambda path: openvino.save_model(model, path, compress_to_fp16=False),
        rows((2, 4), name="Parameter_1"),
    )


def onnx_file() -> OpenVinoModel:
    """An ONNX file."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "z"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["y"]),
        ],
        "model",
        [tensor("x", TensorProto.FLOAT, ["n", 3]), tensor("z", TensorProto.FLOAT, ["n", 3])],
        [tensor("y", TensorProto.FLOAT, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    requests = rows((1, 3), (4, 3))
    for request in requests:
        request["z"] = request["x"] * 2
    config = 'backend: "openvino" default_model_filename: "model.onnx" max_batch_size: 4'
    return OpenVinoModel(lambda path: onnx.save(model, path), requests, config, "model.onnx")


def frozen_graph() -> OpenVinoModel:
    """A frozen TensorFlow graph."""
    config = 'backend: "openvino" default_model_filename: "model.pb" max_batch_size: 4'
    requests = rows((1, 3), (4, 3), name="x:0")
    return OpenVinoModel(frozen_relu, requests, config, "model.pb")


def saved_model() -> OpenVinoModel:
    """A directory like those that TensorFlow writes."""
    config = 'backend: "openvino" default_model_filename: "model.saved_model" max_batch_size: 4'
    return OpenVinoModel(saved_model_relu, rows((1, 3), (4, 3)), config, "model.saved_model")


def lite_file() -> OpenVinoModel:
    """A TensorFlow Lite file."""
    config = 'backend: "openvino" default_model_filename: "model.tflite" max_batch_size: 4'
    return OpenVinoModel(lite_relu, rows((1, 3), (4, 3)), config, "model.tflite")


def unnamed_input() -> OpenVinoModel:
    """Its input has no name, unlike all tensors that OpenVINO itself writes."""
    return OpenVinoModel(
        lambda path: lite_relu(path, name=""),
        rows((2, 3), name="INPUT__0"),
        'backend: "openvino" default_model_filename: "model.tflite"',
        "model.tflite",
        compute=lambda given: {"y": numpy.maximum(given["INPUT__0"], 0)},
    )


CONVERTED = """\
backend: "openvino"
max_batch_size: 4
input { name: "x" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP64 dims: [ 4 ] }
"""


def converted() -> OpenVinoModel:
    """The configuration has different data types from the model, as Triton allows."""
    x = parameter("x", [-1, 4])
    y = opset15.relu(x)
    request = {"x": numpy.array([[-1, 0, 5, 70000]], numpy.int32)}
    return OpenVinoModel(
        saved([named("y", y)], [x]),
        [request],
        CONVERTED,
        compute=lambda given: {"y": numpy.maximum(given["x"], 0).astype(numpy.float64)},
    )


RESHAPED = """\
backend: "openvino"
max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ 5 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 5 ] }
parameters { key: "RESHAPE_IO_LAYERS" value { string_value: "yes" } }
"""


def reshaped() -> OpenVinoModel:
    """The configuration gives the input a different size."""
    x = parameter("x", [1, 4])
    y = opset15.relu(x)
    write = saved([named("y", y)], [x])
    return OpenVinoModel(write, rows((1, 5), (2, 5)), RESHAPED, shape=[-1, 5])


def hard_coded_batch() -> OpenVinoModel:
    """Its batch dimension can't vary, because its file names the size in the middle."""
    x = parameter("x", [4, 2, 3])
    flat = opset15.reshape(x, numpy.array([4, 6]), False)
    y = opset15.add(flat, opset15.constant(numpy.ones((4, 1), numpy.float32)))
    config = 'backend: "openvino" max_batch_size: 4'
    requests = rows((4, 2, 3), (1, 2, 3), (3, 2, 3))
    return OpenVinoModel(
        saved([named("y", y)], [x]),
        requests,
        config,
        compute=lambda given: {"y": given["x"].reshape(-1, 6) + 1},
    )


RAGGED = """\
backend: "openvino"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends"
  data_type: TYPE_INT32 source_input: "x"
}
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
dynamic_batching { }
"""


def ragged() -> OpenVinoModel:
    """The sum of each request, regardless of its length."""
    x, ends = parameter("x", [-1]), parameter("ends", [-1], Type.i32)
    zero = opset15.constant(numpy.zeros(1, numpy.float32))
    sums = opset15.concat([zero, opset15.cum_sum(x, numpy.array(0))], 0)
    upper = opset15.gather(sums, ends, 0)
    none = opset15.constant(numpy.zeros(1, numpy.float32))
    lower = opset15.slice(opset15.concat([none, upper], 0), [0], [-1], [1])
    y = opset15.unsqueeze(opset15.subtract(upper, lower), numpy.array([1]))
    return OpenVinoModel(
        saved([named("y", y)], [x, ends]), rows((1, 3), (1, 1), (1, 6)), RAGGED
    )


SEQUENCE = """\
backend: "openvino"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching {
  direct { }
  control_input {
    name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }
  }
  state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ] }
}
"""


def sequence() -> OpenVinoModel:
    """The sum of a sequence, which the server keeps, plus 1000 for the first request."""
    x, start, before = (parameter(name, [-1, 1]) for name in ("x", "start", "before"))
    after = opset15.add(before, x)
    y = opset15.add(after, opset15.multiply(start, opset15.constant(numpy.float32(1000))))
    outputs = [named("y", y), named("after", after)]
    return OpenVinoModel(saved(outputs, [x, start, before]), [], SEQUENCE)


SUITE: dict[str, Callable[[], OpenVinoModel]] = {
    function.__name__: function
    for function in (
        perceptron,
        convolution,
        elements,
        several_outputs,
        variable_shapes,
        fixed_shapes,
        shapes_by_contents,
        state,
        without_names,
        onnx_file,
        frozen_graph,
        saved_model,
        lite_file,
        unnamed_input,
        converted,
        reshaped,
        hard_coded_batch,
    )
}
