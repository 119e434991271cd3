"""Tests of Ray Serve with Galatea in its replicas, on three Ray nodes.

    pip install -r tests/ray.txt
    cargo build -p galatea-python
    GALATEA_TEST_RAY=target/debug/lib_galatea.so pytest tests/deploy/test_ray.py
"""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import os
import pathlib
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from conftest import DEPLOY, ROOT, write_models
from server import wait_until

EXTENSION = os.environ.get("GALATEA_TEST_RAY")
if not EXTENSION:
    pytest.skip("GALATEA_TEST_RAY names no extension", allow_module_level=True)

from ray_callers import calls, http_requests, inputs  # noqa: E402
from ray_cluster import SECONDS_MAX, Application, Nodes  # noqa: E402

#: Returns its input, a batch at a time.
PLAIN = """
backend: "identity"
max_batch_size: 8
dynamic_batching { }
parameters { key: "execute_delay_ms" value { string_value: "20" } }
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
#: Each replica has requests all the time, if there are enough callers.
SLOW = PLAIN.replace('"20"', '"200"')
COUNTER = """
backend: "token_counter"
max_batch_size: 4
model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] } ]
parameters { key: "DELAY_MICROSECONDS" value { string_value: "1000" } }
"""
HELD = PLAIN.replace('"identity"', '"python"')
#: Executes only when the file `go` is there, and leaves a file when it is unloaded.
HELD_MODEL = """
import os, pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        end = time.monotonic() + 120
        while not (self.folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)  # sleep: polls until the test lets it go on
        return [self.answer(request) for request in requests]

    def answer(self, request):
        [values] = [tensor.as_numpy() for tensor in request.inputs()]
        if values[0, 0] < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("less than nothing"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])

    def finalize(self):
        (self.folder / f"unloaded-{os.getpid()}").touch()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes on which the package and the application can be imported."""
    site = tmp_path_factory.mktemp("site")
    package = site / "galatea"
    shutil.copytree(ROOT / "python/galatea", package, ignore=shutil.ignore_patterns("*.so"))
    (package / "_galatea.abi3.so").symlink_to(pathlib.Path(EXTENSION).resolve(strict=True))
    folders = [str(site), str(DEPLOY / "ray")]
    os.environ["PYTHONPATH"] = ":".join(folders)
    sys.path[:0] = folders
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture
def application(nodes: Nodes, tmp_path: pathlib.Path) -> Application:
    """The application on three nodes, not deployed yet."""
    nodes.complete()
    return Application(nodes, tmp_path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository with the models above."""
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, {"plain": PLAIN, "slow": SLOW, "counter": COUNTER, "held": HELD})
    (repository / "held/1/model.py").write_text(HELD_MODEL)
    return repository


@pytest.fixture
def arguments(models: pathlib.Path) -> dict[str, Any]:
    """Arguments of the application, for models that clients load."""
    flags = ["--model-control-mode=explicit", "--load-model=plain"]
    return {"model_repository": str(models), "flags": flags}


def get(nodes: Nodes, path: str) -> bytes:
    """The response to a request over HTTP."""
    url = f"http://127.0.0.1:{nodes.http_port}{path}"
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as reply:
        return reply.read()


def post(nodes: Nodes, path: str, document: object = None, **headers: str) -> bytes:
    """The response to a request with JSON over HTTP."""
    body = b"" if document is None else json.dumps(document).encode()
    if headers.get("Content-Encoding") == "gzip":
        body = gzip.compress(body)
    request = urllib.request.Request(f"http://127.0.0.1:{nodes.http_port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
        return reply.read()


def test_requests_share_batches_in_each_replica(
    application: Application, arguments: dict[str, Any]
) -> None:
    handle = application.deploy(arguments, num_replicas=3)
    with calls(handle, "plain", callers=48) as ledger:
        wait_until(lambda: len(ledger.answers) > 1000, SECONDS_MAX, "requests")
    assert ledger.sent == len(ledger.answers)
    said = application.statistics("plain", 3)
    assert len({one["node"] for one in said.values()}) == 3
    assert sum(one["inference_count"] for one in said.values()) == len(ledger.answers)
    for one in said.values():
        # A replica has about 16 callers, and 8 requests fit into a batch.
        assert one["inference_count"] > 50
        assert one["execution_count"] < one["inference_count"] / 2, one
        assert max(batch["batch_size"] for batch in one["batch_stats"]) == 8


def test_http_clients_reach_the_whole_protocol(
    nodes: Nodes, application: Application, arguments: dict[str, Any]
) -> None:
    arguments["flags"].append("--load-model=counter")
    application.deploy(arguments, num_replicas=1)
    with http_requests(nodes.http_port, "plain", clients=8) as ledger:
        wait_until(lambda: len(ledger.answers) > 100, SECONDS_MAX, "requests")
    assert ledger.sent == len(ledger.answers)
    assert json.loads(get(nodes, "/v2/models/plain"))["platform"] == "identity"
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [7, 8]}
    question = {"inputs": [tensor]}
    answer = post(nodes, "/v2/models/plain/infer", question, **{"Content-Encoding": "gzip"})
    assert json.loads(answer)["outputs"][0]["data"] == [7, 8]
    lines = post(nodes, "/v2/models/counter/generate_stream", {"COUNT": 3}).decode()
    assert [json.loads(line[6:])["TOKEN"] for line in lines.splitlines() if line] == [0, 1, 2]
    tensor["name"] = "WRONG"
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(nodes, "/v2/models/plain/infer", question)
    assert caught.value.code == 400
    text = "unexpected inference input 'WRONG' for model 'plain'"
    assert json.loads(caught.value.read()) == {"error": text}
    assert caught.value.headers["content-type"] == "application/json"
    assert len(caught.value.headers.get_all("date")) == 1


def test_streams_and_errors_of_handles(
    application: Application, arguments: dict[str, Any], models: pathlib.Path
) -> None:
    import galatea

    (models / "held/go").touch()
    arguments["flags"] += ["--load-model=counter", "--load-model=held"]
    handle = application.deploy(arguments, num_replicas=1)
    count = {"COUNT": numpy.array([[4]], numpy.int32)}
    stream = handle.options(stream=True).stream.remote("counter", count)
    assert [int(outputs["TOKEN"].item()) for outputs in stream] == [0, 1, 2, 3]
    for model, values, kind, text in (
        ("absent", inputs(1), galatea.NotFoundError, "unknown model: 'absent' is not found"),
        ("held", inputs(-1), galatea.InternalError, "less than nothing"),
        ("counter", count, ValueError, "'counter' sent 4 responses: call 'stream'"),
    ):
        with pytest.raises(kind, match=text):
            handle.infer.remote(model, values).result(timeout_s=SECONDS_MAX)


def test_replicas_follow_the_load(application: Application, arguments: dict[str, Any]) -> None:
    quickly = {
        "min_replicas": 1,
        "max_replicas": 3,
        "look_back_period_s": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
    }
    handle = application.deploy(arguments, autoscaling_config=quickly)
    application.wait_for_replicas(1)
    with calls(handle, "plain", callers=48) as ledger:
        application.wait_for_replicas(3)

        def all_work() -> bool:
            replicas = application.statistics("plain", 3).values()
            return all(one["inference_count"] > 0 for one in replicas)

        wait_until(all_work, SECONDS_MAX, "the new ones work")
    # No request is lost or repeated, neither when replicas are added nor when they are removed.
    with calls(handle, "plain", callers=4) as few:
        application.wait_for_replicas(1)
    assert (ledger.retried(), few.retried()) == (0, 0)


def test_a_node_is_killed(
    nodes: Nodes, application: Application, arguments: dict[str, Any]
) -> None:
    arguments["flags"].append("--load-model=slow")
    handle = application.deploy(arguments, num_replicas=3)
    before = application.statistics("slow", 3)
    head = nodes.cluster.head_node.node_id
    [lost, *_] = [name for name, one in before.items() if one["node"] != head]
    with (
        calls(handle, "slow", callers=48) as ledger,
        http_requests(nodes.http_port, "slow", clients=12) as over_http,
    ):
        def asked(more: int) -> None:
            aims = [(one, len(one.answers) + more) for one in (ledger, over_http)]
            wait_until(
                lambda: all(len(one.answers) > aim for one, aim in aims), SECONDS_MAX, "requests"
            )

        asked(100)
        nodes.kill(before[lost]["node"])
        wait_until(
            lambda: application.replicas() != {"RUNNING": 3}, SECONDS_MAX, "Serve notices it"
        )
        application.wait_for_replicas(3)
        asked(100)
    after = application.statistics("slow", 3)
    [new] = [one for name, one in after.items() if name not in before]
    assert new["node"] != before[lost]["node"]
    # Only those that the replica had are lost.
    assert 0 < ledger.retried() <= 48
    assert 0 < over_http.retried() <= 12
    print(f"{ledger.retried()} and {over_http.retried()} requests were sent again")


def test_a_replica_that_is_not_ready_is_replaced(
    nodes: Nodes, application: Application, arguments: dict[str, Any], models: pathlib.Path
) -> None:
    application.deploy(arguments, num_replicas=1, health_check_period_s=1)
    [before] = application.statistics("plain", 1)
    write_models(models, {"broken": 'backend: "none"'})
    with pytest.raises(urllib.error.HTTPError):
        post(nodes, "/v2/repository/models/broken/load")
    wait_until(
        lambda: before not in application.statistics("plain", 1), SECONDS_MAX, "it is replaced"
    )
    application.wait_for_replicas(1)
    wait_until(lambda: application.status().status == "RUNNING", SECONDS_MAX, "all is well")


def test_models_that_can_not_be_loaded_fail_the_deployment(
    application: Application, arguments: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    broken = write_models(tmp_path / "models", {"plain": PLAIN.replace("identity", "none")})
    application.submit({**arguments, "model_repository": str(broken)}, num_replicas=1)
    application.wait_for("DEPLOY_FAILED")
    message = application.status().deployments["Galatea"].message
    assert "galatea.InternalError: failed to load all models" in message, message


def test_an_update_answers_what_a_replica_has(
    nodes: Nodes, application: Application, arguments: dict[str, Any], models: pathlib.Path
) -> None:
    go = models / "held/go"
    go.unlink(missing_ok=True)
    for earlier in models.glob("held/unloaded-*"):
        earlier.unlink()
    arguments["flags"].append("--load-model=held")
    handle = application.deploy(arguments, num_replicas=1)

    def scheduler() -> Any:
        return json.loads(get(nodes, "/v2/models/held/scheduler"))

    def is_busy() -> bool:
        return any(instance["state"] == "busy" for instance in scheduler()["instances"])

    def has_all() -> bool:
        return sum(queue["waiting"] for queue in scheduler()["queues"]) == 20

    first = handle.infer.remote("held", inputs(0))
    wait_until(is_busy, SECONDS_MAX, "a request is executed")
    others = [handle.infer.remote("held", inputs(value)) for value in range(1, 21)]
    wait_until(has_all, SECONDS_MAX, "the others wait")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        update = threads.submit(
            application.deploy, {**arguments, "server_id": "new"}, num_replicas=1
        )
        wait_until(lambda: application.replicas().get("STOPPING") == 1, SECONDS_MAX, "it stops")
        go.touch()
        for value, one in enumerate([first, *others]):
            assert one.result(timeout_s=SECONDS_MAX)["OUTPUT0"].tolist() == [[value]]
        update.result(SECONDS_MAX)
    application.wait_for_replicas(1)
    assert json.loads(get(nodes, "/v2"))["name"] == "new"
    # The models were unloaded in order, and their process has ended.
    [unloaded] = models.glob("held/unloaded-*")
    assert not pathlib.Path("/proc", unloaded.name.removeprefix("unloaded-")).exists()

