"""Measures the cost of hostile input, and compares it with the cost before the fix.

    .cache/venv-tests/bin/python bench/hardening.py --galatea target/release/galatea

Prints a table with a row for each finding. It uses the helpers of the tests. See bench/README.md.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import contextlib
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples")]

# pylint: disable=wrong-import-position
import grpc  # noqa: E402
import make_models  # noqa: E402
import test_hardening as loads  # noqa: E402
import test_hardening_connections as connections  # noqa: E402
import test_memory_limit as memory  # noqa: E402
from conftest import find_onnxruntime_library  # noqa: E402
from latch import Latch  # noqa: E402
from raw_http import Connection, get, post  # noqa: E402
from raw_http2 import END_STREAM, Http2Connection, is_goaway, ping  # noqa: E402
from resilience import (  # noqa: E402
    GOOD_MODEL,
    GOOD_REQUEST,
    MEBIBYTE,
    grpc_stub,
    infer_message,
    peak_kilobytes,
    refusal,
    reset_peak,
    write_identity,
)
from server import HEADER_LENGTH, Program, Server, resident_kilobytes, wait_until  # noqa: E402
from tritonclient.grpc import service_pb2  # noqa: E402

EXPLICIT = "--model-control-mode=explicit"
INFER = f"/v2/models/{GOOD_MODEL}/infer"
Measurement = Callable[["Stage"], str]

#: The finding, what it was, what was seen before, and how it is measured.
FINDINGS: list[tuple[str, str, str, Measurement]] = []


def finding(number: str, what: str, before: str) -> Callable[[Measurement], Measurement]:
    """Adds a row to the table."""

    def add(measure: Measurement) -> Measurement:
        FINDINGS.append((number, what, before, measure))
        return measure

    return add


class Stage:
    """Starts servers, each with its own repository."""

    def __init__(self, program: Program, folder: pathlib.Path) -> None:
        self._program, self._folder, self._count = program, folder, 0

    def repository(self, *models: str) -> pathlib.Path:
        """A new repository with the good model and the given models."""
        self._count += 1
        path = self._folder / f"models_{self._count}"
        make_models.write_models(path, make_models.TEST_MODELS, [GOOD_MODEL, *models])
        write_identity(path, loads.SPARE_MODEL)
        return path

    @contextlib.contextmanager
    def serve(self, *flags: str, repository: pathlib.Path | None = None) -> Iterator[Server]:
        """A server that is ready."""
        repository = repository or self.repository()
        log = self._folder / f"{repository.name}.log"
        # Only the good model is loaded at startup if clients load the others.
        first = [f"--load-model={GOOD_MODEL}"] if EXPLICIT in flags else []
        flags = ("--exit-timeout-secs=5", *flags, *first)
        server = Server(self._program, repository, log, flags)
        try:
            server.wait_until_ready()
            assert server.infer(GOOD_MODEL, GOOD_REQUEST).status == 200
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


@contextlib.contextmanager
def growth(server: Server) -> Iterator[Callable[[], str]]:
    """The growth of the server's memory, and how long others have to wait in the meantime."""
    before = resident_kilobytes(server)
    reset_peak(server)
    with others(server) as waits:
        yield lambda: f"+{(peak_kilobytes(server) - before) >> 10} MiB, {waits()}"


@contextlib.contextmanager
def others(server: Server) -> Iterator[Callable[[], str]]:
    """Queries the server's health repeatedly on a separate connection."""
    times: list[float] = []
    stop = threading.Event()
    request = get("/v2/health/live")

    def ask() -> None:
        with Connection(server) as connection:
            while not stop.wait(0.001):
                start = time.monotonic()
                connection.send(request)
                assert (connection.read_response() or (0,))[0] == 200
                times.append(1000 * (time.monotonic() - start))

    def waits() -> str:
        stop.set()
        asker.result()
        worst = statistics.quantiles(times, n=100)[98] if len(times) > 1 else max(times)
        return f"health p99 {worst:.0f} ms of {len(times)}"

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asker = pool.submit(ask)
        try:
            yield waits
        finally:
            stop.set()


def timed(action: Callable[[], object]) -> float:
    """The duration in seconds."""
    start = time.monotonic()
    action()
    return time.monotonic() - start


def good(server: Server) -> None:
    """A small inference."""
    assert server.infer(GOOD_MODEL, GOOD_REQUEST).status == 200


@finding("1", "inference beside 10 connections with 20 scrapes each", "718 ms median, 1.8 s worst")
def scraping(stage: Stage) -> str:
    """Small inferences while other clients scrape."""
    with stage.serve() as server, contextlib.ExitStack() as stack:
        pages = get("/v2/models/stats") * 20
        stop: list[bool] = []

        def scrape() -> None:
            with Connection(server) as connection:
                while not stop:
                    connection.send(pages)
                    for _ in range(20):
                        connection.read_response()

        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(10))
        scrapers = [pool.submit(scrape) for _ in range(10)]
        time.sleep(0.5)
        times = [1000 * timed(lambda: good(server)) for _ in range(50)]
        stop.append(True)
        for scraper in scrapers:
            scraper.result()
        return f"{statistics.median(times):.0f} ms median, {max(times):.0f} ms worst"


@finding("2a", "38 MiB of dimensions", "+1.4 GiB, an answer of 38 MiB")
def dimensions(stage: Stage) -> str:
    """A shape that consists of 2s, over HTTP."""
    with stage.serve() as server, growth(server) as grown:
        reply = server.infer(GOOD_MODEL, loads.body_with(b"2," * (19 * MEBIBYTE) + b"1"))
        return f"{grown()}, an answer of {len(reply.body)} bytes"


@finding("2b", "8 MiB of packed gRPC dimensions", "×17")
def packed_dimensions(stage: Stage) -> str:
    """One byte for each dimension."""
    message = infer_message(shape=[1] * (8 * MEBIBYTE))
    with stage.serve() as server, grpc_stub(server) as stub, growth(server) as grown:
        refusal(stub.ModelInfer, message)
        return grown()


@finding("2c", "15 million empty strings in 45 MB", "×19")
def strings(stage: Stage) -> str:
    """The same as JSON."""
    count = 15_000_000
    head = '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,%d],"data":[' % count
    body = head.encode() + b'"",' * (count - 1) + b'""]}]}'
    with stage.serve(repository=stage.repository("identity_bytes")) as server:
        with growth(server) as grown:
            server.infer("identity_bytes", body)
            return grown()


@finding("2d", "12 times 5 million empty strings for ONNX (--memory-limit=256M)", "+792 MiB")
def onnx_strings(stage: Stage) -> str:
    """All of them at once."""
    count = 5_000_000
    head = '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,%d],"data":[' % count
    body = head.encode() + b'"",' * (count - 1) + b'""]}]}'
    request = post("/v2/models/onnx_identity_bytes/infer", body)
    repository = stage.repository("onnx_identity_bytes")

    def send(server: Server) -> str:
        with Connection(server) as connection:
            connection.send_while_accepted([request])
            return str((connection.read_response() or ("none",))[0])

    with stage.serve("--memory-limit=256M", repository=repository) as server:
        with growth(server) as grown, concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = set(pool.map(lambda _: send(server), range(12)))
            return f"{grown()}, {', '.join(sorted(answers))}"


@finding("2e", "4 million numbers as JSON, asked for by two clients", "health 947 ms")
def long_answers(stage: Stage) -> str:
    """For a model that returns its input."""
    count = 4_000_000
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, count]}
    tensor["parameters"] = {"binary_data_size": 4 * count}
    header = json.dumps({"inputs": [tensor]}).encode()
    body = header + b"\x07\x01\0\0" * count
    request = post(f"/v2/models/{loads.SPARE_MODEL}/infer", body, f"{HEADER_LENGTH}: {len(header)}")

    def send(server: Server) -> int:
        with Connection(server) as connection:
            connection.send(request)
            return (connection.read_response() or (0,))[0]

    with stage.serve() as server, growth(server) as grown:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert set(pool.map(lambda _: send(server), range(4))) == {200}
        return grown()


@finding("3", "100 failed loads of new names", "100 descriptors, none in the index")
def failed_loads(stage: Stage) -> str:
    """Each request brings files that aren't a model."""
    with stage.serve(EXPLICIT) as server:
        loads.failing_load(server, "first")
        before = loads.open_descriptors(server)
        for number in range(100):
            loads.failing_load(server, f"new_{number}")
        kept = max(0, loads.open_descriptors(server) - before)
        listed = sum(name.startswith("new_") for name in loads.index(server))
        return f"{kept} descriptors, {listed} in the index"


@finding("4", "1.1 MiB of mistakes in a configuration", "76 MiB answer, +485 MiB, 2.5 s")
def mistakes(stage: Stage) -> str:
    """The inputs are empty."""
    config = '{"name":"spare","backend":"identity","input":[' + "{}," * 380_000 + "{}]}"
    with stage.serve(EXPLICIT) as server, growth(server) as grown:
        start = time.monotonic()
        reply = loads.load(server, loads.SPARE_MODEL, {"config": config})
        seconds = time.monotonic() - start
        return f"{len(reply.body)} bytes, {grown()}, {seconds:.1f} s"


def growth_of_load(stage: Stage, config: str) -> str:
    """The result, memory growth and time of a load with this configuration."""
    with stage.serve(EXPLICIT) as server, growth(server) as grown:
        start = time.monotonic()
        reply = loads.load(server, loads.SPARE_MODEL, {"config": config})
        seconds = time.monotonic() - start
        return f"{reply.status}, {len(reply.body)} bytes, {grown()}, {seconds:.1f} s"


@finding("4b", "3.9 MiB of dimensions in a configuration", "+260 MiB")
def configured_dimensions(stage: Stage) -> str:
    """All dimensions belong to one input."""
    head = '{"name":"spare","backend":"identity","input":[{"name":"x","data_type":"TYPE_INT32",'
    return growth_of_load(stage, head + '"dims":[' + "1," * (39 * MEBIBYTE // 20) + "1]}]}")


@finding("4c", "175 KiB of unknown names in batch_padding", "over 1.9 GiB")
def padding_names(stage: Stage) -> str:
    """None of them is an input."""
    names = ",".join(f"n{number}=0" for number in range(20_000))
    config = {"name": "spare", "backend": "identity", "dynamic_batching": {}, "max_batch_size": 4}
    config["parameters"] = {"batch_padding": {"string_value": names}}
    return growth_of_load(stage, json.dumps(config))


@finding("5a", "22 unfinished bodies of 62 MiB (now with --memory-limit=256M)", "+1.4 GiB")
def unfinished(stage: Stage) -> str:
    """All of them wait for their last byte."""
    body = bytes(62 * MEBIBYTE)
    request = post(INFER, body, f"{HEADER_LENGTH}: 100")
    with stage.serve("--memory-limit=256M") as server, growth(server) as grown:
        with contextlib.ExitStack() as stack:
            for _ in range(22):
                connection = stack.enter_context(Connection(server))
                connection.send_while_accepted([request[:-1]])
            good(server)
            return grown()


@finding("5b", "400 slow heads (now with --connection-head-timeout=1)", "400 stay")
def slow_heads(stage: Stage) -> str:
    """The number of connections that are open three seconds later."""
    with stage.serve("--connection-head-timeout=1") as server, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Connection(server)) for _ in range(400)]
        for connection in slow:
            connection.send(b"GET /v2")
        time.sleep(4)
        return f"{sum(not one.has_something_to_read() for one in slow)} stay"


@finding("6", "the end of the server beside a silent gRPC client", "30.0 s")
def silent_client(stage: Stage) -> str:
    """The client acknowledges nothing."""
    with stage.serve("--exit-timeout-secs=60") as server, Http2Connection(server) as silent:
        silent.read_until(connections.is_end_of(silent.call(connections.LIVE, b"")))
        return f"{timed(server.stop):.1f} s"


@finding("7", "warmup of 4,294,967,295 executions", "loads for ever")
def warmup(stage: Stage) -> str:
    """The duration of the load."""
    config = json.dumps(loads.warmup_config(loads.SPARE_MODEL, {"count": 4_294_967_295}))
    with stage.serve(EXPLICIT) as server:
        reply = loads.load(server, loads.SPARE_MODEL, {"config": config})
        again = timed(lambda: loads.load(server, loads.SPARE_MODEL, {"config": config}))
        return f"{reply.status} after {1000 * again:.0f} ms"


@finding("8", "1,500 slow loads on one connection", "524 threads, the index times out")
def slow_loads(stage: Stage) -> str:
    """The threads, and the index while loads are running."""
    models, repository = stage.repository("onnx_slow"), stage.repository()
    loads.copy_slow_model(models, repository, "slow")
    with stage.serve(EXPLICIT, repository=repository) as server, grpc_stub(server) as stub:
        message = service_pb2.RepositoryModelLoadRequest(model_name="slow")
        calls = [stub.RepositoryModelLoad.future(message) for _ in range(1500)]
        wait_until(lambda: "loading: slow:1" in server.log(), 60, "a load is under way")
        index = service_pb2.RepositoryIndexRequest()
        seconds = timed(lambda: stub.RepositoryIndex(index, timeout=30))
        threads = len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))
        for call in calls:
            call.cancel()
        assert loads.unload(server, "slow").status == 200
        return f"{threads} threads, the index after {1000 * seconds:.0f} ms"


@finding("9", "metrics after a load under a name of 4 MiB", "58.8 MiB")
def long_name(stage: Stage) -> str:
    """A load with a configuration and files."""
    name = "x" * (4 * MEBIBYTE)
    message = loads.load_message({"1/model": b""})
    message.model_name = name
    message.parameters["config"].string_param = json.dumps(loads.identity_config(name))
    with stage.serve(EXPLICIT) as server, grpc_stub(server) as stub:
        refusal(stub.RepositoryModelLoad, message)
        return f"{len(server.metrics()) >> 10} KiB"


@finding("10a", "a file of 300 MiB with a load over gRPC", "+692 MiB")
def large_file(stage: Stage) -> str:
    """It is longer than a load may be."""
    message = loads.load_message({"1/model": bytes(300 * MEBIBYTE)})
    with stage.serve(EXPLICIT) as server, grpc_stub(server) as stub, growth(server) as grown:
        refusal(stub.RepositoryModelLoad, message)
        return grown()


@finding("10b", "300,000 empty files with a load", "10 s")
def many_files(stage: Stage) -> str:
    """The time includes the client's time."""
    message = loads.load_message({f"1/{number}": b"" for number in range(300_000)})
    with stage.serve(EXPLICIT) as server, grpc_stub(server) as stub:
        return f"{timed(lambda: refusal(stub.RepositoryModelLoad, message)):.1f} s"


@finding("11", "the next request, when the client of 2³¹ rounds left", "never")
def endless_loop(stage: Stage) -> str:
    """The time since the client's connection ended."""
    with stage.serve(repository=stage.repository("onnx_slow")) as server:
        connections.leave_http(server, lambda: server.is_executing("onnx_slow"))
        seconds = timed(lambda: server.infer("onnx_slow", connections.ONE_ROUND))
        return f"after {1000 * seconds:.0f} ms"


@finding("12", "a sparse warmup file of 3 GiB for four bytes", "+3 GiB")
def sparse_file(stage: Stage) -> str:
    """The model is loaded."""
    repository = stage.repository()
    tensor = "data_type: TYPE_INT32 dims: [ 1 ]"
    sample = f'inputs {{ key: "INPUT0" value: {{ {tensor} input_data_file: "big" }} }}'
    folder = write_identity(
        repository, "sparse", f'model_warmup {{ name: "s" batch_size: 1 {sample} }}'
    )
    (folder / "warmup").mkdir()
    with (folder / "warmup" / "big").open("wb") as big:
        big.truncate(3 << 30)
    with stage.serve(EXPLICIT, repository=repository) as server, growth(server) as grown:
        reply = loads.load(server, "sparse")
        return f"{grown()} ({reply.status})"


@finding("13", "the log of a wrong request with an id of 8 MiB", "48 to 90 MiB; U+2028 raw")
def long_id(stage: Stage) -> str:
    """Verbose output, with characters that need escaping."""
    with stage.serve("--log-verbose=2") as server:
        before = len(server.log())
        document = {**GOOD_REQUEST, "id": "\u2028\x01" * (2 * MEBIBYTE)}
        document["inputs"] = [{**GOOD_REQUEST["inputs"][0], "shape": [9, 1], "data": [7] * 9}]
        server.infer(GOOD_MODEL, json.dumps(document, ensure_ascii=False).encode())
        log = server.log()
        raw = "raw" if "\u2028" in log else "escaped"
        return f"{(len(log) - before) >> 10} KiB; U+2028 {raw}"


def status_of(server: Server, request: bytes) -> str:
    """The status of the response to these bytes."""
    with Connection(server) as connection:
        connection.send(request)
        return str((connection.read_response() or ("none",))[0])


@finding("14", "Transfer-Encoding: gzip, chunked", "200")
def transfer_coding(stage: Stage) -> str:
    """The same with a valid body."""
    with stage.serve() as server:
        return status_of(server, connections.CHUNKED % b"gzip, chunked" + b"2\r\n{}\r\n0\r\n\r\n")


@finding("15", "broken chunks", "closed without a 400")
def broken_chunks(stage: Stage) -> str:
    """A size that isn't a number."""
    with stage.serve() as server:
        return status_of(server, connections.CHUNKED % b"chunked" + b"zz\r\nabc\r\n0\r\n\r\n")


@finding("16", "answers to half-closed clients", "0 of 5")
def half_closed(stage: Stage) -> str:
    """For a model whose instance has a thread."""
    answers = 0
    with stage.serve(repository=stage.repository("onnx_slow")) as server:
        for _ in range(5):
            with Connection(server) as connection:
                body = json.dumps(connections.ONE_ROUND).encode()
                connection.send(post("/v2/models/onnx_slow/infer", body))
                connection.finish_sending()
                answers += (connection.read_response() or (0,))[0] == 200
    return f"{answers} of 5"


@finding("17", "broken pipes when bodies in pieces go to 404", "3 to 100 %")
def broken_pipes(stage: Stage) -> str:
    """100 bodies of 16 kB."""
    broken = 0
    request = post("/v2/absent", b"x" * 16_000)
    pieces = [request[start : start + 1000] for start in range(0, len(request), 1000)]
    with stage.serve() as server:
        for _ in range(100):
            with Connection(server) as connection:
                is_sent = connection.send_while_accepted(pieces)
                broken += not (is_sent and (connection.read_response() or (0,))[0] == 404)
    return f"{broken} %"


@finding("18", "two lengths of the JSON; surplus raw contents", "the first wins; ignored")
def two_meanings(stage: Stage) -> str:
    """Both are refused."""
    body = json.dumps(GOOD_REQUEST).encode()
    lengths = [f"{HEADER_LENGTH}: {len(body)}", f"{HEADER_LENGTH}: 0"]
    message = infer_message()
    message.raw_input_contents.append(b"\0\0\0\0")
    with stage.serve() as server, grpc_stub(server) as stub:
        status = status_of(server, post(INFER, body, *lengths))
        try:
            stub.ModelInfer(message, timeout=30)
            code = "taken"
        except grpc.RpcError as error:
            code = error.code().name
        return f"{status}; {code}"


@finding("19", "200 pings at once", "no GOAWAY")
def pings(stage: Stage) -> str:
    """The server's message."""
    with stage.serve() as server, Http2Connection(server) as connection:
        connection.send(ping() * 200)
        return connection.read_until(is_goaway).payload[8:].decode()


@finding("20", "a start beside 300 whose clients left before their execution", "6 s")
def abandoned_starts(stage: Stage) -> str:
    """Sequences may be idle for an hour."""
    repository = stage.repository()
    batching = "sequence_batching { direct { } max_sequence_idle_microseconds: 3600000000 }"
    latch = Latch(repository, "busy", batching, max_batch_size=2)

    def start_of(sequence: int) -> bytes:
        parameters = {"sequence_id": sequence, "sequence_start": True}
        return json.dumps({**latch.request(7), "parameters": parameters}).encode()

    with stage.serve(repository=repository) as server, latch:
        with contextlib.ExitStack() as stack:
            for number in range(1, 302):
                connection = stack.enter_context(Connection(server))
                connection.send(post("/v2/models/busy/infer", start_of(number)))
                if number == 1:
                    wait_until(lambda: server.is_executing("busy"), 30, "one is executed")
            server.wait_for_pending("busy", 300)
        server.wait_for_pending("busy", 0)
        latch.open()
        seconds = timed(lambda: server.infer("busy", start_of(999)))
        return f"{1000 * seconds:.0f} ms"


@finding("21", "load errors that name the server's directories or process", "yes")
def load_errors(stage: Stage) -> str:
    """A load with files that fails, and a broken configuration."""
    repository = stage.repository()
    (repository / "broken").mkdir()
    (repository / "broken" / "config.pbtxt").write_text("max_batchsize: 1")
    with stage.serve(EXPLICIT, repository=repository) as server:
        content = base64.b64encode(b"no model").decode()
        replies = [
            loads.failing_load(server, "new"),
            loads.load(server, "broken"),
            loads.load(server, "missing", {"file:1/x": content}),
        ]
        secrets = (str(repository), tempfile.gettempdir() + "/", str(server.process.pid))
        tells = [one for one in replies if any(text in one.error() for text in secrets)]
        return "yes" if tells else "no"


def kept_after(server: Server, burst: Callable[[], object]) -> str:
    """The memory that a burst still occupies after ten seconds."""
    before = resident_kilobytes(server)
    burst()
    time.sleep(10)
    return f"+{max(0, resident_kilobytes(server) - before) >> 10} MiB"


@finding("22a", "memory that 40 gRPC messages of 13 MiB leave", "578 MiB")
def burst(stage: Stage) -> str:
    """Twenty at a time."""
    with stage.serve() as server, concurrent.futures.ThreadPoolExecutor(20) as pool:

        def send() -> None:
            list(pool.map(lambda _: memory.send_one(server, "grpc", 13 * MEBIBYTE), range(40)))

        return kept_after(server, send)


@finding("22b", "memory that unread answers leave", "494 MiB")
def unread(stage: Stage) -> str:
    """Eight connections, each with eight requests of 8 MiB."""
    message = memory.message_of(8 * MEBIBYTE)
    body = b"\0" + len(message).to_bytes(4) + message

    def send(server: Server) -> None:
        with contextlib.ExitStack() as stack:
            for sender in memory.senders(server, 8, stack):
                for _ in range(8):
                    sender.send(sender.begin(), body, END_STREAM)

    with stage.serve() as server:
        return kept_after(server, lambda: send(server))


def main() -> int:
    """Measures, and prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--galatea", type=pathlib.Path, default=ROOT / "target/release/galatea", metavar="FILE")
    add("--onnxruntime-library", type=pathlib.Path, default=find_onnxruntime_library())
    add("--findings", nargs="*", default=[], metavar="NUMBER", help="only these, such as 2a")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="galatea-hardening-"))
    program = Program(options.galatea.resolve(), options.onnxruntime_library, False)
    stage, failures = Stage(program, folder), 0
    print("| # | what | before | now |\n|---|---|---|---|", flush=True)
    for number, what, before, measure in FINDINGS:
        if options.findings and number not in options.findings:
            continue
        try:
            now = measure(stage)
        except Exception as error:  # noqa: BLE001 pylint: disable=broad-exception-caught
            now, failures = f"not measured: {type(error).__name__}: {error}"[:200], failures + 1
        print(f"| {number} | {what} | {before} | {now} |", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
