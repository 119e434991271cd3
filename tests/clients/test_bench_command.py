"""Tests of `galatea bench`, which shows a model's throughput and latency at a glance."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
from typing import Any

import pytest

from conftest import StartServer
from constant_models import constant_model
from server import Program, wait_until
from terminals import Terminal

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 120
#: Files of forests.
FORESTS = pathlib.Path(__file__).parents[2] / "crates" / "forest" / "tests" / "goldens"
QUICK = ["--duration=1", "--concurrency=1,3"]


def command(program: Program, *arguments: object) -> list[str]:
    """The command line for a running server."""
    return [str(program.path), "bench", *map(str, arguments)]


def starting(program: Program, *arguments: object) -> list[str]:
    """The command line that starts a server."""
    first, *flags = program.command([])
    return [first, "bench", *flags, *map(str, arguments)]


def run(line: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it until it ends."""
    return subprocess.run(
        line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env={**os.environ, **variables},
    )


def results(line: list[str]) -> dict[str, Any]:
    """The document that a run without errors prints."""
    done = run([*line, "--json"])
    assert (done.returncode, done.stderr) == (0, ""), done
    (text,) = done.stdout.splitlines()
    return json.loads(text)


def test_variable_dimensions_that_are_made_up_are_told(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """Otherwise, a text model would be measured with a single word, and would seem fast."""
    identity(tmp_path, "free", "", "[ 3, -1 ]")
    own = starting(program, "--duration=1", "--concurrency=1", tmp_path)
    done = run(own)
    note = "INPUT0 has variable dimensions, which are 1: --shape INPUT0:SIZES sets them"
    assert done.returncode == 0 and note in done.stdout, done
    assert results(own)["assumed"] == ["INPUT0"]
    assert results([*own, "--shape=INPUT0:3,7"])["assumed"] == []


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file."""
    path = tmp_path / "plus.onnx"
    path.write_bytes(constant_model(1))
    return path


def check_row(row: dict[str, Any]) -> None:
    """Checks that apply to each row without errors."""
    latency = row["latency_ms"]
    assert row["errors"] == 0 and row["failures"] == {}
    assert row["responses"] > 0
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert row["requests_per_second"] == pytest.approx(row["responses"] / row["seconds"])


def test_a_server_is_started_for_a_file(program: Program, model: pathlib.Path) -> None:
    """Both protocols are measured, and no trace of it remains."""
    folder = model.parent / "temporary"
    folder.mkdir()
    done = run([*starting(program, *QUICK, model), "--json", "--batch=4"], TMPDIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["model"], document["batch"]) == ("plus", 4)
    assert document["inputs"] == [{"name": "INPUT0", "datatype": "INT32", "shape": [4, 1]}]
    rows = document["results"]
    levels = [(row["protocol"], row["concurrency"]) for row in rows]
    assert levels == [("http", 1), ("http", 3), ("grpc", 1), ("grpc", 3)]
    for row in rows:
        check_row(row)
        assert row["inferences_per_second"] == pytest.approx(4 * row["requests_per_second"])
        assert row["server_cpu_seconds"] > 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("golden, name, features", [
    ("xgboost_logistic.json", "xgboost.json", 6),
    ("lightgbm_regression.txt", "model.txt", 6),
    ("sklearn_forest_classes.tl", "checkpoint.tl", 6),
])
def test_a_forest(
    program: Program, tmp_path: pathlib.Path, golden: str, name: str, features: int
) -> None:
    """The sizes come from the file, so none is made up."""
    shutil.copy(FORESTS / golden, tmp_path / name)
    document = results(starting(program, *QUICK, tmp_path / name, "--batch=4"))
    assert document["model"] == pathlib.Path(name).stem and document["assumed"] == []
    assert document["inputs"] == [
        {"name": "input__0", "datatype": "FP32", "shape": [4, features]}
    ]
    assert len(document["results"]) == 4
    for row in document["results"]:
        check_row(row)
        assert row["inferences_per_second"] == pytest.approx(4 * row["requests_per_second"])


def test_a_running_server(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The server's own counters agree; the model is named because there are several."""
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.onnx").write_bytes(constant_model(1))
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        for url in (f"http://{server.http_url}", f"grpc://{server.grpc_url}"):
            done = run(command(program, *QUICK, "--url", url))
            assert done.returncode == 1
            assert done.stderr == "error: --model is needed: one of a, b\n"
        urls = [f"--url=http://{server.http_url}", f"--url=grpc://{server.grpc_url}"]
        document = results(command(program, *QUICK, *urls, "--model=b"))
        served = server.statistics("b")["inference_stats"]["success"]["count"]
        assert server.statistics("a")["inference_stats"]["success"]["count"] == 0
    assert len(document["results"]) == 4
    for row in document["results"]:
        check_row(row)
        assert row["server_cpu_seconds"] > 0
    # Warmup requests, and requests that end too late, are not counted.
    assert served >= sum(row["responses"] for row in document["results"])


def identity(repository: pathlib.Path, name: str, extra: str, dims: str = "[ -1 ]") -> None:
    """A model that returns its input."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "identity" max_batch_size: 8\n'
        f'input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: {dims} }} ]\n'
        f'output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {dims} }} ]\n{extra}\n'
    )


def test_shapes(program: Program, tmp_path: pathlib.Path) -> None:
    """Variable dimensions are 1 unless a shape is given."""
    repository = tmp_path / "repository"
    identity(repository, "free", "", "[ 3, -1 ]")
    line = starting(program, "--duration=1", "--concurrency=2", "--protocol=grpc", repository)
    assert results(line)["inputs"][0]["shape"] == [1, 3, 1]
    document = results([*line, "--shape", "INPUT0:3,5", "--batch=2"])
    assert document["inputs"][0]["shape"] == [2, 3, 5]
    check_row(document["results"][0])
    done = run([*line, "--shape=INPUT0:4,5"])
    assert done.returncode == 1
    assert "shape [1, 4, 5] does not fit input 'INPUT0', whose shape is [-1, 3, -1]" in done.stderr
    done = run([*line, "--shape=nothing:4,5"])
    assert "model 'free' has no input 'nothing', only INPUT0" in done.stderr


def test_sequences(program: Program, tmp_path: pathlib.Path) -> None:
    """Each request starts and ends a sequence."""
    identity(tmp_path, "sequence", "sequence_batching { }")
    line = starting(program, "--duration=1", "--concurrency=4", tmp_path)
    for row in results(line)["results"]:
        check_row(row)


def test_failed_requests_are_counted_with_their_reasons(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """They make the command end with 1."""
    identity(tmp_path, "full", "dynamic_batching { max_queue_delay_microseconds: 5000000 "
             "preferred_batch_size: 8 default_queue_policy { max_queue_size: 1 } }")
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        url = f"--url=http://{server.http_url}"
        done = run(command(program, "--duration=1", "--concurrency=4", url, "--json"))
        (row,) = json.loads(done.stdout)["results"]
        text = run(command(program, "--duration=1", "--concurrency=4", url)).stdout
    assert done.returncode == 1
    assert row["errors"] == sum(row["failures"].values()) > 0
    assert any("Exceeds maximum queue size" in reason for reason in row["failures"])
    assert "http, 4 connections: " in text and "Exceeds maximum queue size" in text


def test_a_decoupled_model_is_refused(program: Program, tmp_path: pathlib.Path) -> None:
    """Its requests have any number of responses."""
    identity(tmp_path, "many", "model_transaction_policy { decoupled: true }")
    done = run(starting(program, *QUICK, tmp_path))
    assert done.returncode == 1
    assert "model 'many' is decoupled" in done.stderr


def test_what_can_not_be_measured(program: Program, tmp_path: pathlib.Path) -> None:
    """Each error states what is wrong."""
    (tmp_path / "bad.onnx").write_text("hello")
    done = run(starting(program, tmp_path / "bad.onnx"))
    assert done.returncode == 1
    assert "bad: " in done.stderr and "The file is no ONNX model" in done.stderr
    done = run(starting(program, tmp_path / "nothing.onnx"))
    assert done.stderr == f"error: there is no '{tmp_path}/nothing.onnx'\n"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for scheme in ("http", "grpc"):
            done = run(command(program, "--url", f"{scheme}://127.0.0.1:{port}", "--json"))
            assert done.returncode == 1
            reason = json.loads(done.stdout)["error"]
            assert reason == f"can't ask {scheme} at 127.0.0.1:{port}: connection refused"
    for arguments, reason in (
        ([], "either a model or --url is needed"),
        (["--url=https://localhost:1"], "not https://"),
        (["m.onnx", "--concurrency=0"], "'--concurrency' takes numbers from 1"),
        (["m.onnx", "--duration=x"], "'--duration' takes a number"),
        (["m.onnx", "--nonsense"], "unrecognized option"),
    ):
        done = run(command(program, *arguments))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ") and reason in done.stderr
        assert done.stderr.splitlines()[-1].startswith("Usage: galatea bench [options] [MODEL...]")
        assert len(done.stderr.splitlines()) < 8


def test_the_table_and_no_bar_away_from_terminals(program: Program, model: pathlib.Path) -> None:
    """One line for each level."""
    done = run(starting(program, *QUICK, "--protocol=http", model))
    assert (done.returncode, done.stderr) == (0, "")
    head, _, columns, *rows = done.stdout.splitlines()
    assert head == "model plus: INPUT0 INT32 [1,1]; 1 s for each line"
    assert columns.split() == (
        "protocol connections requests/s p50 ms p90 ms p99 ms errors server CPUs".split()
    )
    assert [row.split()[:2] for row in rows] == [["http", "1"], ["http", "3"]]
    assert "\x1b" not in done.stdout


def test_a_bar_while_it_runs_on_a_terminal(program: Program, model: pathlib.Path) -> None:
    """The progress line is gone once the table is printed."""
    line = starting(program, *QUICK, "--protocol=http", model)
    terminal = Terminal(line, {"TERM": "xterm", "NO_COLOR": ""})
    terminal.read_until("http, 1 connections")
    terminal.read_until("[############")
    shown = terminal.read_until("server CPUs")
    assert "\x1b[1mprotocol" in shown
    assert "\r\x1b[2K" in shown
    assert terminal.process.wait(SECONDS_MAX) == 0
    terminal.close()


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_the_command(
    program: Program, model: pathlib.Path, number: signal.Signals
) -> None:
    """This holds even if the command is killed."""
    line = starting(program, "--duration=600", "--concurrency=1", model)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    threading.Thread(target=process.wait, daemon=True).start()
    wait_until(lambda: bool(children(process.pid)), SECONDS_MAX, "the server is there")
    (server,) = children(process.pid)
    process.send_signal(number)
    wait_until(
        lambda: not pathlib.Path(f"/proc/{server}").exists()
        or "State:\tZ" in pathlib.Path(f"/proc/{server}/status").read_text(),
        SECONDS_MAX,
        "the server has ended",
    )
