"""Tests of the start and end of the process, and of models that can't be loaded."""

from __future__ import annotations

import json
import pathlib
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import make_models
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from latch import Latch
from raw_http import Connection, get, post
from server import Server, wait_until

IDENTITY = """\
name: "{name}"
backend: "identity"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
"""


def slow_request(rounds: int) -> bytes:
    """A request that keeps the slow model's only instance busy."""
    tensor = {"name": "ROUNDS", "shape": [1, 1], "datatype": "INT64", "data": [rounds]}
    return json.dumps({"inputs": [tensor]}).encode()


def waits_for(server: Server, count: int) -> bool:
    """Returns true if a server that is stopping has waited for this many connections.

    In its first second, it may count those of earlier requests, whose end it has not noticed yet.
    """
    return f": Found {count} HTTP service connections" in server.log()


@pytest.fixture
def slow_repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with only the slow model."""
    make_models.write_models(tmp_path, make_models.TEST_MODELS, ["onnx_slow"])
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
# row: CLI-26
def test_signals_end_an_idle_server(
    start_server: StartServer, slow_repository: pathlib.Path, number: signal.Signals
) -> None:
    """SIGINT and SIGTERM cause an orderly shutdown."""
    with start_server(slow_repository) as server:
        server.wait_until_ready()
        server.process.send_signal(number)
        assert server.wait_for_exit() == 0


def test_requests_in_flight_are_finished(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """After SIGTERM, accepted requests complete, and the exit code is 0."""
    latch = Latch(tmp_path, "busy", "instance_group { kind: KIND_CPU count: 1 }")
    with start_server(tmp_path) as server, ThreadPoolExecutor(3) as clients, latch:
        server.wait_until_ready()
        taken = [clients.submit(server.infer, "busy", latch.request(7)) for _ in range(3)]
        # One executes and the others wait: all three are accepted.
        server.wait_for_pending("busy", 2)
        server.terminate()
        wait_until(lambda: waits_for(server, 3), 60, "it stops")
        latch.open()
        replies = [one.result() for one in taken]
        assert [reply.status for reply in replies] == [200] * 3
        assert [reply.json()["outputs"][0]["data"] for reply in replies] == [[7]] * 3
        assert server.wait_for_exit() == 0


@pytest.mark.galatea_only
# row: CLI-26
def test_calls_are_refused_while_a_request_holds_the_end(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """New calls over gRPC get the text, both on open connections and on new ones."""
    text = "GRPC server is shutting down and has stopped accepting new requests."
    latch = Latch(tmp_path, "busy")
    tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(np.array([7], dtype=np.int32))

    def connect() -> tritonclient.grpc.InferenceServerClient:
        own = [("grpc.use_local_subchannel_pool", 1)]
        return tritonclient.grpc.InferenceServerClient(server.grpc_url, channel_args=own)

    with start_server(tmp_path) as server, ThreadPoolExecutor(1) as clients, latch:
        server.wait_until_ready()
        with connect() as used, connect() as idle:
            assert used.is_server_live() and idle.is_server_live()
            taken = clients.submit(used.infer, "busy", [tensor])
            wait_until(lambda: server.is_executing("busy"), 60, "the request executes")
            server.terminate()
            wait_until(lambda: "gRPC service connections" in server.log(), 60, "it stops")
            with connect() as new:
                for client in (used, idle, new):
                    with pytest.raises(InferenceServerException) as raised:
                        client.infer("busy", [tensor])
                    status = (raised.value.status(), raised.value.message())
                    assert status == ("StatusCode.UNAVAILABLE", text)
            latch.open()
            assert taken.result().as_numpy("OUTPUT0") == [7]
        assert server.wait_for_exit() == 0


def test_open_connections_are_served_until_their_clients_close_them(
    start_server: StartServer, slow_repository: pathlib.Path
) -> None:
    """After SIGTERM, open HTTP connections work as before, and no new ones are accepted."""
    with start_server(slow_repository) as server:
        server.wait_until_ready()
        with Connection(server) as used, Connection(server) as unused, Connection(server) as half:
            used.send(get("/v2/health/ready"))
            assert (used.read_response() or (0, b""))[0] == 200
            half.send(get("/v2/health/ready")[:30])
            # Each connection is known to the server when this one is.
            assert server.is_ready()
            server.terminate()
            wait_until(lambda: waits_for(server, 3), 60, "it stops")
            with pytest.raises(OSError):
                server.get("/v2/health/live")
            half.send(get("/v2/health/ready")[30:])
            assert (half.read_response() or (0, b""))[0] == 200
            for connection in (used, unused):
                for path in ("/v2/health/ready", "/v2/health/live", "/v2"):
                    connection.send(get(path))
                    assert (connection.read_response() or (0, b""))[0] == 200
                connection.send(post("/v2/models/onnx_slow/infer", slow_request(1)))
                assert (connection.read_response() or (0, b""))[0] == 200
        assert server.wait_for_exit() == 0
        assert "Timeout 1: Found" not in server.log()


def test_silent_connections_delay_the_end_by_the_exit_timeout(
    start_server: StartServer, slow_repository: pathlib.Path
) -> None:
    """A client that keeps its connection doesn't delay the server any longer."""
    with start_server(slow_repository, "--exit-timeout-secs=2") as server:
        server.wait_until_ready()
        # The server knows the first when it responds to the second.
        with Connection(server) as half, Connection(server) as idle:
            half.send(b"POST /v2/models/onnx_slow/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
            idle.send(get("/v2/health/ready"))
            assert (idle.read_response() or (0, b""))[0] == 200
            server.terminate()
            # Triton's exit code is 1 whenever the timeout expires.
            assert server.wait_for_exit() == (1 if server.is_triton else 0)
            assert idle.is_closed_by_server() and half.is_closed_by_server()
        # The connection that was used to check readiness may still be counted in the first second.
        assert re.search("Timeout 2: Found [23] HTTP service connections", server.log())
        assert "Timeout 1: Found 2 HTTP service connections" in server.log()


@pytest.mark.galatea_only
def test_idle_connections_do_not_hold_the_end(
    start_server: StartServer, slow_repository: pathlib.Path
) -> None:
    """Connections without a request are closed after two seconds, and the others stay open."""
    with start_server(slow_repository) as server:
        server.wait_until_ready()
        with Connection(server) as idle, Connection(server) as unused, Connection(server) as half:
            idle.send(get("/v2/health/ready"))
            assert (idle.read_response() or (0, b""))[0] == 200
            half.send(get("/v2/health/ready")[:30])
            assert server.is_ready()
            server.terminate()
            # While a client is about to send a request, no connection is closed.
            wait_until(lambda: "Timeout 26: Found 3 HTTP" in server.log(), 60, "it waits")
            half.send(get("/v2/health/ready")[30:])
            assert (half.read_response() or (0, b""))[0] == 200
            assert server.wait_for_exit() == 0
            assert all(one.is_closed_by_server() for one in (idle, unused, half))
        assert "Timeout 10: " not in server.log()


STUCK = """
import pathlib
import time
class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path({mark!r}).touch()
        while True:
            time.sleep(1)  # sleep: hangs until the server ends the worker
    def execute(self, requests):
        return []
"""


@pytest.mark.galatea_only
@pytest.mark.parametrize("way", ["http", "grpc", "poll"])
def test_a_load_that_never_ends_does_not_hold_the_end(
    start_server: StartServer, tmp_path: pathlib.Path, way: str
) -> None:
    """Clients that wait for it get an error, its process is gone, and the exit code is 0."""
    mark, repository = tmp_path / "begun", tmp_path / "models"
    repository.mkdir()

    def write() -> None:
        folder = tmp_path / "stuck"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(STUCK.format(mark=str(mark)))
        config = IDENTITY.format(name="stuck").replace('"identity"', '"python"')
        (folder / "config.pbtxt").write_text(config)
        folder.rename(repository / "stuck")

    mode = "poll" if way == "poll" else "explicit"
    flags = [f"--model-control-mode={mode}", "--repository-poll-secs=1"]
    with start_server(repository, *flags) as server, ThreadPoolExecutor(1) as clients:
        server.wait_until_ready()
        write()
        loading = None
        if way == "http":
            path = "/v2/repository/models/stuck/load"
            loading = clients.submit(server.request, "POST", path, b"{}")
        if way == "grpc":
            client = tritonclient.grpc.InferenceServerClient(f"localhost:{server.grpc_port}")
            loading = clients.submit(client.load_model, "stuck")
        wait_until(mark.exists, 60, "the load is stuck")
        server.terminate()
        assert server.wait_for_exit() == 0
        if loading and way == "http":
            reply = loading.result()
            assert (reply.status, reply.json()) == (503, {"error": "Server exiting"})
        if loading and way == "grpc":
            with pytest.raises(InferenceServerException, match="Server exiting"):
                loading.result()
        log = server.log()
        assert "loads in progress were given up: 1" in log
        assert "Timeout 10: " not in log
        killed = [int(number) for number in re.findall(r"process (\d+), which .* was killed", log)]
        assert killed
        wait_until(lambda: not any(map(is_alive, killed)), 60, "the worker is gone")


def is_alive(process: int) -> bool:
    """Returns true if a process with this ID exists and isn't just the remains of a dead one."""
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.galatea_only
# row: CLI-04
def test_the_exit_timeout_ends_running_requests(
    start_server: StartServer, slow_repository: pathlib.Path
) -> None:
    """The server doesn't wait for a request beyond --exit-timeout-secs."""
    with start_server(slow_repository, "--exit-timeout-secs=1") as server:
        server.wait_until_ready()
        with Connection(server) as first, Connection(server) as second:
            for connection in (first, second):
                connection.send(post("/v2/models/onnx_slow/infer", slow_request(2_000_000)))
            server.wait_for_pending("onnx_slow", 1)
            server.terminate()
            assert server.wait_for_exit() == 1
        assert "Exit timeout expired. Exiting immediately." in server.log()


BROKEN_MODELS = {
    "corrupt model file": {"1/model.onnx": b"this is no model" * 100},
    "empty model file": {"1/model.onnx": b""},
    "no model file": {"1/other": b""},
    "no version": {},
    "unknown backend": {"1/x": b"", "config.pbtxt": b'backend: "nothing"'},
    "no backend": {"1/x": b"", "config.pbtxt": b"max_batch_size: 1"},
    "wrong name": {"1/x": b"", "config.pbtxt": IDENTITY.format(name="other").encode()},
    "broken text": {"1/x": b"", "config.pbtxt": b'backend: "identity" input ['},
    "no text": {"1/x": b"", "config.pbtxt": bytes(range(256)) * 10},
    "unknown field": {"1/x": b"", "config.pbtxt": b'backend: "identity" colour: "blue"'},
    "wrong type": {"1/x": b"", "config.pbtxt": b'backend: "identity" max_batch_size: "many"'},
    "negative batch": {"1/x": b"", "config.pbtxt": b'backend: "identity" max_batch_size: -1'},
    "huge number": {"1/x": b"", "config.pbtxt": b'backend: "identity" max_batch_size: 99999999999'},
    "dims of zero": {
        "1/x": b"",
        "config.pbtxt": IDENTITY.format(name="broken").replace("-1", "0").encode(),
    },
    "deep nesting": {"1/x": b"", "config.pbtxt": b"parameters {" * 100_000},
    "inputs that are not the model's": {
        "1/model.onnx": None,
        "config.pbtxt": b'backend: "onnxruntime" max_batch_size: 8 '
        b'input [ { name: "OTHER" data_type: TYPE_FP32 dims: [ 16 ] } ] '
        b'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]',
    },
    "types that are not the model's": {
        "1/model.onnx": None,
        "config.pbtxt": b'backend: "onnxruntime" max_batch_size: 8 '
        b'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, '
        b'{ name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ] '
        b'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]',
    },
    "no version of an identity": {"config.pbtxt": IDENTITY.format(name="broken").encode()},
    "versions that are none": {"x1/model.onnx": None, "01/model.onnx": None},
    "an ensemble of itself": {
        "1/x": b"",
        "config.pbtxt": b'platform: "ensemble" max_batch_size: 1 '
        b'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        b'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        b'ensemble_scheduling { step [ { model_name: "broken" model_version: -1 '
        b'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }',
    },
    "an ensemble of nothing": {
        "1/x": b"",
        "config.pbtxt": b'platform: "ensemble" max_batch_size: 1 '
        b'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        b'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        b'ensemble_scheduling { step [ { model_name: "nothing" model_version: -1 '
        b'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }',
    },
    "dims beyond all bounds": {
        "1/x": b"",
        "config.pbtxt": IDENTITY.format(name="broken")
        .replace("-1", "99999999999999999999")
        .encode(),
    },
    "a wrong enumeration": {
        "1/x": b"",
        "config.pbtxt": IDENTITY.format(name="broken").replace("TYPE_FP32", "TYPE_FP33").encode(),
    },
    "a model file outside": {
        "1/x": b"",
        "config.pbtxt": b'backend: "onnxruntime" default_model_filename: "../../good/1/model.onnx"',
    },
}


#: Models that the servers take in, because only a load finds what is wrong. Of the others
#: nothing is known but the directory.
LOADED_IN_VAIN = {
    "corrupt model file",
    "empty model file",
    "unknown backend",
    "dims of zero",
    "inputs that are not the model's",
    "types that are not the model's",
    "no version of an identity",
    "a model file outside",
}

#: A part of each reason in the log.
REASONS = {
    "corrupt model file": "Protobuf parsing failed",
    "empty model file": "No graph was found",
    "no model file": "Could not determine backend",
    "no version": "Could not determine backend",
    "no version of an identity": "at least one version must be available",
    "unknown backend": (
        "unable to find backend library for backend 'nothing', try specifying runtime on the "
        "model configuration."
    ),
    "no backend": "Could not determine backend",
    "wrong name": "unexpected directory name 'broken' for model 'other'",
    "broken text": "config.pbtxt:1:27: input: there is no ']' for this",
    "no text": "stream did not contain valid UTF-8",
    "unknown field": "unknown field 'colour'",
    "wrong type": "is of the wrong type, expected an integer",
    "negative batch": "'max_batch_size' must be non-negative",
    "huge number": "99999999999 is out of range",
    "dims of zero": "dimension must be integer >= 1",
    "deep nesting": "this bracket is never closed",
    "inputs that are not the model's": "configuration expects 1 inputs, model provides 2",
    "types that are not the model's": "expects datatype TYPE_FP32 for input 'INPUT0'",
    "versions that are none": "Could not determine backend",
    "an ensemble of itself": "circular dependency between ensembles",
    "an ensemble of nothing": "models that are not available or ambiguous: nothing",
    "dims beyond all bounds": "99999999999999999999 is out of range",
    "a wrong enumeration": "did you mean 'TYPE_FP32'?",
    "a model file outside": "must stay inside the model's directory",
}


def has_failed(server: Server, reason: str) -> bool:
    """Returns true if the log has a line with the reason why 'broken' didn't load."""
    lines = server.log().splitlines()
    return any("broken" in line and reason in line for line in lines)


def broken_repository(root: pathlib.Path, name: str) -> pathlib.Path:
    """A repository with a valid and a broken model."""
    make_models.write_models(root, make_models.EXAMPLES, ["simple"])
    simple = (root / "simple" / "1" / "model.onnx").read_bytes()
    (root / "broken").mkdir()
    for relative, content in BROKEN_MODELS[name].items():
        path = root / "broken" / relative
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(simple if content is None else content)
    return root


@pytest.mark.parametrize("name", BROKEN_MODELS)
# row: HTTP-05 MR-19
def test_a_broken_model_is_reported(
    start_server: StartServer, tmp_path: pathlib.Path, name: str
) -> None:
    """The other models are served, and the log contains the reason.

    The server doesn't know a model that can't be read, and is ready without it.
    """
    repository = broken_repository(tmp_path, name)
    with start_server(repository, "--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(
            lambda: server.get("/v2/models/simple/ready").status == 200, 60, "the other is ready"
        )
        is_known = name in LOADED_IN_VAIN
        assert server.get("/v2/health/ready").status == (400 if is_known else 200)
        index = server.request("POST", "/v2/repository/index", b"").json()
        entries = [entry for entry in index if entry["name"] == "broken"]
        assert server.get("/v2/models/broken/ready").status == 400
        reply = server.infer("broken", {"inputs": []})
        assert reply.status == 404
        why = "has no available versions" if is_known else "is not found"
        assert reply.error() == f"Request for unknown model: 'broken' {why}"
        if not is_known:
            assert entries == [{"name": "broken"}]
        elif name == "no version of an identity":
            assert entries == []
        else:
            (entry,) = entries
            assert entry["state"] == "UNAVAILABLE"
            if not server.is_triton:
                assert REASONS[name] in entry["reason"]
        if not server.is_triton:
            assert has_failed(server, REASONS[name])


@pytest.mark.parametrize("name", ["corrupt model file", "broken text"])
# row: CLI-04 MR-19
def test_a_broken_model_fails_the_start(
    start_server: StartServer, tmp_path: pathlib.Path, name: str
) -> None:
    """By default, a server doesn't start if a model can't load."""
    with start_server(broken_repository(tmp_path, name)) as server:
        assert server.wait_for_exit() == 1
        assert server.is_triton or has_failed(server, REASONS[name])


# row: HTTP-05 CLI-05
def test_readiness_need_not_be_strict(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With --strict-readiness=false, the server is ready despite a broken model."""
    repository = broken_repository(tmp_path, "corrupt model file")
    with start_server(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
        server.wait_until_ready()


# row: HTTP-07 MR-01 MR-02
def test_the_newest_version_is_served(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Versions are compared as numbers, and older ones aren't loaded."""
    model = tmp_path / "versions"
    for version in ("1", "2", "10"):
        (model / version).mkdir(parents=True)
    for odd in ("007", "x", "-3"):
        (model / odd).mkdir()
    (model / "config.pbtxt").write_text(IDENTITY.format(name="versions"))
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        assert server.get("/v2/models/versions").json()["versions"] == ["10"]
        assert server.get("/v2/models/versions/versions/2").status == 404


# row: MR-03
def test_version_policies(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A policy loads all versions, or only the named ones."""
    for name, policy in (("all", "all { }"), ("specific", "specific { versions: [ 1, 3 ] }")):
        for version in ("1", "2", "3"):
            (tmp_path / name / version).mkdir(parents=True)
        text = IDENTITY.format(name=name) + f"version_policy {{ {policy} }}\n"
        (tmp_path / name / "config.pbtxt").write_text(text)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        assert sorted(server.get("/v2/models/all").json()["versions"]) == ["1", "2", "3"]
        assert sorted(server.get("/v2/models/specific").json()["versions"]) == ["1", "3"]
        assert server.get("/v2/models/specific/versions/1").json()["versions"] == ["1"]
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}
        reply = server.infer("all", {"inputs": [tensor]})
        assert reply.json()["model_version"] == "3"


# row: CFG-22
def test_runtime_may_name_the_default_library(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The default name has no effect, even for a built-in backend."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    text = IDENTITY.format(name="m") + 'runtime: "libtriton_identity.so"\n'
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        assert server.get("/v2/models/m/config").json()["runtime"] == "libtriton_identity.so"


def test_an_empty_repository(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The server starts without models."""
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        assert server.request("POST", "/v2/repository/index", b"").json() == []


# row: CLI-02 MR-16
def test_two_repositories(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A name in both repositories is ambiguous, and the index says so."""
    for repository, names in (("a", ["one", "twice"]), ("b", ["two", "twice"])):
        for name in names:
            (tmp_path / repository / name / "1").mkdir(parents=True)
            text = IDENTITY.format(name=name)
            (tmp_path / repository / name / "config.pbtxt").write_text(text)
    second = f"--model-repository={tmp_path / 'b'}"
    with start_server(tmp_path / "a", second, "--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(lambda: server.get("/v2/models/two/ready").status == 200, 60, "it is ready")
        index = server.request("POST", "/v2/repository/index", b"").json()
        states = {entry["name"]: entry for entry in index}
        assert states["one"]["state"] == states["two"]["state"] == "READY"
        assert states["twice"] == {
            "name": "twice",
            "state": "UNAVAILABLE",
            "reason": "model appears in two or more repositories",
        }
        assert server.get("/v2/models/twice/ready").status == 400


@pytest.mark.galatea_only
def test_a_second_signal_is_ignored(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The exit timeout applies to requests, however often the server is asked to stop."""
    latch = Latch(tmp_path, "busy", "instance_group { kind: KIND_CPU count: 1 }")
    with start_server(tmp_path) as server, ThreadPoolExecutor(1) as clients, latch:
        server.wait_until_ready()
        taken = clients.submit(server.infer, "busy", latch.request(7))
        wait_until(lambda: server.is_executing("busy"), 60, "a request is executed")
        server.terminate()
        wait_until(lambda: "Timeout 30" in server.log(), 60, "it stops")
        server.terminate()
        wait_until(lambda: "Timeout 28" in server.log(), 60, "the signal has arrived")
        latch.open()
        assert taken.result().status == 200
        assert server.wait_for_exit() == 0
