"""Cases that show how both servers complete configurations, and ONNX models without one."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import onnx
from onnx import TensorProto, helper

from cases import Case

#: The flags of the servers, because some of the models can't be loaded.
FLAGS = ("--exit-on-error=false", "--strict-readiness=false", "--cache-config=local,size=1000000")

Dims = Sequence[int | str | None] | None


def identity(dims: str = "[ -1 ]", batch: str = "max_batch_size: 8", more: str = "") -> str:
    """A model of the backend `identity`."""
    return (
        f'backend: "identity" {batch}\n'
        f'input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: {dims} }} ]\n'
        f'output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {dims} }} ]\n{more}\n'
    )


def pipeline(more: str = "", step: str = 'model_name: "plain" model_version: -1') -> str:
    """An ensemble of one step."""
    return (
        'platform: "ensemble" max_batch_size: 8\n'
        'input [ { name: "I" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "O" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        f"ensemble_scheduling {{ step [ {{ {step} "
        'input_map { key: "INPUT0" value: "I" } output_map { key: "OUTPUT0" value: "O" } } ] }\n'
        f"{more}\n"
    )


def onnx_identity(dims: Dims, kind: int = TensorProto.FLOAT, output_dims: Dims = ()) -> bytes:
    """A model that returns its input; `None` means a tensor of unknown rank."""
    shown = dims if output_dims == () else output_dims
    graph = helper.make_graph(
        [helper.make_node("Identity", ["IN"], ["OUT"])],
        "identity",
        [helper.make_tensor_value_info("IN", kind, dims)],
        [helper.make_tensor_value_info("OUT", kind, shown)],
    )
    return serialized(graph)


def onnx_pair(first: Dims, second: Dims) -> bytes:
    """A model with two inputs and outputs."""
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"IN{i}"], [f"OUT{i}"]) for i in (0, 1)],
        "pair",
        [
            helper.make_tensor_value_info("IN0", TensorProto.FLOAT, first),
            helper.make_tensor_value_info("IN1", TensorProto.INT64, second),
        ],
        [
            helper.make_tensor_value_info("OUT0", TensorProto.FLOAT, first),
            helper.make_tensor_value_info("OUT1", TensorProto.INT64, second),
        ],
    )
    return serialized(graph)


def onnx_with_default() -> bytes:
    """A model with an input that has a default, so clients may omit it."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN", "ADDED"], ["OUT"])],
        "default",
        [
            helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 2]),
            helper.make_tensor_value_info("ADDED", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor("ADDED", TensorProto.FLOAT, [2], [1.0, 2.0])],
    )
    return serialized(graph)


def serialized(graph: onnx.GraphProto) -> bytes:
    """The graph as the contents of a file."""
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def group(text: str) -> str:
    """A model with this instance group."""
    return identity(more=f"instance_group [ {{ {text} }} ]")


def reshape(dims: str, shape: str, batch: str = "max_batch_size: 8") -> str:
    """A model with different shapes for the backend and for clients."""
    return identity(f"{dims} reshape {{ shape: {shape} }}", batch)


def dynamic(text: str) -> str:
    """A model with a dynamic batcher."""
    return identity(more=f"dynamic_batching {{ {text} }}")


def sequence(text: str) -> str:
    """A model with a sequence batcher."""
    return identity(more=f"sequence_batching {{ {text} }}")


NO_BATCHES = ""

IDENTITY = {
    "plain": identity(),
    "without_batches": identity(batch=NO_BATCHES),
    "dynamic": dynamic(""),
    "dynamic_preferred": dynamic(
        "preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100"
    ),
    "dynamic_priorities": dynamic(
        "priority_levels: 3 default_priority_level: 2 default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 1000 allow_timeout_override: true max_queue_size: 7 } "
        "priority_queue_policy { key: 3 value { timeout_action: REJECT max_queue_size: 2 } }"
    ),
    "dynamic_without_batches": identity(batch=NO_BATCHES, more="dynamic_batching { }"),
    "dynamic_preferred_too_large": dynamic("preferred_batch_size: [ 16 ]"),
    "dynamic_preferred_zero": dynamic("preferred_batch_size: [ 0 ]"),
    "dynamic_no_default_priority": dynamic("priority_levels: 3"),
    "dynamic_default_priority_too_high": dynamic("priority_levels: 3 default_priority_level: 4"),
    "dynamic_priorities_and_order": dynamic(
        "preserve_ordering: true priority_levels: 2 default_priority_level: 1"
    ),
    "sequence": sequence(""),
    "sequence_direct": sequence(
        "direct { max_queue_delay_microseconds: 10 minimum_slot_utilization: 0.1 } "
        "max_sequence_idle_microseconds: 5000000"
    ),
    "sequence_oldest": sequence(
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] preserve_ordering: true }"
    ),
    "sequence_controls": sequence(
        'control_input [ { name: "S" control [ { kind: CONTROL_SEQUENCE_START '
        'fp32_false_true: [ 0, 1 ] } ] }, { name: "E" control [ { kind: CONTROL_SEQUENCE_END '
        'bool_false_true: [ false, true ] } ] }, { name: "C" control [ '
        "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]"
    ),
    "sequence_state": sequence(
        'state [ { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [ 2 ] '
        'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2 ] zero_data: true } } ]'
    ),
    "two_schedulers": identity(more="dynamic_batching { } sequence_batching { }"),
    "all_versions": identity(more="version_policy { all { } }"),
    "latest_three": identity(more="version_policy { latest { num_versions: 3 } }"),
    "latest_none": identity(more="version_policy { latest { num_versions: 0 } }"),
    "latest_unsaid": identity(more="version_policy { latest { } }"),
    "specific_versions": identity(more="version_policy { specific { versions: [ 1, 5, 1 ] } }"),
    "specific_missing": identity(more="version_policy { specific { versions: [ 5 ] } }"),
    "policy_empty": identity(more="version_policy { }"),
    "group_cpu": group("kind: KIND_CPU"),
    "group_auto": group("count: 2"),
    "group_gpu": group("kind: KIND_GPU"),
    "group_names_gpu": group("kind: KIND_CPU gpus: [ 0 ]"),
    "group_auto_names_gpu": group("gpus: [ 0 ]"),
    "group_profile": group('kind: KIND_CPU profile: [ "0" ]'),
    "group_none": group("kind: KIND_CPU count: 0"),
    "group_negative": group("kind: KIND_CPU count: -1"),
    "group_policy": group('kind: KIND_CPU name: "own" host_policy: "policy"'),
    "group_rates": group(
        'kind: KIND_CPU count: 2 rate_limiter { resources [ { name: "R" count: 2 }, '
        '{ name: "G" global: true count: 1 } ] priority: 3 }'
    ),
    "groups": identity(
        more="instance_group [ { count: 2 kind: KIND_CPU passive: true }, { kind: KIND_CPU } ]"
    ),
    "optimization": identity(
        more="optimization { graph { level: 1 } priority: PRIORITY_MAX input_pinned_memory "
        "{ enable: false } output_pinned_memory { } gather_kernel_buffer_threshold: 5 "
        "eager_batching: true cuda { graphs: true busy_wait_events: true output_copy_stream: true "
        'graph_spec [ { batch_size: 1 input { key: "INPUT0" value { dim: [ 4 ] } } } ] } }'
    ),
    "optimization_empty": identity(more="optimization { }"),
    "parameters": identity(
        more='parameters { key: "a" value { string_value: "\\"q\\"\\n é" } } '
        'parameters { key: "b" value { } }'
    ),
    "tags": identity(more='metric_tags { key: "a" value: "b" }'),
    "decoupled": identity(more="model_transaction_policy { decoupled: true }"),
    "not_decoupled": identity(more="model_transaction_policy { }"),
    "cached": identity(more="response_cache { enable: true }"),
    "not_cached": identity(more="response_cache { }"),
    "cached_and_decoupled": identity(
        more="response_cache { enable: true } model_transaction_policy { decoupled: true }"
    ),
    "cached_sequence": identity(more="response_cache { enable: true } sequence_batching { }"),
    "file_names": identity(
        more='cc_model_filenames { key: "7.5" value: "x" } default_model_filename: "foo"'
    ),
    "warmup": identity(
        more='model_warmup [ { name: "w" batch_size: 2 count: 3 inputs { key: "INPUT0" value { '
        "data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]"
    ),
    "platform_of_another": identity(more='platform: "onnxruntime_onnx"'),
    "platform_custom": identity(more='platform: "custom"'),
    "platform_of_its_own": identity(more='platform: "mine"'),
    "reshape": reshape("[ 4 ]", "[ 2, 2 ]"),
    "reshape_to_nothing": reshape("[ 1 ]", "[ ]"),
    "reshape_to_nothing_without_batches": reshape("[ 1 ]", "[ ]", NO_BATCHES),
    "reshape_variable": reshape("[ -1, 4, 1 ]", "[ -1, 2, 2 ]"),
    "reshape_variable_moved": reshape("[ -1, 4 ]", "[ 4, -1 ]"),
    "reshape_to_another_size": reshape("[ 4 ]", "[ 2, 3 ]"),
    "reshape_with_zero": reshape("[ 4 ]", "[ 4, 0 ]"),
    "formats": identity("[ 3, 2, 2 ] ").replace("TYPE_FP32", "TYPE_FP32 format: FORMAT_NCHW", 1),
    "format_of_two": identity("[ 3, 2 ]").replace("TYPE_FP32", "TYPE_FP32 format: FORMAT_NHWC", 1),
    "optional": identity().replace("TYPE_FP32", "TYPE_FP32 optional: true", 1),
    "ragged": identity().replace("TYPE_FP32", "TYPE_FP32 allow_ragged_batch: true", 1),
    "no_type": identity().replace("data_type: TYPE_FP32", "", 1),
    "dims_of_zero": identity("[ 0 ]"),
    "dims_below_one": identity("[ -2 ]"),
    "negative_batch": identity(batch="max_batch_size: -1"),
    "no_tensors": 'backend: "identity" max_batch_size: 2',
    "no_output": 'backend: "identity" '
    'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]',
    "nothing": "",
    "another_name": identity(more='name: "plain"'),
    "unknown_field": identity(more="colour: 1"),
}

ENSEMBLES = {
    "ensemble": pipeline(),
    "ensemble_settings": pipeline(
        'parameters { key: "a" value { string_value: "b" } } version_policy { all { } } '
        "response_cache { enable: true }"
    ),
    "ensemble_claims_to_be_decoupled": pipeline("model_transaction_policy { decoupled: true }"),
    "ensemble_namespace": pipeline(
        step='model_name: "plain" model_version: 1 model_namespace: "space"'
    ),
    "ensemble_no_version": pipeline(step='model_name: "plain"'),
    "ensemble_other_version": pipeline(step='model_name: "plain" model_version: 9'),
    "ensemble_of_nothing": pipeline(step='model_name: "nowhere" model_version: -1'),
    "ensemble_of_itself": pipeline(step='model_name: "ensemble_of_itself" model_version: -1'),
    "ensemble_with_group": pipeline("instance_group [ { kind: KIND_CPU } ]"),
    "ensemble_with_optimization": pipeline("optimization { priority: PRIORITY_MAX }"),
    "ensemble_with_batching": pipeline("dynamic_batching { }"),
    "ensemble_with_backend": pipeline('backend: "identity"'),
    "ensemble_without_platform": pipeline().replace('platform: "ensemble"', ""),
}

INPUT = 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] '
PLAIN = onnx_identity(["batch", 4])
PAIR = onnx_pair(["batch", 2], ["batch", None, 3])

#: A model file and a configuration, which may be missing.
ONNX: dict[str, tuple[bytes, str | None]] = {
    "onnx": (PLAIN, None),
    "onnx_empty": (PLAIN, ""),
    "onnx_backend": (PLAIN, 'backend: "onnxruntime"'),
    "onnx_platform": (PLAIN, 'platform: "onnxruntime_onnx"'),
    "onnx_batch_0": (PLAIN, "max_batch_size: 0"),
    "onnx_batch_1": (PLAIN, "max_batch_size: 1"),
    "onnx_batch_16": (PLAIN, "max_batch_size: 16"),
    "onnx_batch_16_dynamic": (PLAIN, "max_batch_size: 16 dynamic_batching { }"),
    "onnx_dynamic": (PLAIN, "dynamic_batching { max_queue_delay_microseconds: 5 }"),
    "onnx_sequence": (PLAIN, "sequence_batching { }"),
    "onnx_input": (PLAIN, INPUT),
    "onnx_input_batch_3": (PLAIN, "max_batch_size: 3 " + INPUT),
    "onnx_input_with_batch_dimension": (PLAIN, INPUT.replace("[ 4 ]", "[ -1, 4 ]")),
    "onnx_input_without_type": (PLAIN, INPUT.replace("data_type: TYPE_FP32", "")),
    "onnx_input_of_other_dims": (PLAIN, "max_batch_size: 2 " + INPUT.replace("4", "5")),
    "onnx_output": (PLAIN, 'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]'),
    "onnx_group": (PLAIN, "instance_group [ { kind: KIND_CPU } ]"),
    "onnx_group_model": (PLAIN, "instance_group [ { kind: KIND_MODEL } ]"),
    "onnx_group_count": (PLAIN, "instance_group [ { count: 0 } ]"),
    "onnx_decoupled": (PLAIN, "model_transaction_policy { decoupled: true }"),
    "onnx_threads": (
        PLAIN,
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } }',
    ),
    "onnx_accelerator": (
        PLAIN,
        "optimization { execution_accelerators { cpu_execution_accelerator [ { name: "
        '"nonsense" } ] } }',
    ),
    "onnx_fixed": (onnx_identity([2, 4]), None),
    "onnx_fixed_one": (onnx_identity([1, 4]), None),
    "onnx_fixed_batch_2": (onnx_identity([2, 4]), "max_batch_size: 2"),
    "onnx_scalar": (onnx_identity([]), None),
    "onnx_vector": (onnx_identity(["batch"]), None),
    "onnx_vector_batch_4": (onnx_identity(["batch"]), "max_batch_size: 4"),
    "onnx_no_rank": (onnx_identity(None, output_dims=None), None),
    "onnx_variable": (onnx_identity(["batch", "x", "y"]), None),
    "onnx_unnamed": (onnx_identity([None, 4]), None),
    "onnx_second_variable": (onnx_identity([3, "x"]), None),
    "onnx_output_fixed": (onnx_identity(["batch", 4], output_dims=[1, 4]), None),
    "onnx_pair": (PAIR, None),
    "onnx_pair_input": (PAIR, INPUT),
    "onnx_pair_one_without_batches": (onnx_pair(["batch", 2], [3]), None),
    "onnx_pair_one_without_batches_4": (onnx_pair(["batch", 2], [3]), "max_batch_size: 4"),
    "onnx_default": (onnx_with_default(), None),
    "onnx_damaged": (b"this is no model", None),
    **{
        f"onnx_{name.lower()}": (onnx_identity(["batch", 4], getattr(TensorProto, name)), None)
        for name in ("STRING", "BOOL", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "UINT16",
                     "UINT32", "UINT64", "INT64", "INT32", "COMPLEX64")
    },
}

def write_configurations(root: pathlib.Path) -> None:
    """One model for each."""
    for name, text in {**IDENTITY, **ENSEMBLES}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    for name, (content, config) in ONNX.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").write_bytes(content)
        if config is not None:
            (root / name / "config.pbtxt").write_text(config)


def configuration_cases() -> Iterator[Case]:
    """Every model's configuration and metadata, or the error that it isn't served."""
    for name in (*IDENTITY, *ONNX, *ENSEMBLES):
        yield Case(f"metadata {name}", path=f"/v2/models/{name}")
    # The configurations of ensembles have one more field than the recorded ones.
    for name in (*IDENTITY, *ONNX):
        yield Case(f"config {name}", path=f"/v2/models/{name}/config")
        yield Case(f"grpc config {name}", rpc="ModelConfig", message={"name": name})
