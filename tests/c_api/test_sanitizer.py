"""Tests the server and C backends under AddressSanitizer: load, requests, unload and shutdown.

The backends are built with the sanitizer. The server is the ordinary one, with the sanitizer's
library preloaded, which watches the heap of both. If GALATEA_ASAN_SERVER is set, it names a server
that was built with the sanitizer. See docs/c_api.md.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import numpy
import pytest
import tritonclient.grpc
from server import free_ports, wait_until
from tritonclient.utils import InferenceServerException

from test_traces import BACKEND, ROOT, TENSORS

INSTRUMENTED = os.environ.get("GALATEA_ASAN_SERVER")
SECONDS_MAX = 120
CLIENTS = 4

ONE = """
input { name: "IN" data_type: TYPE_INT32 dims: [ %s ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
STATE = 'state { input_name: "%s_IN" output_name: "%s_OUT" data_type: TYPE_INT32 dims: [ 1 ] %s }'
ZERO = 'initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }'
DECOUPLED = "model_transaction_policy { decoupled: true }"
MODELS = {
    "identity": 'backend: "example_identity" max_batch_size: 8 dynamic_batching { }' + TENSORS,
    "repeater": 'backend: "example_repeater"' + ONE % -1 + DECOUPLED,
    "accumulator": 'backend: "example_accumulator" max_batch_size: 4'
    + ONE % 1
    + "sequence_batching { direct { } %s }" % (STATE % ("SUM", "SUM", ZERO)),
    "countdown": 'backend: "example_countdown"'
    + ONE % 1
    + DECOUPLED
    + "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } %s }"
    % (STATE % ("LEFT", "LEFT", "")),
    "plain": BACKEND,
    "nested": BACKEND,
    "failing": BACKEND,
    "unanswering": BACKEND,
}
LIBRARIES = {
    "example_identity": ROOT / "examples/backends/identity.c",
    "example_repeater": ROOT / "examples/backends/repeater.c",
    "example_accumulator": ROOT / "examples/backends/accumulator.c",
    "example_countdown": ROOT / "examples/backends/countdown.c",
    "trace_points": ROOT / "tests/c_api/trace_points.c",
}


def build(source: pathlib.Path, library: pathlib.Path) -> None:
    """Compiles a backend with the sanitizer, whose library the process preloads."""
    library.parent.mkdir(parents=True)
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'examples/backends'}"]
    flags = ["-std=gnu11", "-g", "-O1", "-fPIC", "-fno-omit-frame-pointer"]
    made = library.with_suffix(".o")
    command = ["cc", *flags, "-fsanitize=address", *includes, "-c", source, "-o", made]
    subprocess.run(command, check=True)
    subprocess.run(["cc", "-shared", made, "-o", library, "-lpthread"], check=True)


class Clients:
    """The server with clients."""

    def __init__(self, http: int, grpc: int) -> None:
        self.ports = http, grpc
        self.url = f"http://127.0.0.1:{http}"
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}")

    def another(self) -> Clients:
        """Further clients of the same server."""
        return Clients(*self.ports)

    def post(self, path: str) -> object:
        """Sends an empty POST request and returns the response's JSON."""
        request = urllib.request.Request(f"{self.url}/v2/{path}", b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            return json.loads(response.read() or b"{}")

    def infer(self, model: str, values: list[int], **options: object) -> list[int]:
        """Sends one request and returns the response's values."""
        outer = model in ("accumulator", "countdown", "repeater")
        shape = [1, len(values)] if model not in ("countdown", "repeater") else [len(values)]
        tensor = tritonclient.grpc.InferInput("IN" if outer else "INPUT0", shape, "INT32")
        tensor.set_data_from_numpy(numpy.array(values, numpy.int32).reshape(shape))
        if model not in ("countdown", "repeater"):
            result = self.grpc.infer(model, [tensor], client_timeout=SECONDS_MAX, **options)
            return result.as_numpy("OUT" if outer else "OUTPUT0").reshape(-1).tolist()
        responses: queue.Queue[tuple[object, object]] = queue.Queue()
        self.grpc.start_stream(lambda result, error: responses.put((result, error)))
        self.grpc.async_stream_infer(
            model, [tensor], enable_empty_final_response=True, **options
        )
        values = []
        while True:
            result, error = responses.get(timeout=SECONDS_MAX)
            assert error is None
            found = result.as_numpy("OUT")
            values += [] if found is None else found.tolist()
            if result.get_response().parameters["triton_final_response"].bool_param:
                self.grpc.stop_stream()
                return values


@pytest.fixture
def started(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[tuple[Clients, subprocess.Popen[bytes], pathlib.Path]]:
    for name, source in LIBRARIES.items():
        build(source, tmp_path / "backends" / name / f"libtriton_{name}.so")
    for name, config in MODELS.items():
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    program, environment = INSTRUMENTED, dict(os.environ)
    # Objects that C knows by address are never freed, but they are reachable, so they aren't leaks.
    environment["ASAN_OPTIONS"] = "detect_leaks=1:detect_stack_use_after_return=1"
    if program is None:
        program = request.config.getoption("--galatea")
        found = subprocess.run(
            ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        )
        environment["LD_PRELOAD"] = found.stdout.strip()
        if not pathlib.Path(environment["LD_PRELOAD"]).is_absolute():
            pytest.skip("needs libasan, the library of AddressSanitizer")
    http, grpc = free_ports(2)
    flags = [
        f"--model-repository={tmp_path / 'models'}",
        f"--backend-directory={tmp_path / 'backends'}",
        "--model-control-mode=explicit",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
    ]
    log = tmp_path / "log"
    process = subprocess.Popen(
        [program, *flags], env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    try:
        running = Clients(http, grpc)

        def is_ready() -> bool:
            assert process.poll() is None
            with contextlib.suppress(Exception):
                return bool(running.grpc.is_server_ready())
            return False

        wait_until(is_ready, SECONDS_MAX, "the server is ready")
        yield running, process, log
    finally:
        process.kill()
        process.wait()
        # This is shown if the test fails.
        print(log.read_text())


def send_all_kinds(running: Clients, first: int) -> None:
    """Sends each kind of request, including failing ones."""
    for number in range(first, 100, CLIENTS):
        values = [number, 2, 3]
        for model in ("identity", "plain", "nested"):
            for _ in range(2):
                assert running.infer(model, values) == values
        assert running.infer("repeater", values) == values
        for start, end in ((True, False), (False, True)):
            sequence = {"sequence_id": 7 + first, "sequence_start": start, "sequence_end": end}
            total = running.infer("accumulator", [number], **sequence)
            assert total == [number if start else 2 * number]
        sequence = {"sequence_id": 7 + first, "sequence_start": True, "sequence_end": True}
        assert running.infer("countdown", [2], **sequence) == [2, 1, 0]
        for model, why in {"failing": "not today", "unanswering": "not any day"}.items():
            with pytest.raises(InferenceServerException, match=why):
                running.infer(model, values)
    running.grpc.close()


def test_nothing_is_wrong_with_memory(
    started: tuple[Clients, subprocess.Popen[bytes], pathlib.Path],
) -> None:
    running, process, log = started
    for model in MODELS:
        running.post(f"repository/models/{model}/load")
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        done = [
            clients.submit(send_all_kinds, running.another(), first) for first in range(CLIENTS)
        ]
        # Instances are added and removed while they are busy.
        for count in (2, 3, 1):
            for model in ("identity", "repeater", "nested"):
                path = log.parent / "models" / model / "config.pbtxt"
                path.write_text(MODELS[model] + "instance_group { count: %d kind: KIND_CPU }" % count)
                running.post(f"repository/models/{model}/load")
        for one in done:
            one.result()
    for model in MODELS:
        running.post(f"repository/models/{model}/unload")
    states = lambda: {one["state"] for one in running.post("repository/index")}  # noqa: E731
    wait_until(lambda: states() == {"UNAVAILABLE"}, SECONDS_MAX, "all models are unloaded")
    running.grpc.close()
    process.send_signal(signal.SIGTERM)
    ended = process.wait(SECONDS_MAX)
    assert "Sanitizer" not in log.read_text()
    assert ended == 0
