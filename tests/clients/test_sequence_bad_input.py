"""Checks that invalid sequence requests get the right error and don't disturb other sequences."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import make_models
import numpy
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server
from transports import TRANSPORTS, Http, Transport

MODEL = "accumulate_direct_int32_zero"
MODELS = [MODEL, "accumulate_oldest_int32_unspecified", "two_states"]
FRAGILE = "fragile"
BAD_REQUEST = ("400", "StatusCode.INVALID_ARGUMENT", None)

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a few accumulators."""
    repository = tmp_path_factory.mktemp("bad_sequences")
    make_models.write_models(repository, make_models.STATEFUL_MODELS, [*MODELS, FRAGILE])
    with start_server(repository) as running:
        yield running.wait_until_ready()


def tensor(*values: int) -> dict[str, numpy.ndarray]:
    """The input of an accumulator, with one value per row."""
    return {"INPUT": numpy.array(values, numpy.int32)[:, None]}


@pytest.fixture(autouse=True)
def other_sequence(server: Server) -> Iterator[None]:
    """Checks that another sequence continues, and that the server stays alive."""
    sequence = f"bystander {next(_ids)}"
    with contextlib.closing(Http(server)) as transport:

        def infer(value: int, **flags: bool) -> int:
            outputs = transport.infer(MODEL, tensor(value), sequence_id=sequence, **flags)
            return int(outputs["OUTPUT"][0, 0])

        assert infer(1, sequence_start=True) == 1
        yield
        assert infer(10) == 11
        assert infer(100, sequence_end=True) == 111
        assert server.is_live() and server.is_ready()


def refusal(transport: Transport, model: str = MODEL, **options: Any) -> str:
    """Sends an invalid request; returns the error's text."""
    tensors = options.pop("tensors", tensor(1))
    with pytest.raises(InferenceServerException) as caught:
        transport.infer(model, tensors, **options)
    assert caught.value.status() in BAD_REQUEST, caught.value
    return caught.value.message()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flags", [{}, {"sequence_start": True}])
@pytest.mark.parametrize("sequence", [None, 0, ""])
# row: PPAR-07 SEQ-02
def test_no_correlation_id(
    transport: Transport, model: str, flags: dict[str, bool], sequence: Any
) -> None:
    """A missing ID, zero and an empty string give the same error."""
    given = {} if sequence is None else {"sequence_id": sequence}
    text = refusal(transport, model, **given, **flags)
    assert f"model '{model}' must specify a non-zero or non-empty correlation ID" in text


@pytest.mark.parametrize("sequence", [2**40, "never started"])
@pytest.mark.parametrize("end", [False, True])
# row: SEQ-02
def test_missing_start(transport: Transport, sequence: Any, end: bool) -> None:
    """Every request fails, not only the first."""
    for _ in range(2):
        text = refusal(transport, sequence_id=sequence, sequence_end=end)
        assert f"sequence {sequence} to model '{MODEL}' must specify the START flag" in text


def test_after_the_end(transport: Transport) -> None:
    """The next request after END needs START."""
    sequence = next(_ids)
    transport.infer(
        MODEL, tensor(1), sequence_id=sequence, sequence_start=True, sequence_end=True
    )
    assert "START" in refusal(transport, sequence_id=sequence)


@pytest.mark.parametrize("flags", [{"sequence_id": 5, "sequence_start": True}, {}])
# row: SEQ-01
def test_batches(transport: Transport, flags: dict[str, Any]) -> None:
    """A request of a sequence must be one row; this is checked first."""
    text = refusal(transport, tensors=tensor(1, 2), **flags)
    assert f"model '{MODEL}' must specify batch-size 1" in text
    if flags:
        assert "START" in refusal(transport, sequence_id=5)


@pytest.mark.parametrize("name", ["SUM", "START", "SUM_NEXT"])
# row: SEQ-09 IMP-02
def test_clients_cannot_send_states_and_controls(transport: Transport, name: str) -> None:
    """Neither states nor controls can be sent."""
    model = "accumulate_oldest_int32_unspecified"
    sequence = next(_ids)
    tensors = {**tensor(1), name: numpy.array([[1]], numpy.int32)}
    text = refusal(
        transport, model, tensors=tensors, sequence_id=sequence, sequence_start=True
    )
    assert name in text
    assert "START" in refusal(transport, model, sequence_id=sequence)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["SUM_NEXT", "SUM", "START", "nothing"])
# row: HTTP-29 IMP-02
def test_outputs_that_are_hidden(transport: Transport, model: str, name: str) -> None:
    """A state can't be requested unless it is also an output."""
    sequence = next(_ids)
    options = {"sequence_id": sequence, "sequence_start": True}
    assert name in refusal(transport, model, outputs=[name], **options)


# row: PPAR-07
def test_ids_that_are_too_long(transport: Transport) -> None:
    """128 characters are allowed."""
    with pytest.raises(InferenceServerException) as caught:
        transport.infer(MODEL, tensor(1), sequence_id="x" * 129, sequence_start=True)
    assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED", None)
    assert "128" in caught.value.message()


def test_bad_data_does_not_start_a_sequence(transport: Transport) -> None:
    """A request that the door refuses leaves no trace."""
    sequence = next(_ids)
    wrong = {"INPUT": numpy.array([[1.0]], numpy.float32)}
    refusal(transport, tensors=wrong, sequence_id=sequence, sequence_start=True)
    assert "START" in refusal(transport, sequence_id=sequence)


def test_bad_data_does_not_end_a_sequence(transport: Transport) -> None:
    """A refused request neither ends nor changes a sequence."""
    sequence = next(_ids)
    transport.infer(MODEL, tensor(1), sequence_id=sequence, sequence_start=True)
    wrong = {"INPUT": numpy.array([[1.0]], numpy.float32)}
    refusal(transport, tensors=wrong, sequence_id=sequence, sequence_end=True)
    refusal(transport, tensors=wrong, sequence_id=sequence, sequence_start=True)
    outputs = transport.infer(MODEL, tensor(5), sequence_id=sequence, sequence_end=True)
    assert outputs["OUTPUT"].tolist() == [[6]]


@pytest.mark.galatea_only  # Triton pads rows with empty strings, which fail the model.
# row: IMP-11
def test_a_failed_execution_keeps_the_state(transport: Transport) -> None:
    """The sequence continues from its state, and another sequence of the same model isn't
    affected."""
    sequence, other = next(_ids), next(_ids)

    def infer(text: bytes, one: int = sequence, **flags: bool) -> int:
        given = {"INPUT": numpy.array([[text]], numpy.object_)}
        outputs = transport.infer(FRAGILE, given, sequence_id=one, **flags)
        return int(outputs["OUTPUT"][0, 0])

    assert infer(b"1", sequence_start=True) == 1
    assert infer(b"100", other, sequence_start=True) == 100
    with pytest.raises(InferenceServerException):
        infer(b"one")
    assert infer(b"20") == 21
    assert infer(b"100", other, sequence_end=True) == 200
    assert infer(b"300", sequence_end=True) == 321


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence_id", "-5"),
        ("sequence_id", "1.5"),
        ("sequence_id", "true"),
        ("sequence_id", "18446744073709551616"),
        ("sequence_id", "[1]"),
        ("sequence_id", "null"),
        ("sequence_start", '"yes"'),
        ("sequence_start", "1"),
        ("sequence_end", "{}"),
        ("timeout", "-1"),
        ("timeout", '"1"'),
        ("timeout", "18446744073709551616"),
        ("timeout", "1e300"),
        ("priority", "-1"),
        ("priority", "1.5"),
    ],
)
def test_parameters_of_wrong_types_over_http(server: Server, name: str, value: str) -> None:
    """Each is refused with 500, like other JSON with wrong types."""
    good = {"sequence_id": "9", "sequence_start": "true", "sequence_end": "true"}
    parameters = ",".join(f'"{key}":{text}' for key, text in {**good, name: value}.items())
    request = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
    body = json.dumps(request)[:-1] + f',"parameters":{{{parameters}}}}}'
    reply = server.infer(MODEL, body.encode())
    assert reply.status == 500, reply
    assert name in reply.error()


def raw_request(**parameters: Any) -> service_pb2.ModelInferRequest:
    """A message whose parameters the client library would not write."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(numpy.ones(1, numpy.int32).tobytes())
    good = {"sequence_id": 9, "sequence_start": True, "sequence_end": True}
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in {**good, **parameters}.items():
        setattr(request.parameters[name], fields[type(value)], value)
    return request


WRONG_PARAMETERS: list[tuple[str, Any]] = [
    ("sequence_id", True),
    ("sequence_id", 1.5),
    ("sequence_start", 1),
    ("sequence_start", "true"),
    ("sequence_end", 1.0),
    ("timeout", "1"),
    ("priority", "1"),
]


@pytest.mark.parametrize(("name", "value"), WRONG_PARAMETERS)
# row: GRPC-09
def test_parameters_of_wrong_types_over_grpc(server: Server, name: str, value: Any) -> None:
    """The same over gRPC; on a stream the error is a message and the stream continues."""
    request = raw_request(**{name: value})
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert name in caught.value.details()
        responses = list(stub.ModelStreamInfer(iter([request, raw_request()])))
    texts = [response.error_message for response in responses]
    assert name in texts[0]
    assert texts[1:] == [""]
    assert (
        responses[1].infer_response.raw_output_contents[0] == numpy.ones(1, numpy.int32).tobytes()
    )


def test_errors_on_a_stream_name_their_request(server: Server) -> None:
    """A client with many requests in flight can tell which one failed."""
    missing = raw_request(sequence_start=False)
    missing.id = "without start"
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (response,) = stub.ModelStreamInfer(iter([missing]))
    assert "START" in response.error_message
    assert response.infer_response.id == "without start"


def test_requests_after_a_refused_one(server: Server) -> None:
    """A client that sends a whole sequence at once gets an error for each request."""
    with contextlib.closing(TRANSPORTS["stream"](server)) as stream:
        for step in range(4):
            stream.send(MODEL, tensor(1), sequence_id="rash", sequence_end=step == 3)
        for _ in range(4):
            with pytest.raises(InferenceServerException, match="START"):
                stream.receive()


STATE = 'state [ { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: [ %s ] %s } ]'
START = 'control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]'
CORRID = "control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ]"

#: Model name: what sequence_batching or dynamic_batching holds, and what the error names.
BAD_MODELS = {
    "two_starts": (
        f'control_input [ {{ name: "A" {START} }}, {{ name: "B" {START} }} ]',
        "CONTROL_SEQUENCE_START",
    ),
    "two_ids": (
        f'control_input [ {{ name: "A" {CORRID % "TYPE_UINT64"} }}, '
        f'{{ name: "B" {CORRID % "TYPE_UINT64"} }} ]',
        "CONTROL_SEQUENCE_CORRID",
    ),
    "control_is_an_input": (
        f'control_input [ {{ name: "INPUT" {START} }} ]',
        "'INPUT' can not be both an input and",
    ),
    "id_of_a_wrong_type": (
        f'control_input [ {{ name: "A" {CORRID % "TYPE_FP32"} }} ]',
        "CONTROL_SEQUENCE_CORRID",
    ),
    "three_values": (
        'control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START '
        "int32_false_true: [ 0, 1, 2 ] } ] } ]",
        "int32_false_true",
    ),
    "two_kinds_of_values": (
        'control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START '
        "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ] } ] } ]",
        "fp32_false_true",
    ),
    "no_values": (
        'control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_END } ] } ]',
        "CONTROL_SEQUENCE_END",
    ),
    "no_control": ('control_input [ { name: "A" } ]', "control_input[0].control: "),
    "state_file_missing": (
        STATE % ("1", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 1 ] '
                      'data_file: "absent.bin" }'),
        "initial_state/absent.bin'",
    ),
    "state_file_too_short": (
        STATE % ("2", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2 ] '
                      'data_file: "four_bytes.bin" }'),
        "initial_state setting expects 8 bytes, but the data provided from four_bytes.binonly has 4 "
        "bytes.",
    ),
    "state_file_elsewhere": (
        STATE % ("1", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 1 ] '
                      'data_file: "../../outside.bin" }'),
        "whose file '../../outside.bin' can not be used",
    ),
    "initial_state_of_any_size": (
        STATE % ("-1", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ -1 ] '
                       "zero_data: true }"),
        "contains variable dimensions",
    ),
    "initial_state_of_another_size": (
        STATE % ("2", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 3 ] '
                      "zero_data: true }"),
        "dimension 3 that doesn't match 2",
    ),
    "initial_state_of_another_rank": (
        STATE % ("2", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2, 1 ] '
                      "zero_data: true }"),
        "of 2 dimensions, not 1",
    ),
    "initial_state_of_another_type": (
        STATE % ("1", 'initial_state { name: "i" data_type: TYPE_FP32 dims: [ 1 ] '
                      "zero_data: true }"),
        "data type does not match the state's",
    ),
    "initial_state_without_name": (
        STATE % ("1", "initial_state { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }"),
        "Field 'name' must be set when using initial_state",
    ),
    "initial_state_without_data": (
        STATE % ("1", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 1 ] }'),
        "without data",
    ),
    "two_initial_states": (
        STATE % ("1", 'initial_state [ { name: "i" data_type: TYPE_INT32 dims: [ 1 ] '
                      'zero_data: true }, { name: "j" data_type: TYPE_INT32 dims: [ 1 ] '
                      "zero_data: true } ]"),
        "exactly one or zero element",
    ),
    "growable_memory": (
        STATE % ("1", "use_same_buffer_for_input_output: true use_growable_memory: true"),
        "use_growable_memory",
    ),
    "ordering_with_delay": (
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 1000 }",
        "preserve_ordering",
    ),
    "ordering_with_levels": (
        "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
        "preserve_ordering",
    ),
    "levels_without_default": ("priority_levels: 2", "default_priority_level"),
    "default_above_levels": (
        "priority_levels: 2 default_priority_level: 3",
        "default_priority_level",
    ),
}
DYNAMIC = (
    "ordering_with_delay",
    "ordering_with_levels",
    "levels_without_default",
    "default_above_levels",
)

#: These serve, without the element that has no meaning.
LEFT_OUT = ("control_is_an_input", "no_control", "growable_memory")


def write_bad_model(repository: pathlib.Path, name: str, settings: str) -> None:
    """A model of the identity backend with this error."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "four_bytes.bin").write_bytes(bytes(4))
    batching = "dynamic_batching" if name in DYNAMIC else "sequence_batching"
    (folder / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 4 '
        'input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ] '
        'output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ] '
        f"instance_group [ {{ kind: KIND_CPU }} ] {batching} {{ {settings} }}"
    )


@pytest.fixture(scope="module")
def bad_models(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], list[str]]:
    """The state of each invalid model, and the log; a valid model is served too."""
    repository = tmp_path_factory.mktemp("bad_models")
    (repository / "outside.bin").write_bytes(bytes(4))
    for name, (settings, _) in BAD_MODELS.items():
        write_bad_model(repository, name, settings)
    make_models.write_models(repository, make_models.STATEFUL_MODELS, [MODEL])
    with start_server(repository, "--exit-on-error=false") as running:
        running.wait_until_live()
        assert partial_sum(running) == 5
        with tritonclient.grpc.InferenceServerClient(running.grpc_url) as client:
            index = client.get_model_repository_index().models
        log = running.log().splitlines()
    return {entry.name: entry.state for entry in index}, log


def partial_sum(server: Server) -> int:
    """A sequence of one request."""
    with contextlib.closing(Http(server)) as transport:
        flags = {"sequence_start": True, "sequence_end": True}
        outputs = transport.infer(MODEL, tensor(5), sequence_id=1, **flags)
    return int(outputs["OUTPUT"][0, 0])


@pytest.mark.galatea_only  # Triton serves some of them, and crashes on others.
@pytest.mark.parametrize("name", list(BAD_MODELS))
def test_bad_configurations(bad_models: tuple[dict[str, str], list[str]], name: str) -> None:
    """The log names the error, and other models are served. Models that Triton also loads are
    served."""
    states, log = bad_models
    assert (states[name] == "READY") == (name in LEFT_OUT)
    assert any(f"'{name}'" in line and BAD_MODELS[name][1] in line for line in log), log
