"""Tests of `galatea record`, which records the requests to a model of a running server."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import pathlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import REQUEST_SECONDS_MAX, Program, Server, wait_until

pytestmark = pytest.mark.galatea_only  # Triton records nothing.

FLAG = "--allow-traffic-recording=true"
EXPLICIT = ("--model-control-mode=explicit", "--load-model=m")
HEADER = {"Galatea-Traffic": "1"}
MODEL = """
backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { %s }
parameters { key: "execute_delay_ms" value { string_value: "%d" } }
"""
Line = dict[str, Any]


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that allows recording, with short and long queues, and other schedulers."""
    repository = tmp_path_factory.mktemp("models")
    levels = "priority_levels: 2 default_priority_level: 1"
    queue = levels + " default_queue_policy { max_queue_size: 1 }"
    objective = 'parameters { key: "latency_objective_us" value { string_value: "30000000" } }'
    configs = {
        "m": MODEL % ("", 5),
        "full": MODEL % (queue, 200),
        "due": MODEL % ("", 0) + objective,
        "sequence": MODEL.replace("dynamic_batching { %s }", "sequence_batching { %s }") % ("", 0),
        "two": MODEL % ("", 0) + "version_policy { all { } }",
    }
    for name, config in configs.items():
        for version in ["1", "2"] if name == "two" else ["1"]:
            (repository / name / version).mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    with start_server(repository, FLAG) as running:
        yield running.wait_until_ready()


def infer(server: Server, model: str, length: int = 3, rows: int = 1, **options: Any) -> str:
    """Sends a request, and returns how it ended."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        tensor = tritonclient.http.InferInput("INPUT0", [rows, length], "INT32")
        tensor.set_data_from_numpy(numpy.zeros((rows, length), numpy.int32))
        try:
            client.infer(model, [tensor], **options)
        except InferenceServerException as error:
            return str(error)
        return "ok"


class Recording:
    """The command, while it runs."""

    def __init__(self, program: Program, server: Server, path: pathlib.Path, *options: str) -> None:
        url = f"http://{server.http_url}"
        line = [program.path, "record", url, "--output", path, "--seconds=600", "--json", *options]
        self.path = path
        self._command = subprocess.Popen(
            list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def lines(self) -> list[Line]:
        """The complete lines so far."""
        if not self.path.exists():
            return []
        text = self.path.read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def requests(self) -> list[Line]:
        """The lines that are requests."""
        return [line for line in self.lines() if "queue_ns" in line]

    def executions(self) -> list[Line]:
        """The lines that are executions."""
        return [line for line in self.lines() if "duration_ns" in line]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until the recording satisfies the condition."""
        wait_until(condition, REQUEST_SECONDS_MAX, f"it is recorded in {self.path}")

    def stop(self) -> None:
        """Ends it, unless it has already ended."""
        self._command.kill()
        self._command.communicate()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._command.send_signal(number)

    def result(self) -> tuple[int, str, str]:
        """The result, once it has ended by itself."""
        out, err = self._command.communicate(timeout=REQUEST_SECONDS_MAX)
        return self._command.returncode, out, err


@contextlib.contextmanager
def recording(
    program: Program, server: Server, path: pathlib.Path, *options: str
) -> Iterator[Recording]:
    """Records, starting when the recording has begun."""
    running = Recording(program, server, path, *options)
    try:
        running.wait_for(lambda: len(running.lines()) > 0)
        yield running
    finally:
        running.stop()


def simulate(program: Program, path: pathlib.Path) -> dict[str, Any]:
    """The result of simulating a recording."""
    line = [str(program.path), "simulate", str(path), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_requests_and_executions_are_recorded_and_simulated(
    program: Program, server: Server, tmp_path: pathlib.Path
) -> None:
    """Each request occurs once, with its execution; a simulation has about the same batches."""
    count, lengths = 120, (3, 5)
    path = tmp_path / "traffic.jsonl"
    with recording(program, server, path, "--model=m") as running:
        with ThreadPoolExecutor(8) as pool:
            jobs = [
                pool.submit(infer, server, "m", lengths[number % 2], 1 + number % 3)
                for number in range(count)
            ]
            assert {job.result() for job in jobs} == {"ok"}
        # Executions come after their requests.
        running.wait_for(lambda: sum(line["requests"] for line in running.executions()) == count)
        header, requests = running.lines()[0], running.requests()
        executions = {line["execution"]: line for line in running.executions()}
    assert (header["model"], header["version"], header["variable"]) == ("m", 1, ["INPUT0:0"])
    assert header["instances"] == ["m_0_0"] and header["config"]["max_batch_size"] == 4
    assert {request["status"] for request in requests} == {"ok"}
    assert sorted(request["length"] for request in requests) == [3] * 60 + [5] * 60
    assert len(requests) == count
    assert sum(line["rows"] for line in executions.values()) == sum(
        request["rows"] for request in requests
    )
    for request in requests:
        execution = executions[request["execution"]]
        assert request["compute_ns"] == execution["duration_ns"] >= 5_000_000
        assert request["at_ns"] + request["queue_ns"] == execution["at_ns"]
        assert (request["batch"], request["close"]) == (execution["rows"], execution["close"])
        assert request["dims"] == [request["length"]] == [execution["length"]]
        assert request["instance"] == execution["instance"] == "m_0_0" and execution["busy"] == 1
    found = simulate(program, path)
    recorded, simulated = found["recorded"], found["configured"]
    assert recorded["executions"] == len(executions)
    # This compares the structure, not the times, because the machine may be busy.
    assert simulated["executions"] == pytest.approx(recorded["executions"], rel=0.25)
    assert simulated["mean_batch"] == pytest.approx(recorded["mean_batch"], rel=0.25)


def test_refusals_priorities_and_timeouts_are_recorded(
    program: Program, server: Server, tmp_path: pathlib.Path
) -> None:
    """A request that is refused has no execution."""
    with recording(program, server, tmp_path / "t", "--model=full", "--model-version=1") as running:
        with ThreadPoolExecutor(6) as pool:
            jobs = [
                pool.submit(infer, server, "full", timeout=77, priority=1 + number % 2)
                for number in range(6)
            ]
            ended = [job.result() for job in jobs]
        refused = len([text for text in ended if text != "ok"])
        assert refused > 0
        running.wait_for(lambda: len(running.requests()) == 6)
        requests = running.requests()
    assert {request["timeout_ns"] for request in requests} == {77_000}
    assert sorted(request["priority"] for request in requests) == [1, 1, 1, 2, 2, 2]
    full = [request for request in requests if request["status"] == "queue_full"]
    assert len(full) == refused and not any("execution" in request for request in full)


def test_deadlines_and_sequences_are_recorded(
    program: Program, server: Server, tmp_path: pathlib.Path
) -> None:
    """A request without these fields doesn't have them in its line."""
    with recording(program, server, tmp_path / "due", "--model=due") as running:
        assert infer(server, "due") == "ok"
        running.wait_for(lambda: len(running.requests()) == 1)
        (request,) = running.requests()
        assert 0 < request["deadline_ns"] <= 30_000_000_000
        assert not {"priority", "timeout_ns", "sequence"} & request.keys()
    with recording(program, server, tmp_path / "sequence", "--model=sequence") as running:
        for sequence in [7, 8]:
            options = {"sequence_id": sequence, "sequence_start": True, "sequence_end": True}
            assert infer(server, "sequence", **options) == "ok"
        running.wait_for(lambda: len(running.requests()) == 2)
        assert [request["sequence"] for request in running.requests()] == [7, 8]
        assert not any("deadline_ns" in request for request in running.requests())


def test_one_version_is_recorded(program: Program, server: Server, tmp_path: pathlib.Path) -> None:
    """The newest version, or the one that is named."""
    for options, version in [((), 2), (("--model-version=1",), 1)]:
        path = tmp_path / str(version)
        with recording(program, server, path, "--model=two", *options) as running:
            assert running.lines()[0]["version"] == version
            for rows, asked in [(1, "1"), (2, "2")]:
                assert infer(server, "two", rows=rows, model_version=asked) == "ok"
            running.wait_for(lambda: len(running.executions()) == 1)
            assert [request["rows"] for request in running.requests()] == [version]
    running = Recording(program, server, tmp_path / "x", "--model=two", "--model-version=9")
    code, _, err = running.result()
    assert code == 1 and "9" in err and not (tmp_path / "x").exists()


def test_it_ends_with_its_time(program: Program, server: Server, tmp_path: pathlib.Path) -> None:
    """It also took about that long. On a terminal, the summary is a sentence."""
    path = tmp_path / "t"
    options = ["--model=m", "--seconds=1", f"--output={path}"]
    line = [str(program.path), "record", f"http://{server.http_url}", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (f"{path}: 0 requests in 0 executions\n", "")
    code, out, _ = Recording(program, server, path, "--model=m", "--seconds=1").result()
    assert code == 0 and json.loads(out)["seconds"] >= 1


@contextlib.contextmanager
def serving_lines(lines: list[str]) -> Iterator[str]:
    """A server other than Galatea, which records these lines and has no configurations."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Responds to one request."""

        def do_GET(self) -> None:  # pylint: disable=invalid-name
            """The lines."""
            found = self.path == "/v2/models/m/traffic"
            self.send_response(200 if found else 404)
            self.end_headers()
            if found:
                self.wfile.write("".join(line + "\n" for line in lines).encode())

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()


def record_all(
    program: Program, url: str, path: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Records until the server ends."""
    line = [program.path, "record", url, "--model=m", f"--output={path}"]
    return subprocess.run(
        list(map(str, line)), capture_output=True, text=True, timeout=60, check=False
    )


FIRST = '{"galatea_traffic":1,"model":"m","version":1}'
REQUEST = '{"at_ns":1,"rows":1,"status":"ok","queue_ns":0}'


LOST = ['{"lost":3}', '{"lost":4}']
END = '{"end":"it is late"}'


@pytest.mark.parametrize(
    ("lines", "kept", "code", "expected"),
    [
        ([REQUEST, *LOST], 3, 0, "1 requests in 0 executions; 7 were lost"),
        ([END, REQUEST], 1, 0, "0 requests in 0 executions; it ended because it is late"),
        ([REQUEST, FIRST], 1, 1, "the server sent two headers"),
        ([REQUEST, "hello"], 1, 1, "not a line of traffic"),
        ([], 0, 0, "0 requests in 0 executions\n"),
    ],
)
def test_what_a_server_sends_is_counted_and_checked(
    program: Program,
    tmp_path: pathlib.Path,
    lines: list[str],
    kept: int,
    code: int,
    expected: str,
) -> None:
    """Without a configuration, the file has none. The part before an error is kept."""
    path = tmp_path / "t"
    with serving_lines([FIRST, *lines]) as url:
        done = record_all(program, url, path)
    assert done.returncode == code and expected in done.stdout + done.stderr, done
    header, *others = path.read_text().splitlines()
    assert "config" not in json.loads(header) and others == lines[:kept]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [([REQUEST], "the server sent no header"), ([], "the recording ended before it began")],
)
def test_a_file_begins_with_a_header(
    program: Program, tmp_path: pathlib.Path, lines: list[str], expected: str
) -> None:
    """Without such a part, there is no file."""
    path = tmp_path / "t"
    with serving_lines(lines) as url:
        done = record_all(program, url, path)
    assert done.returncode == 1 and expected in done.stderr and not path.exists(), done


def test_it_ends_with_the_model(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The command reports this. The model isn't kept in memory."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(MODEL % ("", 0))
    with start_server(tmp_path / "models", *EXPLICIT, FLAG) as running_server:
        running_server.wait_until_ready()
        running = Recording(program, running_server, tmp_path / "t", "--model=m")
        running.wait_for(lambda: len(running.lines()) > 0)
        with tritonclient.http.InferenceServerClient(running_server.http_url) as client:
            client.unload_model("m")
        code, out, err = running.result()
        assert (code, err) == (0, "")
        assert json.loads(out)["end"] == "the model was unloaded, or loaded anew"
        with tritonclient.http.InferenceServerClient(running_server.http_url) as client:
            client.load_model("m")
        running = Recording(program, running_server, tmp_path / "u", "--model=m")
        running.wait_for(lambda: len(running.lines()) > 0)
        running_server.stop()
        code, out, err = running.result()
        assert code == 0 and json.loads(out)["end"] == "the server stops", err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_summary(
    program: Program, server: Server, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    """The file is then complete."""
    path = tmp_path / "t"
    with recording(program, server, path, "--model=m") as running:
        for _ in range(3):
            assert infer(server, "m") == "ok"
        running.wait_for(lambda: len(running.requests()) == len(running.executions()) == 3)
        running.signal(number)
        code, out, err = running.result()
        assert (code, err) == (0, ""), out
        found = json.loads(out)
        assert (found["requests"], found["executions"], found["lost"]) == (3, 3, 0)
        assert (found["model"], found["output"], found["end"]) == ("m", str(path), None)
        assert found["seconds"] < 600
        text = path.read_text()
        assert text.endswith("\n") and len(text.splitlines()) == 7


def test_files_have_a_size(program: Program, server: Server, tmp_path: pathlib.Path) -> None:
    """Each file begins with the header, and the oldest are removed."""
    path = tmp_path / "t"
    bounds = ("--max-bytes=2000", "--files=2")
    with recording(program, server, path, "--model=m", *bounds) as running:
        header = running.lines()[0]
        older = tmp_path / "t.1"
        for _ in range(40):
            assert infer(server, "m") == "ok"
        running.wait_for(older.exists)
        assert json.loads(older.read_text().splitlines()[0]) == header
    # The first one may just have been moved.
    assert {file.name for file in tmp_path.iterdir()} - {"t"} == {"t.1"}


def get(server: Server, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """The status and body of a refused request."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.http_port, timeout=REQUEST_SECONDS_MAX
    )
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        if response.status == 200:
            return 200, response.readline().decode()
        return response.status, response.read().decode()


def test_clients_that_may_not_record_are_refused(
    program: Program, server: Server, tmp_path: pathlib.Path
) -> None:
    """Without the header, for an unknown model, and while another client is recording."""
    path = "/v2/models/m/traffic"
    assert get(server, path, {})[0] == 400
    assert get(server, "/v2/models/x/traffic", HEADER)[0] == 404
    with recording(program, server, tmp_path / "t", "--model=m"):
        status, text = get(server, path, HEADER)
        assert status == 503 and "is being recorded already" in text
        code, _, err = Recording(program, server, tmp_path / "u", "--model=m").result()
        assert code == 1 and "is being recorded already" in err
    # The client has left.
    wait_until(
        lambda: get(server, path, HEADER)[0] == 200, REQUEST_SECONDS_MAX, "the client has left"
    )


def test_recording_is_off_unless_it_is_asked_for(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """In this case, the path is unknown, as in Triton. With a key, it is available to those that
    have the key."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(MODEL % ("", 0))
    with start_server(tmp_path) as closed:
        closed.wait_until_ready()
        assert get(closed, "/v2/models/m/traffic", HEADER) == (404, '{"error":"Not Found"}')
        code, _, err = Recording(program, closed, tmp_path / "t", "--model=m").result()
        assert code == 1 and "--allow-traffic-recording=true" in err
    rule = "--http-restricted-api=trace:key=secret"
    with start_server(tmp_path, FLAG, rule) as restricted:
        restricted.wait_until_ready()
        assert get(restricted, "/v2/models/m/traffic", HEADER)[0] == 403
        with recording(
            program, restricted, tmp_path / "t", "--model=m", "--header=key:secret"
        ) as running:
            assert running.lines()[0]["model"] == "m"
