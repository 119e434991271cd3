"""Tests of warmup: instances execute samples before their model is ready."""

from __future__ import annotations

import pathlib

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from conftest import StartServer
from server import Server

IDENTITY = """\
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


def sample(content: str, settings: str = 'name: "s" batch_size: 1', dims: str = "4") -> str:
    """A sample with one input."""
    return (
        f'model_warmup {{ {settings} inputs {{ key: "INPUT0" value {{ '
        f"data_type: TYPE_FP32 dims: [ {dims} ] {content} }} }} }}\n"
    )


def write(repository: pathlib.Path, name: str, config: str, **files: bytes) -> None:
    """A model without its own file, and files for its warmup."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "warmup").mkdir()
    for file, content in files.items():
        (repository / name / "warmup" / file).write_bytes(content)


# row: WARM-01 WARM-03
def test_warmup_counts(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Every instance executes every sample, and statistics count them."""
    samples = (
        sample("zero_data: true", 'name: "zeros" batch_size: 2 count: 3')
        + sample("random_data: true")
        + sample('input_data_file: "data"')
        + sample("zero_data: true", 'name: "skipped"')
    )
    write(tmp_path, "model", IDENTITY + samples, data=bytes(20))
    with start_server(tmp_path, "--log-verbose=1") as server:
        server.wait_until_ready()
        statistics = server.statistics("model")
        assert statistics["inference_count"] == 2 * (2 * 3 + 1 + 1)
        assert statistics["execution_count"] == 2 * (3 + 1 + 1)
        assert statistics["inference_stats"]["success"]["count"] == 16
        sizes = {one["batch_size"]: one for one in statistics["batch_stats"]}
        assert {size: one["compute_infer"]["count"] for size, one in sizes.items()} == {1: 4, 2: 6}
        config = server.get("/v2/models/model/config").json()
        assert [one["name"] for one in config["model_warmup"]] == ["zeros", "s", "s", "skipped"]
        assert "is running warmup sample 'zeros' for iteration 3" in server.log()


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (sample('input_data_file: "absent"'), "Internal: failed to open text file for read "),
        (
            sample('input_data_file: "short"'),
            "the data provided from shortonly has 15 bytes",
        ),
        (sample("zero_data: true", dims="-1"), "all variable-size dimensions are specified"),
        (sample(""), "input_data_type set"),
    ],
)
# row: WARM-03
def test_a_failing_warmup_fails_the_load(
    start_server: StartServer, tmp_path: pathlib.Path, samples: str, reason: str
) -> None:
    """The model isn't ready, and the log contains the reason; others are served."""
    write(tmp_path, "model", IDENTITY + samples, short=bytes(15))
    write(tmp_path, "other", IDENTITY)
    with start_server(tmp_path, "--exit-on-error=false") as server:
        server.wait_until_live()
        assert server.get("/v2/models/model/ready").status == 400
        assert server.get("/v2/models/other/ready").status == 200
        assert reason in server.log()


# row: MR-21
def test_a_file_outside_the_model_is_not_read(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """File names can't lead out of the model's directory."""
    write(tmp_path, "model", IDENTITY + sample('input_data_file: "../../secret"'))
    (tmp_path / "secret").write_bytes(bytes(16))
    with start_server(tmp_path, "--exit-on-error=false") as server:
        server.wait_until_live()
        if not server.is_triton:
            assert server.get("/v2/models/model/ready").status == 400
            assert "must stay inside the model's directory" in server.log()


def tokens(server: Server, count: int) -> list[int]:
    """The tokens of the counting model."""
    tensor = {"name": "COUNT", "shape": [1, 1], "datatype": "INT32", "data": [count]}
    reply = server.infer("tokens", {"inputs": [tensor]})
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"]


@pytest.mark.galatea_only
def test_a_model_with_iterative_sequences_is_warmed_up(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Its warmup requests are executed until they end."""
    config = """\
backend: "token_counter"
max_batch_size: 4
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] } ]
sequence_batching { iterative_sequence: true oldest { } }
instance_group [ { count: 1 kind: KIND_CPU } ]
model_warmup { name: "s" batch_size: 2 inputs { key: "COUNT" value {
  data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "three" } } }
"""
    write(tmp_path, "tokens", config, three=numpy.int32(3).tobytes())
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        statistics = server.statistics("tokens")
        assert (statistics["inference_count"], statistics["execution_count"]) == (2, 3)
        assert tokens(server, 2) == [0, 1]


STATEFUL = """\
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching { state [ {
  input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ] } ] }
instance_group [ { count: 1 kind: KIND_CPU } ]
model_warmup { name: "s" batch_size: 3 count: 2 inputs { key: "IN" value {
  data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "nine" } } }
"""


def write_sum(path: pathlib.Path) -> None:
    """A model that adds up the inputs in a sequence."""

    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1])

    nodes = [
        helper.make_node("Add", ["IN", "SUM_IN"], ["SUM_OUT"]),
        helper.make_node("Identity", ["SUM_OUT"], ["OUT"]),
    ]
    inputs, outputs = [tensor("IN"), tensor("SUM_IN")], [tensor("OUT"), tensor("SUM_OUT")]
    graph = helper.make_graph(nodes, "sum", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


@pytest.mark.galatea_only
# row: WARM-04
def test_a_model_with_states_is_warmed_up(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Warmup uses the states of a new sequence."""
    write(tmp_path, "sum", STATEFUL, nine=numpy.float32(9).tobytes())
    write_sum(tmp_path / "sum" / "1" / "model.onnx")
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        statistics = server.statistics("sum")
        assert (statistics["inference_count"], statistics["execution_count"]) == (6, 2)
        tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [5.0]}
        for flag, expected in (("sequence_start", 5.0), ("sequence_end", 10.0)):
            parameters = {"sequence_id": 7, flag: True}
            reply = server.infer("sum", {"inputs": [tensor], "parameters": parameters})
            assert reply.json()["outputs"][0]["data"] == [expected]
