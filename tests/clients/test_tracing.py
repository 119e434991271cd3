"""Tests of request traces in Triton's files."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest

from compiling import compile_library
from conftest import ROOT, StartServer
from server import Program, Server, wait_until
from transports import RESPONSE_SECONDS_MAX, TRANSPORTS, Transport

MODEL = """
backend: "identity" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling { step [
  {
    model_name: "first" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "BETWEEN" }
  },
  {
    model_name: "second" model_version: -1
    input_map { key: "INPUT0" value: "BETWEEN" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
] }
"""
DOOR_POINTS = {
    "http": ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
    "grpc": ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
}
SERVER_POINTS = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
REQUEST = {
    "id": "r",
    "inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}],
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Models that return their inputs, and an ensemble of two."""
    root = tmp_path_factory.mktemp("traced")
    for name, text in {"first": MODEL, "second": MODEL, "both": ENSEMBLE}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The destination of traces."""
    return tmp_path


def flags(file: pathlib.Path, *settings: str) -> list[str]:
    """The flags of a server that traces every request to a file."""
    given = (f"triton,file={file}", "level=TIMESTAMPS", "rate=1", *settings)
    return [f"--trace-config={setting}" for setting in given]


def traces_of(file: pathlib.Path) -> dict[int, list[dict[str, Any]]]:
    """The entries of a file, grouped by trace, in order."""
    traces: dict[int, list[dict[str, Any]]] = {}
    for entry in json.loads(file.read_text()):
        traces.setdefault(entry["id"], []).append(entry)
    return traces


def subject(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The model and version of a trace."""
    (found,) = (entry for entry in entries if "model_name" in entry)
    return found


def times(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The times of a trace by name; each occurs once."""
    stamps = [stamp for entry in entries for stamp in entry.get("timestamps", [])]
    found = {stamp["name"]: stamp["ns"] for stamp in stamps}
    assert len(found) == len(stamps)
    return found


def is_ascending(found: dict[str, int], names: Sequence[str]) -> bool:
    """Returns true if the times with these names occur in this order."""
    values = [found[name] for name in names]
    return values == sorted(values)


def infer(server: Server, model: str = "first", count: int = 1) -> None:
    """Sends requests that succeed."""
    for _ in range(count):
        assert server.infer(model, REQUEST).status == 200


@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
# row: OTEL-03
def test_every_trace_point_is_recorded(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path, transport: str
) -> None:
    """The times from the door and the server, in the order in which a request passes them."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file)) as server:
        client: Transport = TRANSPORTS[transport](server.wait_until_ready())
        client.infer("first", {"INPUT0": numpy.array([[1, 2]], numpy.int32)})
        client.close()
    (entries,) = traces_of(file).values()
    found = times(entries)
    door = DOOR_POINTS["http" if transport.startswith("http") else "grpc"]
    assert sorted(found) == sorted([*door, *SERVER_POINTS, "INFER_RESPONSE_COMPLETE"])
    assert is_ascending(found, [*door[:2], *SERVER_POINTS[:6]])
    assert is_ascending(found, ["INFER_RESPONSE_COMPLETE", *door[2:]])
    assert is_ascending(found, ["COMPUTE_END", "REQUEST_END"])


# row: OTEL-02
def test_steps_of_ensembles_have_traces(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """Their parent is the ensemble's trace, and all are written together."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file, "triton,log-frequency=1")) as server:
        infer(server.wait_until_ready(), "both")
    traces = traces_of(folder / "traces.json.0")
    (parent,) = (one for one in map(subject, traces.values()) if "parent_id" not in one)
    assert parent == {"id": parent["id"], "model_name": "both", "model_version": 1, "request_id": "r"}
    children = [one for one in map(subject, traces.values()) if "parent_id" in one]
    assert sorted(one["model_name"] for one in children) == ["first", "second"]
    for child in children:
        assert (child["parent_id"], child["request_id"]) == (parent["id"], "r")
        assert sorted(times(traces[child["id"]])) == sorted(SERVER_POINTS)
    # As in Triton, an ensemble has no execution of its own.
    assert "COMPUTE_START" not in times(traces[parent["id"]])


# row: OTEL-04
def test_tensors(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """Inputs and outputs with their contents; if times aren't traced, there is nothing else."""
    file = folder / "traces.json"
    settings = ["triton,log-frequency=1", "level=TENSORS"]
    with start_server(repository, *flags(file, *settings)) as server:
        infer(server.wait_until_ready())
        change = {"trace_level": ["TENSORS"]}
        reply = server.request("POST", "/v2/trace/setting", json.dumps(change).encode())
        assert reply.json()["trace_level"] == ["TENSORS"]
        infer(server)

    def tensor(number: int, activity: str, name: str) -> dict[str, Any]:
        content = {"name": name, "data": "1,2", "shape": "1,2", "dtype": "INT32"}
        return {"id": number, "activity": activity, "tensor": content}

    def expected(number: int) -> list[dict[str, Any]]:
        return [
            tensor(number, "TENSOR_QUEUE_INPUT", "INPUT0"),
            tensor(number, "TENSOR_BACKEND_OUTPUT", "OUTPUT0"),
        ]

    (both,) = traces_of(folder / "traces.json.0").values()
    assert [entry for entry in both if "tensor" in entry] == expected(1)
    assert "REQUEST_END" in times(both)
    assert list(traces_of(folder / "traces.json.1").values()) == [expected(2)]


@pytest.mark.parametrize(
    ("body", "points"),
    [
        (b"{", []),
        pytest.param(
            b'{"inputs":[]}', ["REQUEST_START", "REQUEST_END"], marks=pytest.mark.galatea_only
        ),
    ],
)
def test_failed_requests_are_traced(
    start_server: StartServer,
    repository: pathlib.Path,
    folder: pathlib.Path,
    body: bytes,
    points: list[str],
) -> None:
    """They extend as far as the request got."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file)) as server:
        path = "/v2/models/first/infer"
        assert server.wait_until_ready().request("POST", path, body).status in (400, 500)
    (entries,) = traces_of(file).values()
    found = [name for name in times(entries) if not name.startswith(("HTTP", "INFER"))]
    assert found == points


# row: OTEL-01
def test_rate_and_count(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """One in three requests is traced, up to a total of two, and models have their own settings."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file, "rate=3", "count=2")) as server:
        server.wait_until_ready()
        model = b'{"trace_rate":"1","trace_count":"1"}'
        server.request("POST", "/v2/models/second/trace/setting", model)
        infer(server, "first", 12)
        infer(server, "second", 3)
        assert server.get("/v2/trace/setting").json()["trace_count"] == "0"
        assert server.get("/v2/models/second/trace/setting").json()["trace_count"] == "0"
    # If a count is set and all of its requests were traced, their traces have a separate file.
    (last,) = traces_of(folder / "traces.json.0").values()
    assert subject(last)["model_name"] == "second"
    traces = [subject(entries)["model_name"] for entries in traces_of(file).values()]
    assert traces == ["first", "first"]


# row: OTEL-05
def test_a_change_of_the_settings_writes_what_is_there(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """They are written to the file without a number, to which later changes and the end add
    traces."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file)) as server:
        infer(server.wait_until_ready(), count=2)
        assert not file.exists()
        server.request("POST", "/v2/trace/setting", b'{"trace_level":["OFF"]}')
        infer(server, count=2)
        wait_until(file.exists, RESPONSE_SECONDS_MAX, "the traces are written")
        server.request("POST", "/v2/trace/setting", b'{"trace_level":null}')
        infer(server)
    assert len(traces_of(file)) == 3


# row: OTEL-05
def test_files_by_frequency(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """Each file has this number of traces, and the last one has the rest."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file, "triton,log-frequency=2")) as server:
        infer(server.wait_until_ready(), count=5)
    assert not file.exists()
    counts = [len(traces_of(folder / f"traces.json.{number}")) for number in range(3)]
    assert counts == [2, 2, 1]
    assert not (folder / "traces.json.3").exists()


@pytest.mark.galatea_only
def test_a_folder_that_is_not_there_fails_no_request(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """The log says why traces are missing, and requests are served."""
    file = folder / "absent" / "traces.json"
    with start_server(repository, *flags(file, "triton,log-frequency=1")) as server:
        infer(server.wait_until_ready(), count=3)
        reason = f"failed creating trace file: {file}.0: No such file or directory"
        wait_until(lambda: reason in server.log(), RESPONSE_SECONDS_MAX, "the log says why")
    assert server.process.returncode == 0


# row: BLS-01 BE-07
def test_calls_by_backends(
    start_server: StartServer, tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    """A library names activities, and its call of another model has a separate trace."""
    source = ROOT / "tests" / "c_api" / "trace_points.c"
    config = (
        'backend: "tracing" max_batch_size: 4 '
        'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } '
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }'
    )
    for name in ("plain", "nested"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    library = tmp_path / "backends" / "tracing" / "libtriton_tracing.so"
    compile_library(source, library)
    file = folder / "traces.json"
    backends = f"--backend-directory={tmp_path / 'backends'}"
    with start_server(tmp_path / "models", backends, *flags(file)) as server:
        infer(server.wait_until_ready(), "nested", 2)
    traces = traces_of(file)
    parents = [one["id"] for one in map(subject, traces.values()) if "parent_id" not in one]
    children = [one for one in map(subject, traces.values()) if "parent_id" in one]
    assert sorted(one["parent_id"] for one in children) == sorted(parents)
    for child in children:
        assert (child["model_name"], child["request_id"]) == ("plain", "inner")
        assert sorted(times(traces[child["id"]])) == sorted(SERVER_POINTS)
        found = times(traces[child["parent_id"]])
        assert (found["ask"], found["answer"]) == (1, 2)


#: Flags, environment, and the settings that clients see.
STARTS: dict[str, tuple[list[str], dict[str, str], dict[str, Any]]] = {
    "nothing": ([], {}, {}),
    "all": (
        [
            "--trace-config=level=TENSORS",
            "--trace-config=level=timestamps",
            "--trace-config=rate=7",
            "--trace-config=count=5",
            "--trace-config=mode=Triton",
            "--trace-config=triton,file=/tmp/x",
            "--trace-config=triton,log-frequency=3",
        ],
        {},
        {
            "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "7", "trace_count": "5",
            "log_frequency": "3", "trace_file": "/tmp/x",
        },
    ),
    "deprecated": (
        [
            "--trace-file=/tmp/y", "--trace-level=TIMESTAMPS", "--trace-rate=2",
            "--trace-count=4", "--trace-log-frequency=6",
        ],
        {},
        {
            "trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "4",
            "log_frequency": "6", "trace_file": "/tmp/y",
        },
    ),
    "deprecated and overridden": (
        ["--trace-rate=2", "--trace-config=rate=9", "--trace-config=triton,file=z"],
        {},
        {"trace_rate": "9", "trace_file": "z"},
    ),
    "another mode's": (["--trace-config=opentelemetry,url=u"], {}, {}),
    "a collector": (
        [
            "--trace-config=mode=opentelemetry",
            "--trace-config=opentelemetry,url=http://127.0.0.1:1/x",
            "--trace-config=opentelemetry,bsp_max_queue_size=8",
        ],
        {"OTEL_BSP_SCHEDULE_DELAY": "77", "OTEL_BSP_MAX_QUEUE_SIZE": "9"},
        {
            "trace_mode": "opentelemetry", "log_frequency": None, "trace_file": None,
            "url": "http://127.0.0.1:1/x", "bsp_max_queue_size": "8",
            "bsp_schedule_delay": "77", "bsp_max_export_batch_size": "512",
        },
    ),
}


@pytest.mark.parametrize("start", STARTS)
# row: CLI-17
def test_settings_of_the_start(
    start_server: StartServer, repository: pathlib.Path, start: str
) -> None:
    """Flags, deprecated flags, and variables."""
    given, environment, changed = STARTS[start]
    settings = {
        "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1",
        "log_frequency": "0", "trace_file": "", "trace_mode": "triton", **changed,
    }
    with start_server(repository, *given, environment=environment) as server:
        found = server.wait_until_ready().get("/v2/trace/setting").json()
    assert found == {name: value for name, value in settings.items() if value is not None}


@pytest.mark.parametrize(("given", "reason"), [
    ("level=MOST", "invalid value for trace level option: most"),
    ("mode=files", "invalid value for trace mode option: files. Available options are"),
    ("rate=x", "Invalid option value. Got x"),
    ("count=", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got count="),
    ("rate=99999999999", "99999999999"),
    ("rate", "--trace-config option format is"),
    (",rate=1", "No trace mode specified. --trace-config option format is"),
    ("=1", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got =1"),
    ("both,file=x", "invalid value for trace mode option: both"),
    ("triton,log-frequency=x", "Invalid option value. Got x"),
])
# row: CLI-17
def test_wrong_settings_of_the_start(
    start_server: StartServer, repository: pathlib.Path, given: str, reason: str
) -> None:
    """The server ends with Triton's text."""
    with start_server(repository, f"--trace-config={given}") as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()


@pytest.mark.galatea_only
def test_export_for_viewers(
    program: Program, start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """Each request is a process, each model a thread, each stage a slice."""
    file = folder / "traces.json"
    with start_server(repository, *flags(file, "level=TENSORS")) as server:
        infer(server.wait_until_ready(), "both")
    command = [str(program.path), "trace", "export", str(file)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    events = json.loads(output)["traceEvents"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert sorted(threads.values()) == ["both", "door", "first", "second"]
    slices: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices.setdefault(threads[event["pid"], event["tid"]], []).append(event["name"])
    assert slices["door"] == ["receive", "send"]
    assert slices["both"] == ["request"]
    assert slices["first"] == ["request", "queue", "compute input", "compute", "compute output"]
    (request,) = (event for event in events if event.get("args", {}).get("model_name") == "first")
    assert [one["tensor"]["name"] for one in request["args"]["tensors"]] == ["INPUT0", "OUTPUT0"]


@pytest.mark.galatea_only
@pytest.mark.parametrize(("arguments", "code", "reason"), [
    (["trace"], 2, "there is no command 'trace', only 'trace export'"),
    (["trace", "export"], 2, "files of traces are missing"),
    (["trace", "export", "/nowhere"], 1, "error: /nowhere: No such file or directory (os error 2)"),
    (["trace", "export", __file__], 1, "test_tracing.py: invalid type: string"),
])
def test_export_of_what_is_no_trace(
    program: Program, arguments: list[str], code: int, reason: str
) -> None:
    """The error names the file and what is wrong."""
    command = [str(program.path), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert reason in result.stderr
    assert result.stdout == ""


@pytest.mark.galatea_only
def test_texts_of_clients_stay_in_their_quotes(
    start_server: StartServer, repository: pathlib.Path, folder: pathlib.Path
) -> None:
    """A request's ID can't add entries to a file."""
    file = folder / "traces.json"
    forged = 'x"},{"id":99,"model_name":"forged\n'
    with start_server(repository, *flags(file)) as server:
        request = {**REQUEST, "id": forged}
        assert server.wait_until_ready().infer("first", request).status == 200
    (entries,) = traces_of(file).values()
    assert subject(entries)["request_id"] == forged
