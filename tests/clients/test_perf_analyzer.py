"""Tests of perf_analyzer, Triton's load generator, in all its modes, unmodified.

Each run is short, so the figures have no meaning here. perf_analyzer itself fails if a response is
an error or differs from the expected data, or if the server's statistics don't add up.
"""

from __future__ import annotations

import csv
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import perf_tools
from compiling import build_examples
from conftest import ROOT, StartServer
from load_models import ACCUMULATOR, IDENTITY, WORDS
from server import Server
from test_decoupled_examples import REPEAT, write

MODELS = {"plain": IDENTITY, "sums": ACCUMULATOR, "words": WORDS, "delays": REPEAT}
#: The last three of at most twenty windows may differ by any factor.
STABILITY = ["-s", "99999", "-r", "20"]
WINDOWS = ["-p", "100"]
#: Windows that end with that many requests.
COUNTS = ["--measurement-mode", "count_windows", "--measurement-request-count", "20"]
SHARED = ["--shared-memory", "system", "--output-shared-memory-size", "4096"]
WITHOUT_GPU = "Unable to parse 'nv_gpu_"
MISMATCH = "Output doesn't match expected output"

TENSORS = {
    "data": [{"INPUT0": [float(one) for one in range(16)]}, {"INPUT0": [0.5] * 16}],
    "validation_data": [{"OUTPUT0": [float(one) for one in range(16)]}, {"OUTPUT0": [0.5] * 16}],
}
SEQUENCES = {
    "data": [[{"IN": [3]}, {"IN": [5]}, {"IN": [7]}], [{"IN": [1]}, {"IN": [2]}]],
    "validation_data": [[{"OUT": [3]}, {"OUT": [8]}, {"OUT": [15]}], [{"OUT": [1]}, {"OUT": [3]}]],
}
PROMPTS = {
    "data": [
        {
            "text_input": ["to be or"],
            "max_tokens": [4],
            "stream": [True],
            "exclude_input_in_output": [True],
        }
    ]
}
DELAYS = {"data": [{"IN": [1, 2, 3, 4], "DELAY": [20, 20, 20, 20], "WAIT": [0]}]}
FILES = {
    "delays.json": json.dumps(DELAYS),
    "tensors.json": json.dumps(TENSORS),
    "sequences.json": json.dumps(SEQUENCES),
    "wrong.json": json.dumps(SEQUENCES).replace("15", "16"),
    "prompts.json": json.dumps(PROMPTS),
    "intervals": "5000\n1000\n3000\n" * 20,
}
SHAPES = ["--input-data", "prompts.json", "--shape", "text_input:1", "--shape", "max_tokens:1"]

PLAIN = {
    "http": ["http"],
    "http, asynchronous": ["http", "--async", "--concurrency-range", "4"],
    "http, JSON": ["http", "--input-tensor-format", "json", "--output-tensor-format", "json"],
    "http, data from a file": ["http", "--input-data", "tensors.json"],
    "http, a header": ["http", "-H", "x-test: one"],
    "http, the model's version": ["http", "-x", "1"],
    "grpc": ["grpc"],
    "grpc, asynchronous": ["grpc", "--async", "--concurrency-range", "1:3:2"],
    "grpc, data from a file": ["grpc", "--input-data", "tensors.json"],
    "grpc, batches": ["grpc", "-b", "4"],
    "grpc, gzip": ["grpc", "--grpc-compression-algorithm", "gzip"],
    "grpc, deflate": ["grpc", "--grpc-compression-algorithm", "deflate"],
    "grpc, a parameter": ["grpc", "--request-parameter", "mark:one:string"],
    "streams": ["grpc", "--streaming", "--concurrency-range", "3"],
    "streams, data from a file": ["grpc", "--streaming", "--input-data", "tensors.json"],
    "http, shared memory": ["http", *SHARED],
    "grpc, shared memory": ["grpc", *SHARED],
    "streams, shared memory": ["grpc", "--streaming", *SHARED],
    "http, rates": ["http", "--request-rate-range", "50:100:50"],
    "grpc, random rates": [
        *("grpc", "--request-rate-range", "100", "--request-distribution", "poisson")
    ],
    "http, intervals": ["http", "--request-intervals", "intervals"],
    "grpc, intervals": ["grpc", "--request-intervals", "intervals"],
    "http, binary search": [
        *("http", "--concurrency-range", "1:4", "--binary-search", "-l", "5000")
    ],
    "grpc, percentile": ["grpc", "--percentile", "95"],
    "http, windows of requests": ["http", *COUNTS],
    "grpc, a number of requests": ["grpc", "--request-count", "30"],
}
IN_SEQUENCES = {
    "http": ["http", "--concurrency-range", "3", "--sequence-length", "5"],
    "grpc": ["grpc", "--concurrency-range", "3", "--sequence-length", "5"],
    "grpc, synchronous": ["grpc", "--sync", "--sequence-length-variation", "50"],
    "streams": ["grpc", "--streaming", "--concurrency-range", "4", "--sequence-length", "4"],
    "http, checked sums": ["http", "--input-data", "sequences.json"],
    "grpc, checked sums": ["grpc", "--concurrency-range", "2", "--input-data", "sequences.json"],
    "streams, checked sums": ["grpc", "--streaming", "--input-data", "sequences.json"],
    "grpc, rates": [
        *("grpc", "--request-rate-range", "100", "--num-of-sequences", "3", "--serial-sequences")
    ],
    "http, a range of identifiers": ["http", "--sequence-id-range", "100:200"],
    "http, shared memory": ["http", *SHARED],
}
DECOUPLED = {
    "concurrency": ["--concurrency-range", "2"],
    "rates": ["--request-rate-range", "50"],
    "a number of requests": ["--request-count", "20"],
}


@pytest.fixture(scope="module")
def analyzer() -> pathlib.Path:
    """perf_analyzer, which not every machine has."""
    return perf_tools.perf_analyzer()


@pytest.fixture(scope="module")
def loaded(
    analyzer: pathlib.Path, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with shared memory and a trace file."""
    backends = tmp_path_factory.mktemp("backends")
    build_examples(ROOT / "examples" / "backends", backends)
    repository = tmp_path_factory.mktemp("loaded")
    for name, text in MODELS.items():
        write(repository, name, text)
    flags = (
        f"--backend-directory={backends}",
        "--allow-client-shm=true",
        f"--trace-config=triton,file={repository.parent / 'loaded_traces.json'}",
    )
    with start_server(repository, *flags) as server:
        yield server.wait_until_ready()
        assert server.get("/v2/systemsharedmemory/status").json() == []
    assert server.process.returncode == 0


class Run:
    """A run of perf_analyzer in a directory with the files of this module."""

    def __init__(
        self, analyzer: pathlib.Path, server: Server, folder: pathlib.Path, options: Sequence[str]
    ) -> None:
        """Runs it until it ends; the first option is the protocol."""
        for name, text in FILES.items():
            (folder / name).write_text(text)
        protocol, *rest = [str(folder / one) if one in FILES else one for one in options]
        url = server.http_url if protocol == "http" else server.grpc_url
        windows = [] if {"-p", "--request-count", *COUNTS} & set(rest) else WINDOWS
        self.report = folder / "report.csv"
        command = [analyzer, "-u", url, "-i", protocol, *windows, *STABILITY, *rest]
        self.result = perf_tools.run([*command, "-f", self.report])

    def rows(self, known: str = WITHOUT_GPU) -> list[dict[str, str]]:
        """The report of a run that succeeded, without unknown warnings."""
        assert self.result.returncode == 0, self.result
        lines = self.result.stderr.splitlines()
        assert [line for line in lines if line and known not in line] == [], lines
        rows = list(csv.DictReader(self.report.read_text().splitlines()))
        assert rows and all(float(row["Inferences/Second"]) > 0 for row in rows), rows
        return rows


def inferences(server: Server, model: str) -> int:
    """The number of inferences that the server has counted."""
    return int(server.statistics(model)["inference_count"])


def check(
    analyzer: pathlib.Path,
    server: Server,
    folder: pathlib.Path,
    model: str,
    options: list[str],
    known: str = WITHOUT_GPU,
) -> Run:
    """Runs perf_analyzer, which must succeed. The server has counted its requests, and no
    failure."""
    before = inferences(server, model)
    run = Run(analyzer, server, folder, [*options, "-m", model])
    run.rows(known)
    assert inferences(server, model) > before
    assert server.statistics(model)["inference_stats"]["fail"]["count"] == 0
    return run


@pytest.mark.parametrize("mode", PLAIN)
# row: DEP-04
def test_modes(analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path, mode: str) -> None:
    """A stateless model, over each protocol with each kind of load."""
    check(analyzer, loaded, tmp_path, "plain", PLAIN[mode])


@pytest.mark.parametrize("mode", IN_SEQUENCES)
def test_sequences(
    analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path, mode: str
) -> None:
    """A stateful model. With data from a file, each response is checked.

    After the measurement, perf_analyzer ends its sequences with a request whose response it
    compares with another's. It reports this without failing, in front of Triton too.
    """
    check(analyzer, loaded, tmp_path, "sums", IN_SEQUENCES[mode], known=MISMATCH)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_wrong_results_are_noticed(
    analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path, protocol: str
) -> None:
    """The checks of responses can fail."""
    run = Run(analyzer, loaded, tmp_path, [protocol, "-m", "sums", "--input-data", "wrong.json"])
    assert run.result.returncode != 0
    assert MISMATCH in run.result.stderr


@pytest.mark.parametrize("mode", DECOUPLED)
def test_decoupled_models(
    analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path, mode: str
) -> None:
    """Each request has four responses and an empty last one, with their times."""
    times = tmp_path / "times.json"
    options = ["grpc", "--async", "--streaming", *SHAPES, *DECOUPLED[mode]]
    check(
        analyzer, loaded, tmp_path, "words", [*options, "--profile-export-file", str(times)]
    )
    (experiment,) = json.loads(times.read_text())["experiments"]
    answers: list[dict[str, Any]] = experiment["requests"]
    assert answers
    assert {len(answer["response_timestamps"]) for answer in answers} == {5}


def test_a_growing_number_of_requests(
    analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path
) -> None:
    """It sends more requests after every few responses, which don't arrive all at once."""
    times = tmp_path / "times.json"
    options = ["grpc", "--async", "--streaming", "--profile-export-file", str(times)]
    growing = ["--periodic-concurrency-range", "1:6:1", "--request-period", "2"]
    data = ["--input-data", "delays.json", "--shape", "IN:4", "--shape", "DELAY:4"]
    run = Run(analyzer, loaded, tmp_path, [*options, *growing, *data, "-m", "delays"])
    assert run.result.returncode == 0, run.result
    (experiment,) = json.loads(times.read_text())["experiments"]
    assert len(experiment["requests"]) == 6


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_traces(
    analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path, protocol: str
) -> None:
    """It enables tracing through the settings."""
    settings = {"--trace-level": "TIMESTAMPS", "--trace-rate": "2", "--trace-count": "7"}
    options = [word for pair in settings.items() for word in pair]
    check(analyzer, loaded, tmp_path, "plain", [protocol, *options, "--log-frequency", "3"])
    found = loaded.get("/v2/models/plain/trace/setting").json()
    assert (found["trace_level"], found["trace_rate"]) == (["TIMESTAMPS"], "2")
    assert found["log_frequency"] == "3"


def test_metrics(analyzer: pathlib.Path, loaded: Server, tmp_path: pathlib.Path) -> None:
    """It polls the metrics page, which has no GPU metrics."""
    options = ["--collect-metrics", "--metrics-url", f"127.0.0.1:{loaded.metrics_port}/metrics"]
    run = check(
        analyzer, loaded, tmp_path, "plain", ["http", *options, "--verbose-csv", "-p", "1100"]
    )
    (row,) = run.rows()
    assert "Avg GPU Utilization" in row
    assert float(row["Server Queue"]) >= 0
    assert run.result.stderr.count(WITHOUT_GPU) == 4


@pytest.mark.galatea_only
def test_a_refusal_is_shown(
    analyzer: pathlib.Path, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Without the flag for shared memory, the error tells the user which flag is missing."""
    repository = tmp_path / "models"
    write(repository, "plain", IDENTITY)
    with start_server(repository) as server:
        server.wait_until_ready()
        run = Run(analyzer, server, tmp_path, ["http", "-m", "plain", *SHARED])
    assert run.result.returncode != 0
    assert "Start the server with '--allow-client-shm=true'" in run.result.stderr
