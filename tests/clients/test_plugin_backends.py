"""Tests of compiled backends: the examples, and small ones that break their contract.

They are built with the system's C compiler, as users build theirs.
"""

from __future__ import annotations

import contextlib
import pathlib
import queue
import shutil
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from compiling import build_examples, compile_library
from conftest import ROOT, StartServer
from server import Server, wait_until
from transports import (
    RESPONSE_SECONDS_MAX,
    Tensors,
    Transport,
    grpc_outputs,
    make_inputs,
)

EXAMPLES = ROOT / "examples" / "backends"

IDENTITY = """
backend: "example_identity"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "B" data_type: TYPE_STRING dims: [ 2 ] optional: true }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] }
]
dynamic_batching { }
instance_group { count: 2 kind: KIND_CPU }
"""
REPEATER = """
backend: "example_repeater"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
"""
ACCUMULATOR = """
backend: "example_accumulator"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  %s
  state {
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
    %s
  }
}
"""
COUNTDOWN = """
backend: "example_countdown"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
sequence_batching {
  %s
  oldest { max_candidate_sequences: 4 }
  state {
    input_name: "LEFT_IN" output_name: "LEFT_OUT" data_type: TYPE_INT32 dims: [ 1 ]
  }
}
"""
MODELS = {
    "identity": IDENTITY,
    "repeater": REPEATER,
    "accumulator": ACCUMULATOR % ("direct { }", ""),
    "accumulator_oldest": ACCUMULATOR % ("oldest { max_candidate_sequences: 4 }", ""),
    "accumulator_in_place": ACCUMULATOR
    % ("direct { }", "use_same_buffer_for_input_output: true"),
    "countdown": COUNTDOWN % "iterative_sequence: true",
    "countdown_once": COUNTDOWN % "",
}

#: The configuration of models with intentionally broken backends.
PLAIN = """
backend: "%s"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
#: The body of an execution of one request, R.
BROKEN = {
    "refuses": """
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "not today");""",
    "forgets": """
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        return NULL;""",
    "answers_twice": """
        TRITONBACKEND_Response* first;
        TRITONBACKEND_Response* second;
        int64_t shape[1] = {1};
        TRY(TRITONBACKEND_ResponseNew(&first, R));
        TRY(TRITONBACKEND_ResponseNew(&second, R));
        TRY(write_int32(first, "OUT", shape, 1, 1));
        TRY(write_int32(second, "OUT", shape, 1, 2));
        log_error(TRITONBACKEND_ResponseSend(first, 1, NULL));
        log_error(TRITONBACKEND_ResponseSend(second, 1, NULL));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        return NULL;""",
    "not_final": """
        TRITONBACKEND_Response* response;
        int64_t shape[1] = {1};
        TRY(TRITONBACKEND_ResponseNew(&response, R));
        TRY(write_int32(response, "OUT", shape, 1, 3));
        log_error(TRITONBACKEND_ResponseSend(response, 0, NULL));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        return NULL;""",
    "final_later": """
        TRITONBACKEND_Response* response;
        TRITONBACKEND_ResponseFactory* factory;
        int64_t shape[1] = {1};
        TRY(TRITONBACKEND_ResponseFactoryNew(&factory, R));
        TRY(TRITONBACKEND_ResponseNew(&response, R));
        TRY(write_int32(response, "OUT", shape, 1, 4));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        log_error(TRITONBACKEND_ResponseSend(response, 0, NULL));
        log_error(TRITONBACKEND_ResponseFactorySendFlags(factory, 1));
        log_error(TRITONBACKEND_ResponseFactoryDelete(factory));
        return NULL;""",
    "releases_twice": """
        TRITONBACKEND_Response* response;
        int64_t shape[1] = {1};
        TRY(TRITONBACKEND_ResponseNew(&response, R));
        TRY(write_int32(response, "OUT", shape, 1, 5));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        log_error(TRITONBACKEND_RequestRelease((TRITONBACKEND_Request*)response, 1));
        log_error(TRITONBACKEND_RequestRelease(NULL, 1));
        log_error(TRITONBACKEND_ResponseSend(response, 1, NULL));
        log_error(TRITONBACKEND_ResponseSend(response, 1, NULL));
        return NULL;""",
    "reschedules": """
        log_error(TRITONBACKEND_RequestRelease(R, 2));
        log_error(TRITONBACKEND_RequestRelease(R, 0));
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "still mine");""",
    "keeps_factory": """
        static TRITONBACKEND_ResponseFactory* kept = NULL;
        TRITONBACKEND_Response* response;
        int64_t shape[1] = {1};
        if (kept == NULL) {
          TRY(TRITONBACKEND_ResponseFactoryNew(&kept, R));
        } else {
          log_error(TRITONBACKEND_ResponseFactoryDelete(kept));
          kept = NULL;
        }
        TRY(TRITONBACKEND_ResponseNew(&response, R));
        TRY(write_int32(response, "OUT", shape, 1, 6));
        log_error(TRITONBACKEND_ResponseSend(response, 1, NULL));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        return NULL;""",
    "half_written": """
        TRITONBACKEND_Response* response;
        TRITONBACKEND_Output* output;
        int64_t shape[1] = {2};
        void* buffer;
        TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0;
        TRY(TRITONBACKEND_ResponseNew(&response, R));
        TRY(TRITONBACKEND_ResponseOutput(
            response, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 1));
        TRY(TRITONBACKEND_OutputBuffer(output, &buffer, 4, &memory_type, &id));
        log_error(TRITONBACKEND_OutputBuffer(output, &buffer, 4, &memory_type, &id));
        log_error(TRITONBACKEND_ResponseOutput(
            response, &output, "NONE", TRITONSERVER_TYPE_INT32, shape, 1));
        log_error(TRITONBACKEND_ResponseSend(response, 1, NULL));
        log_error(TRITONBACKEND_RequestRelease(R, 1));
        return NULL;""",
}


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of backends: the examples, built with CMake, and broken ones."""
    folder = tmp_path_factory.mktemp("backends")
    build_examples(EXAMPLES, folder)
    for name, body in BROKEN.items():
        source = folder / f"{name}.c"
        source.write_text(
            '#include "common.h"\n'
            "TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(\n"
            "    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,\n"
            "    uint32_t count) {\n"
            "  (void)instance; (void)count;\n"
            f"  TRITONBACKEND_Request* R = requests[0];\n  (void)R;\n{body}\n}}\n"
        )
        compile_library(source, folder / name / f"libtriton_{name}.so")
    return folder


def write_model(repository: pathlib.Path, name: str, config: str) -> pathlib.Path:
    """A model that consists of only a configuration."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    return repository / name


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory, backends: pathlib.Path
) -> Iterator[Server]:
    """A server with a model of each backend. It has to survive all of them and exit with 0."""
    repository = tmp_path_factory.mktemp("plugin_models")
    for name, config in MODELS.items():
        write_model(repository, name, config)
    for name in BROKEN:
        write_model(repository, name, PLAIN % name)
    with start_server(repository, f"--backend-directory={backends}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def stream_all(
    server: Server, model: str, tensors: Tensors, **options: Any
) -> list[dict[str, numpy.ndarray]]:
    """Every response to a request on a stream, up to the empty final one."""
    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    responses = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        inputs = make_inputs(tritonclient.grpc, tensors)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True, **options)
        while True:
            result, error = replies.get(timeout=RESPONSE_SECONDS_MAX)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                responses.append(grpc_outputs(result))
            if response.parameters["triton_final_response"].bool_param:
                return responses


def number(value: int, *shape: int) -> dict[str, numpy.ndarray]:
    """An input with one number."""
    return {"IN": numpy.full(shape or (1,), value, numpy.int32)}


def statistics(server: Server, model: str) -> dict[str, Any]:
    """The counters of a model."""
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]


# row: BEK-05 BE-07 BAPI-02
def test_tensors_are_returned_unchanged(transport: Transport) -> None:
    """Numbers and strings, in one row or several, large and empty."""
    for rows, columns in ((1, 1), (3, 5), (8, 20_000), (1, 0)):
        a = numpy.random.default_rng(rows).random((rows, columns), numpy.float32)
        assert (transport.infer("identity", {"A": a})["OUTPUT0"] == a).all()
    b = numpy.array([["ä", "\0b"], ["", "c" * 70_000]], object)
    a = numpy.zeros((2, 3), numpy.float32)
    reply = transport.infer("identity", {"A": a, "B": b})
    decoded = [[text.decode() for text in row] for row in reply["OUTPUT1"]]
    assert decoded == b.tolist()


# row: BAPI-10
def test_batches_and_their_times_are_counted(server: Server) -> None:
    """The statistics show the backend's reports."""
    before = statistics(server, "identity")
    with tritonclient.http.InferenceServerClient(server.http_url, concurrency=8) as client:
        inputs = [tritonclient.http.InferInput("A", [2, 3], "FP32")]
        inputs[0].set_data_from_numpy(numpy.ones((2, 3), numpy.float32))
        for waiting in [client.async_infer("identity", inputs) for _ in range(40)]:
            waiting.get_result()

    def counted() -> bool:
        now = statistics(server, "identity")
        return now["inference_count"] - before["inference_count"] == 80

    # The backend reports after it has responded, as the interface requires.
    wait_until(counted, 60, "all requests are counted")
    now = statistics(server, "identity")
    batches = now["execution_count"] - before["execution_count"]
    assert 10 <= batches <= 40
    success = now["inference_stats"]["success"]
    assert success["count"] - before["inference_stats"]["success"]["count"] == 40
    assert 0 < success["ns"] < 60_000_000_000 and 0 < now["inference_stats"]["queue"]["ns"]


# row: DEC-01 DEC-02
def test_responses_follow_a_released_request(server: Server) -> None:
    """The backend's own thread sends them in order, followed by the empty final response."""
    for elements in ([], [7], list(range(200))):
        tensors = {"IN": numpy.array(elements, numpy.int32)}
        replies = stream_all(server, "repeater", tensors)
        assert [int(reply["OUT"][0]) for reply in replies] == elements


# row: STAT-05 BAPI-10
def test_single_responses_are_counted_by_their_place(server: Server) -> None:
    """Three responses have outputs; the final one has none."""
    before = statistics(server, "repeater")["response_stats"]
    stream_all(server, "repeater", {"IN": numpy.arange(3, dtype=numpy.int32)})

    def count(place: int, kind: str) -> int:
        counted = statistics(server, "repeater")["response_stats"].get(str(place))
        earlier = before.get(str(place))
        return (counted or {kind: {"count": 0}})[kind]["count"] - (
            earlier[kind]["count"] if earlier else 0
        )

    wait_until(lambda: count(3, "empty_response") == 1, 60, "the end is counted")
    for kind in ("success", "compute_infer", "compute_output"):
        assert [count(place, kind) for place in range(3)] == [1, 1, 1], kind
    assert [count(place, "empty_response") for place in range(3)] == [0, 0, 0]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        reply = client.get_inference_statistics("repeater")
        assert reply.model_stats[0].response_stats["3"].empty_response.count >= 1


@pytest.mark.parametrize("model", ["accumulator", "accumulator_oldest", "accumulator_in_place"])
# row: IMP-10
def test_states_follow_their_sequences(model: str, transport: Transport) -> None:
    """Interleaved sequences have separate sums."""
    sequences = {11: [1, 2, 3, 4], 12: [10, 20, 30, 40], 13: [-5, 5, -5, 5]}
    sums = dict.fromkeys(sequences, 0)
    for step in range(4):
        for sequence, values in sequences.items():
            sums[sequence] += values[step]
            reply = transport.infer(
                model,
                number(values[step], 1, 1),
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            assert reply["OUT"].tolist() == [[sums[sequence]]]


# row: ITER-02
def test_a_request_is_executed_until_its_backend_is_done(server: Server) -> None:
    """One response for each execution."""
    before = statistics(server, "countdown")["execution_count"]
    replies = stream_all(server, "countdown", number(5))
    assert [int(reply["OUT"][0]) for reply in replies] == [5, 4, 3, 2, 1, 0]
    wait_until(
        lambda: statistics(server, "countdown")["execution_count"] - before == 6, 60, "counted"
    )
    with pytest.raises(InferenceServerException, match="0 or more"):
        stream_all(server, "countdown", number(-1))


@pytest.mark.galatea_only
def test_only_iterative_models_may_reschedule(server: Server) -> None:
    """The release is refused, and the backend keeps the request and completes it."""
    with pytest.raises(InferenceServerException, match="without a final response"):
        stream_all(
            server,
            "countdown_once",
            number(2),
            sequence_id=5,
            sequence_start=True,
            sequence_end=True,
        )
    assert (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is "
        "not configured to handle such a flag."
    ) in server.log()


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("model", "reply"),
    [
        ("refuses", "not today"),
        ("forgets", "was released by its backend without a final response"),
        ("reschedules", "still mine"),
        ("half_written", "output 'OUT' has 4 bytes"),
        ("answers_twice", 1),
        ("not_final", 3),
        ("final_later", 4),
        ("releases_twice", 5),
    ],
)
# row: BAPI-14
def test_broken_contracts_get_one_response(
    model: str, reply: str | int, transport: Transport
) -> None:
    """Each request gets exactly one response, and so does the next one."""
    for _ in range(3):
        if isinstance(reply, int):
            assert transport.infer(model, number(0))["OUT"].tolist() == [reply]
            continue
        with pytest.raises(InferenceServerException, match=reply):
            transport.infer(model, number(0))


@pytest.mark.galatea_only
# row: BAPI-14
def test_broken_contracts_are_logged(server: Server, transport: Transport) -> None:
    """The log names the error."""
    for model in ("answers_twice", "not_final", "releases_twice", "half_written"):
        with contextlib.suppress(InferenceServerException):
            transport.infer(model, number(0))
    for line in (
        "got a response after its final one",
        "was released before its response was said to be the final one",
        "request is a TRITONBACKEND_Request that was released",
        "request is not a TRITONBACKEND_Request",
        "request must not be null",
        "response is a TRITONBACKEND_Response that was released",
        "allocated buffer for output 'OUT' already exists",
        "unexpected inference output 'NONE' for model 'half_written'",
    ):
        wait_until(lambda line=line: line in server.log(), 60, line)


# row: CFG-22 BEK-04
def test_a_library_in_the_model_directory_wins(
    start_server: StartServer, tmp_path: pathlib.Path, backends: pathlib.Path
) -> None:
    """It takes precedence over a built-in backend, and 'runtime' names another library."""
    models = tmp_path / "models"
    refusing = backends / "refuses" / "libtriton_refuses.so"
    own = write_model(models, "own", PLAIN % "identity")
    shutil.copy(refusing, own / "libtriton_identity.so")
    named = write_model(models, "named", PLAIN % "x" + 'runtime: "own.so"')
    shutil.copy(refusing, named / "1" / "own.so")
    with start_server(models) as running:
        running.wait_until_ready()
        with tritonclient.http.InferenceServerClient(running.http_url) as client:
            tensor = tritonclient.http.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(numpy.zeros(1, numpy.int32))
            for model in ("own", "named"):
                with pytest.raises(InferenceServerException, match="not today"):
                    client.infer(model, [tensor])
        # The table of backends names these libraries.
        assert f"| identity | {own}/libtriton_identity.so " in running.log()
        assert f"| x        | {named}/1/own.so " in running.log()


# row: CFG-24
def test_a_backend_that_completes_nothing_needs_a_configuration(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The name of the model names the backend, which is built in or a library."""
    models, libraries = tmp_path / "models", tmp_path / "libraries"
    compile_library(EXAMPLES / "identity.c", libraries / "own" / "libtriton_own.so")
    for name in ("m.identity", "m.own"):
        (models / name / "1").mkdir(parents=True)
    flags = [f"--backend-directory={libraries}", "--exit-on-error=false"]
    with start_server(models, *flags) as running:
        running.wait_until_live()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
    for entry in index:
        expected = f"Not found: model configuration is not provided for model '{entry['name']}'"
        assert entry["reason"] == expected
    assert len(index) == 2


@pytest.mark.galatea_only
# row: BAPI-02
def test_failed_loads_report_their_reason(
    start_server: StartServer, tmp_path: pathlib.Path, backends: pathlib.Path
) -> None:
    """The index has the loader's message or the missing function."""
    models, libraries = tmp_path / "models", tmp_path / "libraries"
    sources = {
        "no_execute": "int nothing;",
        "no_symbol": "void missing_function(void);\n"
        "void* TRITONBACKEND_ModelInstanceExecute(void) { missing_function(); return 0; }",
        "fails": "void* TRITONSERVER_ErrorNew(int code, const char* text);\n"
        "void* TRITONBACKEND_Initialize(void* backend) {\n"
        '  (void)backend; return TRITONSERVER_ErrorNew(1, "no luck");\n'
        "}\nvoid* TRITONBACKEND_ModelInstanceExecute(void) { return 0; }",
    }
    for name, text in sources.items():
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        compile_library(source, libraries / name / f"libtriton_{name}.so")
        write_model(models, name, PLAIN % name)
    write_model(models, "garbage", PLAIN % "garbage")
    (libraries / "garbage").mkdir()
    (libraries / "garbage" / "libtriton_garbage.so").write_text("no library")
    write_model(models, "nowhere", PLAIN % "nowhere")
    write_model(models, "outside", PLAIN % "../../refuses")
    flags = [f"--backend-directory={libraries}", "--exit-on-error=false"]
    with start_server(models, *flags) as running:
        running.wait_until_live()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
        reasons = {entry["name"]: entry["reason"] for entry in index}
    assert "required entrypoint 'TRITONBACKEND_ModelInstanceExecute'" in reasons["no_execute"]
    assert "undefined symbol: missing_function" in reasons["no_symbol"]
    assert "unable to load shared library" in reasons["garbage"]
    assert reasons["nowhere"].endswith(
        "unable to find backend library for backend 'nowhere', try specifying runtime on the model "
        "configuration."
    )
    assert "unable to find backend library for backend '" in reasons["outside"]
    assert reasons["fails"].endswith("no luck")


@pytest.mark.galatea_only
def test_a_truncated_backend_does_not_end_the_server(
    start_server: StartServer, tmp_path: pathlib.Path, backends: pathlib.Path
) -> None:
    """The loader alone would access bytes that don't exist, and the process would end."""
    models = tmp_path / "models"
    model = write_model(models, "m", PLAIN % "m")
    library = model / "libtriton_m.so"
    whole = (backends / "refuses" / "libtriton_refuses.so").read_bytes()
    with start_server(models, "--model-control-mode=explicit") as running:
        running.wait_until_live()
        for length in (len(whole) // 2, len(whole) // 3, 4096, 1000):
            library.write_bytes(whole[:length])
            reply = running.request("POST", "/v2/repository/models/m/load")
            assert reply.status == 400
            assert f"the file '{library}' is cut short" in reply.error()
        library.write_bytes(whole)
        assert running.request("POST", "/v2/repository/models/m/load").status == 200
        assert running.is_ready()


#: Initializing an instance waits for another one that is initialized at the same time.
MEETS = """
#include <pthread.h>
#include <time.h>
#include "common.h"
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside, most;
TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, %(at_once)s);
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  (void)instance;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += %(seconds)d;
  pthread_mutex_lock(&mutex);
  inside += 1;
  if (inside > most) most = inside;
  pthread_cond_broadcast(&changed);
  int late = 0;
  while (most < 2 && !late) late = pthread_cond_timedwait(&changed, &mutex, &end);
  inside -= 1;
  pthread_mutex_unlock(&mutex);
  return late ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "alone") : NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  (void)instance; (void)requests; (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not asked for");
}
"""


@pytest.mark.galatea_only
# row: INST-12 BAPI-13
def test_instances_load_in_parallel_if_the_backend_allows_it(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Without the attribute, the first instance waits until its timeout."""
    models, libraries = tmp_path / "models", tmp_path / "libraries"
    for name, values in {
        "at_once": {"at_once": "true", "seconds": 30},
        "in_turn": {"at_once": "false", "seconds": 1},
    }.items():
        source = tmp_path / f"{name}.c"
        source.write_text(MEETS % values)
        compile_library(source, libraries / name / f"libtriton_{name}.so")
        write_model(models, name, PLAIN % name + "instance_group { count: 2 kind: KIND_CPU }")
    flags = [f"--backend-directory={libraries}", "--exit-on-error=false"]
    with start_server(models, *flags) as running:
        running.wait_until_live()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
        states = {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in index}
    assert states["at_once"] == ("READY", "")
    assert states["in_turn"] == ("UNAVAILABLE", "Internal: alone")


@pytest.mark.galatea_only
def test_clients_cannot_send_libraries(
    start_server: StartServer, tmp_path: pathlib.Path, backends: pathlib.Path
) -> None:
    """The files of a load request are never opened as code."""
    models = tmp_path / "models"
    models.mkdir()
    library = (backends / "refuses" / "libtriton_refuses.so").read_bytes()
    files = {"file:1/libtriton_refuses.so": library, "file:libtriton_refuses.so": library}
    config = (
        '{"backend": "refuses", "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],'
        ' "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}'
    )
    with start_server(models, "--model-control-mode=explicit") as running:
        running.wait_until_live()
        with tritonclient.http.InferenceServerClient(running.http_url) as client:
            with pytest.raises(InferenceServerException, match="unable to find backend library"):
                client.load_model("uploaded", config=config, files=files)


#: Says which secondary devices its instances have, as an error.
DEVICES = """
#include <stdio.h>
#include <string.h>
#include "common.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  uint32_t count;
  char text[256] = "devices:";
  TRY(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
  for (uint32_t index = 0; index <= count; ++index) {
    const char* kind = "";
    int64_t id = 0;
    TRITONSERVER_Error* failed =
        TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, index, &kind, &id);
    size_t used = strlen(text);
    if (failed != NULL) {
      snprintf(text + used, sizeof text - used, " (%s)", TRITONSERVER_ErrorMessage(failed));
      TRITONSERVER_ErrorDelete(failed);
    } else {
      snprintf(text + used, sizeof text - used, " %s %d", kind, (int)id);
    }
  }
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, text);
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  (void)instance; (void)requests; (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not asked for");
}
"""


# row: CFG-29 BAPI-06
def test_instances_know_their_secondary_devices(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Kinds and numbers, in the configuration's order."""
    models, libraries = tmp_path / "models", tmp_path / "libraries"
    source = tmp_path / "devices.c"
    source.write_text(DEVICES)
    compile_library(source, libraries / "devices" / "libtriton_devices.so")
    devices = "secondary_devices [ { kind: KIND_NVDLA device_id: 3 }, { device_id: 1 } ]"
    group = "instance_group { kind: KIND_CPU %s }"
    write_model(models, "some", PLAIN % "devices" + group % devices)
    write_model(models, "none", PLAIN % "devices" + group % "")
    flags = [f"--backend-directory={libraries}", "--exit-on-error=false"]
    with start_server(models, *flags) as running:
        running.wait_until_live()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
        reasons = {entry["name"]: entry["reason"] for entry in index}
    beyond = "(out of bounds index %d: instance is configured with %d secondary devices)"
    known = "devices: KIND_NVDLA 3 KIND_NVDLA 1 " + beyond % (2, 2)
    assert known in reasons["some"]
    assert "devices: " + beyond % (0, 0) in reasons["none"]


def test_a_response_factory_keeps_its_model_loaded(
    start_server: StartServer, tmp_path: pathlib.Path, backends: pathlib.Path
) -> None:
    """As in Triton, a model is unloaded when its backend has deleted the last of them."""
    for name in ("keeper", "other", "later"):
        write_model(tmp_path, name, PLAIN % "keeps_factory")
    flags = (f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=*")

    def state(server: Server) -> tuple[str, str]:
        index = server.request("POST", "/v2/repository/index", b"").json()
        entry = next(entry for entry in index if entry["name"] == "keeper")
        return entry["state"], entry.get("reason", "")

    line = "successfully unloaded 'keeper' version 1"
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            inputs = make_inputs(tritonclient.http, number(1))
            client.infer("keeper", inputs)
            client.unload_model("keeper")
            client.unload_model("later")
            later = line.replace("keeper", "later")
            wait_until(lambda: later in server.log(), RESPONSE_SECONDS_MAX, "the other's end")
            assert state(server) == ("UNLOADING", "")
            assert line not in server.log()
            client.infer("other", inputs)
            wait_until(lambda: line in server.log(), RESPONSE_SECONDS_MAX, "the end of the model")
            wait_until(
                lambda: state(server) == ("UNAVAILABLE", "unloaded"),
                RESPONSE_SECONDS_MAX,
                "the end of the model in the index",
            )
    assert server.process.returncode == 0
