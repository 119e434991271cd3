"""Tests of loading and unloading: explicit control, polling, and reloads under load."""

from __future__ import annotations

import base64
import http.client
import json
import os
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from constant_models import added_value, constant_model, replace_file, request_body, write_model
from latch import Latch
from server import Reply, Server, resident_kilobytes, wait_until

EXPLICIT = "--model-control-mode=explicit"

# Environment variables increase both for longer runs.
RELOADS = int(os.environ.get("GALATEA_TEST_RELOADS", "20"))
MEMORY_RELOADS = int(os.environ.get("GALATEA_TEST_MEMORY_RELOADS", "200"))

REQUESTS_PER_SECOND = 500
CLIENTS = 4


def load(server: Server, model: str, parameters: dict[str, Any] | None = None) -> Reply:
    """Requests a load over HTTP."""
    body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
    return server.request("POST", f"/v2/repository/models/{model}/load", body)


def unload(server: Server, model: str, body: bytes = b"") -> Reply:
    """Requests an unload over HTTP."""
    return server.request("POST", f"/v2/repository/models/{model}/unload", body)


def index(server: Server) -> dict[tuple[str, str], str]:
    """The state and reason of every version."""
    entries = server.request("POST", "/v2/repository/index", b"").json()
    return {
        (entry["name"], entry.get("version", "")): " ".join(
            part for part in (entry.get("state", ""), entry.get("reason", "")) if part
        )
        for entry in entries
    }


# row: HTTP-24 PREP-01 PREP-03 PREP-08 MR-09 BEK-07 HTTP-05
def test_models_are_loaded_and_unloaded(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Only models that are named at startup are served, until a client loads more."""
    write_model(tmp_path, "one", 1)
    write_model(tmp_path, "two", 2)
    with start_server(tmp_path, EXPLICIT, "--load-model=one") as server:
        server.wait_until_ready()
        assert added_value(server, "one") == 1
        assert index(server) == {("one", "1"): "READY", ("two", ""): ""}
        reply = server.infer("two", request_body())
        assert reply.status == 404
        assert reply.error() == "Request for unknown model: 'two' is not found"
        assert load(server, "two").status == 200
        assert added_value(server, "two") == 2
        assert unload(server, "one").status == 200
        wait_until(
            lambda: index(server)["one", "1"] == "UNAVAILABLE unloaded", 30, "it is unloaded"
        )
        assert server.get("/v2/models/one/ready").status == 400
        assert server.infer("one", request_body()).status == 404
        assert server.infer("one/versions/1", request_body()).status == 503
        assert server.get("/v2/health/ready").status == 200
        assert unload(server, "never_heard_of").status == 200
        ready = server.request("POST", "/v2/repository/index", b'{"ready":true}').json()
        assert [entry["name"] for entry in ready] == ["two"]


# row: GRPC-22 BEK-07
def test_grpc_loads_and_unloads_too(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With the client library, including parameters."""
    write_model(tmp_path, "m", 1)
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.load_model("m")
            assert client.is_model_ready("m") and added_value(server, "m") == 1
            config = json.dumps({"name": "m", "max_batch_size": 7, "backend": "onnxruntime"})
            client.load_model("m", config=config, files={"file:1/model.onnx": constant_model(5)})
            assert added_value(server, "m") == 5
            shown = client.get_model_config("m", as_json=True)["config"]
            assert shown["max_batch_size"] == 7
            client.load_model("m")
            assert added_value(server, "m") == 1
            if not server.is_triton:  # which says that all is well
                with pytest.raises(InferenceServerException, match="failed to poll from model"):
                    client.load_model("nothing")
            client.unload_model("m", unload_dependents=True)
            assert not client.is_model_ready("m")


def test_unloads_with_parameters_of_a_wrong_type(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """As in Triton, they are ignored over HTTP, and refused over gRPC."""
    write_model(tmp_path, "m", 1)
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        for parameters in ("5", "[]", "null", '{"unload_dependents":"true"}'):
            assert load(server, "m").status == 200
            assert server.get("/v2/models/m/ready").status == 200
            body = f'{{"parameters":{parameters}}}'.encode()
            assert server.request("POST", "/v2/repository/models/m/unload", body).status == 200
            assert server.get("/v2/models/m/ready").status == 400
        assert load(server, "m").status == 200
        order = service_pb2.RepositoryModelUnloadRequest(model_name="m")
        order.parameters["unload_dependents"].string_param = "true"
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="expected bool_param.") as caught:
                stub.RepositoryModelUnload(order)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert server.get("/v2/models/m/ready").status == 200


@pytest.mark.parametrize(
    "backend, reason",
    [
        (
            'backend: "nothing"',
            "unable to find backend library for backend 'nothing', try specifying runtime on the "
            "model configuration.",
        ),
        (
            'backend: "nothing" runtime: "libtriton_other.so"',
            "unable to find backend library 'libtriton_other.so' for model 'm', searched: ",
        ),
        (
            'backend: "nothing" runtime: "../libtriton_other.so"',
            "unable to find backend library '../libtriton_other.so' for model 'm', searched: ",
        ),
        (
            'platform: "onnxruntim" default_model_filename: "model.onnx"',
            "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime",
        ),
    ],
)
def test_a_load_without_a_backend(
    start_server: StartServer, tmp_path: pathlib.Path, backend: str, reason: str
) -> None:
    """The client receives the reason, or the operator does if the configuration is wrong."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensors = "".join(
        f'{kind} {{ name: "{kind}" data_type: TYPE_FP32 dims: [ 1 ] }}\n'
        for kind in ("input", "output")
    )
    group = "instance_group { kind: KIND_CPU }\n"
    (tmp_path / "m" / "config.pbtxt").write_text(f"{backend}\n{tensors}{group}")
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        reply = load(server, "m")
        if "pair" in reason:
            assert reason in server.log()
            return
        assert reply.status == 400
        begin = "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: "
        assert reply.error().startswith(begin + reason)
        assert reply.error().endswith(("nothing' ;\n", "configuration.;\n"))


# row: CLI-09
def test_a_star_loads_all_models(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """--load-model=* loads all models, and must be the only --load-model."""
    write_model(tmp_path, "one", 1)
    write_model(tmp_path, "two", 2)
    with start_server(tmp_path, EXPLICIT, "--load-model=*") as server:
        server.wait_until_ready()
        assert (added_value(server, "one"), added_value(server, "two")) == (1, 2)
    with start_server(tmp_path, EXPLICIT, "--load-model=*", "--load-model=one") as server:
        assert server.wait_for_exit() == 1
        assert "Wildcard model name '*' must be the ONLY startup model" in server.log()


@pytest.mark.parametrize("mode", ["none", "poll"])
# row: PREP-03 CLI-07 MR-07
def test_other_modes_refuse_loads_and_unloads(
    start_server: StartServer, tmp_path: pathlib.Path, mode: str
) -> None:
    """The error mentions polling in both modes, as Triton's does."""
    write_model(tmp_path, "m", 1)
    with start_server(tmp_path, f"--model-control-mode={mode}") as server:
        server.wait_until_ready()
        for reply in (load(server, "m"), unload(server, "m")):
            assert reply.status == 503
            assert reply.error().startswith(
                "explicit model load / unload is not allowed if polling is enabled"
            )


# row: PREP-04
def test_loads_that_fail(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Each failure has Triton's code and text, and models that are served remain available."""
    write_model(tmp_path, "m", 1)
    with start_server(tmp_path, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()

        def check(reply: Reply, status: int, text: str) -> None:
            assert (reply.status, reply.error()[: len(text)]) == (status, text)
            assert added_value(server, "m") == 1

        missing = "failed to load '{}', failed to poll from model repository"
        check(load(server, "nothing"), 500, missing.format("nothing"))
        check(load(server, "m", {"config": "no json"}), 500, missing.format("m"))
        other = json.dumps({"name": "other"})
        check(load(server, "m", {"config": other}), 500, missing.format("m"))
        content = base64.b64encode(constant_model(5)).decode()
        check(load(server, "m", {"file:1/model.onnx": content}), 500, missing.format("m"))
        escape = {"config": "{}", "file:../../escaped": content}
        check(load(server, "m", escape), 500, missing.format("m"))
        none = {"backend": "onnxruntime", "version_policy": {"specific": {"versions": [9]}}}
        policy = "at least one version must be available under the version policy of model 'm'"
        text = f"load failed for model 'm': {policy}"
        check(load(server, "m", {"config": json.dumps(none)}), 400, text)
        assert not list(tmp_path.parent.rglob("escaped"))
        check(load(server, "m", {"colour": "blue"}), 500, "unexpected error on creating Triton")
        replace_file(tmp_path / "m" / "1" / "model.onnx", b"this is no model")
        text = "load failed for model 'm': version 1 is at UNAVAILABLE state: "
        if not server.is_triton:
            text = "load failed for model 'm': version 1 is at READY state: "
        check(load(server, "m"), 400, text)


# row: PREP-06
def test_a_client_sends_the_files(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The repository's own files are ignored, and the files that were sent leave nothing behind."""
    repository = tmp_path / "repository"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    write_model(repository, "m", 1)
    environment = {"TMPDIR": str(temporary)}
    with start_server(repository, EXPLICIT, environment=environment) as server:
        server.wait_until_ready()
        content = base64.b64encode(constant_model(5)).decode()
        config = json.dumps({"backend": "onnxruntime", "version_policy": {"all": {}}})
        files = {"file:3/model.onnx": content, "file:7/model.onnx": content}
        assert load(server, "m", {"config": config, **files}).status == 200
        assert (added_value(server, "m", 3), added_value(server, "m", 7)) == (5, 5)
        assert server.infer("m/versions/1", request_body()).status == 404
        assert load(server, "m").status == 200
        assert added_value(server, "m") == 1
        wait_until(
            lambda: server.is_triton or not list(temporary.iterdir()), 30, "they are removed"
        )
        assert load(server, "brought", {"config": config, **files}).status == 200
        assert added_value(server, "brought") == 5
    assert server.is_triton or not list(temporary.iterdir())


@pytest.mark.galatea_only
def test_sent_files_lie_in_their_directory_with_the_configuration(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """As in Triton, whose directory can't be chosen by tests: paths start in it, and a backend
    finds the configuration that came with the files."""
    repository, temporary = tmp_path / "repository", tmp_path / "temporary"
    repository.mkdir()
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    content = base64.b64encode(constant_model(5)).decode()
    word = base64.b64encode(b"word").decode()
    files = {"file:/1/model.onnx": content, "file:./a/../b": word, "file:/etc/passwd": word}
    with start_server(repository, EXPLICIT, environment=environment) as server:
        server.wait_until_ready()
        config = json.dumps({"backend": "onnxruntime", "max_batch_size": 7})
        assert load(server, "m", {"config": config, **files}).status == 200
        assert added_value(server, "m") == 5
        (directory,) = temporary.iterdir()
        found = {str(path.relative_to(directory)) for path in directory.rglob("*.*")}
        assert found == {"1/model.onnx", "config.pbtxt"}
        text = (directory / "config.pbtxt").read_text()
        assert text == 'max_batch_size: 7\nbackend: "onnxruntime"\n'
        for path in ("b", "etc/passwd"):
            assert (directory / path).read_text() == "word"


# row: CLI-08 MR-08
def test_polling_follows_the_repository(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Polling notices added, changed and removed models and versions, and keeps unchanged ones."""
    config = 'backend: "onnxruntime" max_batch_size: 4 version_policy { all { } }'
    write_model(tmp_path, "stays", 1, config=config)
    write_model(tmp_path, "goes", 1)
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        assert added_value(server, "stays", 1) == 1

        def served(model: str, version: int, value: int) -> bool:
            reply = server.infer(f"{model}/versions/{version}", request_body())
            return reply.status == 200 and reply.json()["outputs"][0]["data"] == [value]

        write_model(tmp_path, "comes", 3)
        write_model(tmp_path, "stays", 2, versions=(2,))
        os.rename(tmp_path / "goes", tmp_path.parent / "gone")
        wait_until(lambda: served("comes", 1, 3), 60, "the new model serves")
        wait_until(lambda: served("stays", 2, 2), 60, "the new version serves")
        wait_until(
            lambda: server.infer("goes", request_body()).status == 404, 60, "the old model is gone"
        )
        (first,) = server.get("/v2/models/stays/versions/1/stats").json()["model_stats"]
        assert first["inference_count"] == 1, "the other version was not loaded anew"
        write_model(tmp_path, "comes", 4)
        wait_until(lambda: served("comes", 1, 4), 60, "the changed model serves")


# row: STAT-07 MR-11
def test_other_instances_need_no_reload(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Statistics continue, and the configuration shows the new count."""
    def config(count: int) -> str:
        return (
            'backend: "onnxruntime" max_batch_size: 4 '
            f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]"
        )

    write_model(tmp_path, "m", 1, config=config(1))
    with start_server(tmp_path, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        assert added_value(server, "m") == 1
        for count in (3, 2):
            (tmp_path / "m" / "config.pbtxt").write_text(config(count))
            assert load(server, "m").status == 200
            shown = server.get("/v2/models/m/config").json()
            assert [group["count"] for group in shown["instance_group"]] == [count]
            assert added_value(server, "m") == 1
        assert server.statistics("m")["inference_count"] == 3


class Traffic:
    """Clients that send requests at a steady rate, each on its own connection."""

    def __init__(self, server: Server, model: str) -> None:
        """Starts them."""
        self.failures: list[str] = []
        self.sent = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._path = f"/v2/models/{model}/infer"
        self._server = server
        self._threads = [threading.Thread(target=self._send_requests) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send_requests(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        body = json.dumps(request_body()).encode()
        newest, sent, failures = -1, 0, []
        due = time.monotonic()
        while not self._over.is_set():
            connection.request("POST", self._path, body)
            response = connection.getresponse()
            text = response.read()
            sent += 1
            value = json.loads(text)["outputs"][0]["data"][0] if response.status == 200 else None
            if value is None:
                failures.append(f"{response.status} {text[:200]!r}")
            elif value < newest:
                failures.append(f"{value} after {newest}")
            else:
                newest = value
            due += CLIENTS / REQUESTS_PER_SECOND
            self._over.wait(max(0.0, due - time.monotonic()))
        connection.close()
        with self._lock:
            self.sent += sent
            self.failures += failures

    def stop(self) -> None:
        """Stops them and waits for their end."""
        self._over.set()
        for thread in self._threads:
            thread.join()


# row: MR-10
def test_reloads_under_load_lose_no_request(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Every tenth reload uses a corrupt file; no response ever comes from an older model again."""
    write_model(tmp_path, "m", 0)
    with start_server(tmp_path, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        traffic = Traffic(server, "m")
        try:
            for number in range(1, RELOADS + 1):
                is_corrupt = number % 10 == 0
                content = b"this is no model" if is_corrupt else constant_model(number)
                replace_file(tmp_path / "m" / "1" / "model.onnx", content)
                assert load(server, "m").status == (400 if is_corrupt else 200)
        finally:
            traffic.stop()
        assert traffic.failures == []
        print(f"{traffic.sent} requests during {RELOADS} reloads")
        assert traffic.sent >= RELOADS
        replace_file(tmp_path / "m" / "1" / "model.onnx", constant_model(RELOADS + 1))
        assert load(server, "m").status == 200
        assert added_value(server, "m") == RELOADS + 1


# row: PREP-08 MR-12 DYN-19
def test_unloading_under_load_finishes_accepted_requests(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Running and queued requests complete; later requests get the error for an unknown model."""
    latch = Latch(tmp_path, "slow", "instance_group { kind: KIND_CPU count: 1 }", max_batch_size=1)
    with start_server(tmp_path, EXPLICIT, "--load-model=slow") as server:
        server.wait_until_ready()
        with ThreadPoolExecutor(CLIENTS) as clients, latch:
            taken = [clients.submit(server.infer, "slow", latch.request(3)) for _ in range(CLIENTS)]
            # One runs and the others are queued, so the model has accepted all of them.
            server.wait_for_pending("slow", CLIENTS - 1)
            assert unload(server, "slow").status == 200
            late = server.infer("slow", latch.request(3))
            assert late.status == 404 and "has no available versions" in late.error()
            latch.open()
            assert [future.result().status for future in taken] == [200] * CLIENTS
        wait_until(
            lambda: index(server)["slow", "1"] == "UNAVAILABLE unloaded", 30, "it is unloaded"
        )


@pytest.mark.galatea_only
def test_reloads_leave_no_memory_behind(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The slope of resident memory over reloads, after the first hundred."""
    write_model(tmp_path, "m", 0)
    with start_server(tmp_path, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        sizes = []
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        for number in range(1, MEMORY_RELOADS + 1):
            replace_file(tmp_path / "m" / "1" / "model.onnx", constant_model(number))
            connection.request("POST", "/v2/repository/models/m/load", b"")
            assert connection.getresponse().read() == b""
            sizes.append(resident_kilobytes(server))
        connection.close()
        assert added_value(server, "m") == MEMORY_RELOADS
        counted = sizes[100:]
        middle = (len(counted) - 1) / 2
        deviations = [position - middle for position in range(len(counted))]
        slope = sum(d * size for d, size in zip(deviations, counted, strict=True)) / sum(
            d * d for d in deviations
        )
        print(f"slope {slope:.3f} kB a reload over {len(counted)}, from {sizes[0]} to {sizes[-1]} kB")
        # A session takes hundreds of kB. A few reloads can't detect a smaller leak, because the
        # result includes the allocator's own steps.
        assert slope < (1.0 if len(counted) >= 900 else 20.0)
