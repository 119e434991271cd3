"""Batching strategies in libraries: the examples, and small ones that break their contract.

TRITONSERVER_DELAY_SCHEDULER holds the scheduler back until N requests are waiting, so each test
knows the strategy's candidates.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

import numpy
import pytest
import tritonclient.grpc
from example_models import conformance
from example_models.repository import write_example

from compiling import compile_library
from conftest import ROOT, StartServer
from server import Server, wait_until
from transports import RESPONSE_SECONDS_MAX, GrpcStream

EXAMPLES = ROOT / "examples" / "batching"
LIBRARY = "batchstrategy.so"
PATH_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"

#: A strategy that logs its calls and tries forbidden ones.
TALKING = """
#include <stdio.h>
#include <stdlib.h>
#include "triton/core/tritonbackend.h"
#define SAY(...) (printf("strategy: " __VA_ARGS__), printf("\\n"), fflush(stdout))
static int batches;
static void refused(const char* what, TRITONSERVER_Error* error) {
  SAY("%s is %s", what, error == NULL ? "allowed" : "refused");
  TRITONSERVER_ErrorDelete(error);
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
  (void)batcher; (void)model;
  SAY("begin");
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  (void)batcher;
  SAY("end");
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(
    const TRITONBACKEND_Batcher* batcher, void** userp) {
  (void)batcher;
  *userp = calloc(1, sizeof(int));
  SAY("open %d", ++batches);
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* userp, bool* should_include) {
  TRITONBACKEND_Input* input;
  TRITONBACKEND_Response* response;
  TRITONBACKEND_ResponseFactory* factory;
  TRITONBACKEND_State* state;
  TRITONSERVER_MemoryType type;
  const void* buffer;
  int64_t id, shape[1] = {1};
  uint64_t size;
  TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRITONSERVER_ErrorDelete(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
  int value = *(const int32_t*)buffer;
  if (value == 0) {
    refused("release", TRITONBACKEND_RequestRelease(request, 1));
    refused("rescheduling", TRITONBACKEND_RequestRelease(request, 2));
    refused("response", TRITONBACKEND_ResponseNew(&response, request));
    refused("factory", TRITONBACKEND_ResponseFactoryNew(&factory, request));
    refused("state", TRITONBACKEND_StateNew(
        &state, request, "S", TRITONSERVER_TYPE_INT32, shape, 1));
  }
  SAY("batch %d row %d", batches, value);
  *should_include = value % 10 != 5;
  ++*(int*)userp;
  if (value == 9) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no idea about 9");
  }
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  SAY("close with %d", *(int*)userp);
  free(userp);
  return NULL;
}
"""
#: One of the five functions.
PARTIAL = """
#include "triton/core/tritonbackend.h"
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  (void)userp;
  return NULL;
}
"""
#: A strategy whose initialization fails, and one whose batches fail to open.
FAILING = """
#include "triton/core/tritonbackend.h"
static TRITONSERVER_Error* no(const char* why) {
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, why);
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
  (void)batcher; (void)model;
  return FAIL_AT_ONCE ? no("no strategy today") : 0;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  (void)batcher;
  return 0;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(
    const TRITONBACKEND_Batcher* batcher, void** userp) {
  (void)batcher; (void)userp;
  return no("no batch today");
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* userp, bool* should_include) {
  (void)request;
  *should_include = *(bool*)userp; /* Would crash: there is no batch. */
  return 0;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  (void)userp;
  return 0;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of strategies: the examples, and those in this file."""
    folder = tmp_path_factory.mktemp("strategies")
    for name in ("volume", "single"):
        compile_library(EXAMPLES / f"{name}_batching.c", folder / f"{name}.so")
    sources = {
        "talking": TALKING,
        "partial": PARTIAL,
        "empty": "int nothing_of_a_strategy;\n",
        "refusing": "#define FAIL_AT_ONCE 1\n" + FAILING,
        "batchless": "#define FAIL_AT_ONCE 0\n" + FAILING,
    }
    for name, text in sources.items():
        (folder / f"{name}.c").write_text(text)
        compile_library(folder / f"{name}.c", folder / f"{name}.so")
    whole = (folder / "talking.so").read_bytes()
    (folder / "half.so").write_bytes(whole[: len(whole) // 2])
    return folder


def parameter(key: str, value: str) -> str:
    """A parameter of a model."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def write_whole_batch(repository: pathlib.Path, settings: str) -> pathlib.Path:
    """A model that returns all rows of its batch."""
    write_example(repository, "model", conformance.onnx_whole_batch(settings))
    return repository / "model"


@contextlib.contextmanager
def held(
    start_server: StartServer, repository: pathlib.Path, waiting: int, *flags: str
) -> Iterator[Server]:
    """A server that executes nothing until this many requests are waiting."""
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(waiting)}
    with start_server(repository, *flags, environment=environment) as running:
        yield running.wait_until_ready()


def rows(*values: int) -> dict[str, numpy.ndarray]:
    """A request with these rows of four bytes each."""
    return {"INPUT0": numpy.array(values, numpy.int32).reshape(-1, 1)}


def batches(server: Server, requests: Sequence[Sequence[int]]) -> list[list[int]]:
    """The rows of each batch that executes these requests, in order."""
    found: dict[str, list[int]] = {}
    with GrpcStream(server) as stream:
        for index, values in enumerate(requests):
            stream.send("model", rows(*values), request_id=str(index))
        for _ in requests:
            number, outputs = stream.receive()
            found[number] = outputs["OUTPUT0"][0].tolist()
    ordered = [found[str(index)] for index in range(len(requests))]
    before = [[], *ordered]
    return [batch for batch, last in zip(ordered, before, strict=False) if batch != last]


def executed(server: Server) -> dict[int, int]:
    """The number of batches of each size in the statistics."""
    counted = server.get("/v2/models/model/stats").json()["model_stats"][0]["batch_stats"]
    return {one["batch_size"]: one["compute_infer"]["count"] for one in counted}


# row: CFG-16 CBS-05 BE-07
def test_a_batch_has_a_volume(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """Requests join until the batch has this many bytes."""
    settings = "dynamic_batching { }\n" + parameter("MAX_BATCH_VOLUME_BYTES", "12")
    model = write_whole_batch(tmp_path, settings)
    shutil.copy(libraries / "volume.so", model / "1" / LIBRARY)
    with held(start_server, tmp_path, 6) as server:
        sent = [[1], [2], [3], [4, 4], [5, 5], [6]]
        assert batches(server, sent) == [[1, 2, 3], [4, 4], [5, 5, 6]]
        assert executed(server) == {2: 1, 3: 2}


@pytest.mark.galatea_only  # In Triton it stays in the queue.
def test_a_request_over_the_volume_executes_alone(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The strategy can't refuse the first request of a batch."""
    settings = "dynamic_batching { }\n" + parameter("MAX_BATCH_VOLUME_BYTES", "12")
    model = write_whole_batch(tmp_path, settings)
    shutil.copy(libraries / "volume.so", model / "1" / LIBRARY)
    with held(start_server, tmp_path, 4) as server:
        sent = [[1], [2] * 4, [3] * 5, [4]]
        assert batches(server, sent) == [[1], [2] * 4, [3] * 5, [4]]
        assert executed(server) == {1: 2, 4: 1, 5: 1}


# row: CBS-04
def test_other_batch_limits_still_apply(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The maximum batch size is 8 rows, although the strategy would accept more."""
    settings = "dynamic_batching { }\n" + parameter("MAX_BATCH_VOLUME_BYTES", "4000")
    model = write_whole_batch(tmp_path, settings)
    shutil.copy(libraries / "volume.so", model / LIBRARY)
    with held(start_server, tmp_path, 5) as server:
        assert batches(server, [[1] * 3, [2] * 4, [3] * 2, [4] * 6, [5] * 8]) == [
            [1] * 3 + [2] * 4,
            [3] * 2 + [4] * 6,
            [5] * 8,
        ]


def in_version(model: pathlib.Path, backends: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The library is next to the model's file."""
    return model / "1" / LIBRARY, ""


def in_model(model: pathlib.Path, backends: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The library is next to the configuration."""
    return model / LIBRARY, ""


def in_backend(model: pathlib.Path, backends: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The library applies to all models of a backend."""
    return backends / "onnxruntime" / LIBRARY, ""


def named(model: pathlib.Path, backends: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The library is in the model's directory under the configured name, and the default name
    isn't used."""
    return model / "libraries" / "own.so", "libraries/own.so"


def named_absolutely(model: pathlib.Path, backends: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The same with an absolute path."""
    return model / "own.so", str(model / "own.so")


@pytest.mark.galatea_only  # Triton's backends are elsewhere.
@pytest.mark.parametrize("place", [in_version, in_model, in_backend, named, named_absolutely])
# row: CBS-03 CBS-05
def test_where_strategies_are_found(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    libraries: pathlib.Path,
    place: Callable[[pathlib.Path, pathlib.Path], tuple[pathlib.Path, str]],
) -> None:
    """The library in this location limits every batch to one request."""
    repository, backends = tmp_path / "models", tmp_path / "backends"
    library, path = place(repository / "model", backends)
    settings = "dynamic_batching { }\n" + (parameter(PATH_PARAMETER, path) if path else "")
    model = write_whole_batch(repository, settings)
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(libraries / "single.so", library)
    if path:
        shutil.copy(libraries / "refusing.so", model / "1" / LIBRARY)
    with held(start_server, repository, 4, f"--backend-directory={backends}") as server:
        assert batches(server, [[1], [2], [3], [4]]) == [[1], [2], [3], [4]]
        assert executed(server) == {1: 4}


@pytest.mark.galatea_only  # It calls the strategy at other times, with other texts.
# row: CBS-02 XAPI-05
def test_the_order_of_strategy_calls(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """Queued requests are read-only; a request joins the batch after an error."""
    model = write_whole_batch(tmp_path, "dynamic_batching { }")
    shutil.copy(libraries / "talking.so", model / LIBRARY)
    with held(start_server, tmp_path, 5) as server:
        assert batches(server, [[0], [1], [5], [9], [15]]) == [[0, 1], [5, 9], [15]]
    assert server.process.returncode == 0
    lines = [line[10:] for line in server.log().splitlines() if line.startswith("strategy: ")]
    tried = ["release", "rescheduling", "response", "factory", "state"]
    assert [line for line in lines if "refused" in line] == [f"{what} is refused" for what in tried]
    assert not [line for line in lines if "allowed" in line]
    calls = [line for line in lines if "refused" not in line]
    assert calls[0] == "begin" and calls[-1] == "end" and calls.count("end") == 1
    assert calls[1:-1] == [
        "open 1",
        *("batch 1 row 0", "batch 1 row 1", "batch 1 row 5"),
        "close with 3",
        "open 2",
        *("batch 2 row 5", "batch 2 row 9", "batch 2 row 15"),
        "close with 3",
        "open 3",
        "batch 3 row 15",
        "close with 1",
    ]
    assert "no idea about 9" in server.log()


@pytest.mark.galatea_only  # Triton crashes.
def test_batches_form_without_a_failing_strategy(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The strategy isn't called for a batch that it failed to open."""
    model = write_whole_batch(tmp_path, "dynamic_batching { }")
    shutil.copy(libraries / "batchless.so", model / LIBRARY)
    with held(start_server, tmp_path, 3) as server:
        assert batches(server, [[1], [2], [3]]) == [[1, 2, 3]]
        assert "no batch today" in server.log()


@pytest.mark.parametrize(
    ("library", "settings", "expected"),
    [
        ("partial", "dynamic_batching { }", "does not define all required custom batching"),
        ("refusing", "dynamic_batching { }", "no strategy today"),
        ("half", "dynamic_batching { }", f"{LIBRARY}' is cut short"),
        ("volume", "dynamic_batching { }", "MAX_BATCH_VOLUME_BYTES"),
        (
            "single",
            "dynamic_batching { }\n" + parameter(PATH_PARAMETER, "../other.so"),
            "escapes",
        ),
        (
            "single",
            "dynamic_batching { }\n" + parameter(PATH_PARAMETER, "none.so"),
            "none.so",
        ),
        (
            "single",
            "sequence_batching { }\n" + parameter(PATH_PARAMETER, LIBRARY),
            "cannot be specified with sequence batcher",
        ),
    ],
)
@pytest.mark.galatea_only  # Triton takes paths from its working directory.
# row: CBS-01
def test_invalid_strategies_are_refused(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    libraries: pathlib.Path,
    library: str,
    settings: str,
    expected: str,
) -> None:
    """The model doesn't load, and the log says why."""
    repository = tmp_path / "models"
    model = write_whole_batch(repository, settings)
    shutil.copy(libraries / f"{library}.so", model / LIBRARY)
    shutil.copy(libraries / "single.so", repository / "other.so")
    with start_server(repository) as server:
        assert server.wait_for_exit() == 1
        assert expected in server.log()


@pytest.mark.parametrize(
    ("library", "settings"), [("empty", "dynamic_batching { }"), ("single", "")]
)
# row: CBS-01
def test_strategies_without_effect(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    libraries: pathlib.Path,
    library: str,
    settings: str,
) -> None:
    """A library that lacks the functions, and a strategy without the dynamic batcher."""
    model = write_whole_batch(tmp_path, settings)
    shutil.copy(libraries / f"{library}.so", model / LIBRARY)
    with held(start_server, tmp_path, 3) as server:
        together = settings != ""
        expected = [[1, 2, 3]] if together else [[1], [2], [3]]
        assert batches(server, [[1], [2], [3]]) == expected


def test_a_compiled_backend_may_have_a_strategy(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The library is next to the backend's, for all its models."""
    repository, backends = tmp_path / "models", tmp_path / "backends"
    source = ROOT / "examples" / "backends" / "identity.c"
    folder = backends / "example_identity"
    compile_library(source, folder / "libtriton_example_identity.so")
    shutil.copy(libraries / "volume.so", folder / LIBRARY)
    (repository / "model" / "1").mkdir(parents=True)
    (repository / "model" / "config.pbtxt").write_text(
        'backend: "example_identity" max_batch_size: 8\n'
        'input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        "dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }\n"
        + parameter("MAX_BATCH_VOLUME_BYTES", "40")
    )
    with (
        held(start_server, repository, 5, f"--backend-directory={backends}") as server,
        GrpcStream(server) as stream,
    ):
        for _ in range(5):
            stream.send("model", {"A": numpy.ones((1, 5), numpy.float32)})
        for _ in range(5):
            stream.receive()
        # The backend reports statistics after it has responded.
        wait_until(
            lambda: executed(server) == {2: 2, 1: 1},
            RESPONSE_SECONDS_MAX,
            "all batches are counted",
        )


def is_loaded(server: Server) -> bool:
    """Returns true if the model responds."""
    return server.get("/v2/models/model/ready").status == 200


@pytest.mark.galatea_only  # Triton reuses the library that it has opened before.
def test_a_replaced_strategy(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """When a model is loaded again, its library is opened again."""
    settings = "dynamic_batching { }\n" + parameter("MAX_BATCH_VOLUME_BYTES", "4000")
    model = write_whole_batch(tmp_path, settings)
    shutil.copy(libraries / "single.so", model / LIBRARY)
    flags = ("--model-control-mode=explicit", "--load-model=model")
    with (
        held(start_server, tmp_path, 3, *flags) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
    ):
        assert batches(server, [[1], [2], [3]]) == [[1], [2], [3]]
        client.unload_model("model")
        wait_until(lambda: not is_loaded(server), RESPONSE_SECONDS_MAX, "it is gone")
        shutil.copy(libraries / "volume.so", model / "new.so")
        (model / "new.so").replace(model / LIBRARY)
        client.load_model("model")
        assert batches(server, [[1], [2], [3]]) == [[1, 2, 3]]
