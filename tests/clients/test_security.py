"""Tests of published vulnerabilities of similar servers, each in the form of a request.

Each test is marked with the identifiers of its rows. It sends the request a hundred times, and ends
with a running server, a good response and stable memory; see `resilience.repeat`.

Restricted APIs have a separate file, and so has client shared memory where it is allowed; here it
is disabled, which is the default.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import itertools
import json
import pathlib
import random
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from conftest import StartServer
from raw_http import Connection, get, post
from resilience import (
    GOOD_MODEL,
    GOOD_REQUEST,
    MEBIBYTE,
    check_serving,
    grpc_stub,
    infer_message,
    peak_kilobytes,
    refusal,
    repeat,
    unharmed,
)
from server import HEADER_LENGTH, Reply, Server, resident_kilobytes
from test_hardening import (
    EXPLICIT,
    SPARE_MODEL,
    explicit,  # noqa: F401
    identity_config,
    load,
    load_message,
    repository,  # noqa: F401
    unload,
    write_identity,
)

pytestmark = pytest.mark.galatea_only

INFER = f"/v2/models/{GOOD_MODEL}/infer"
TENSOR = GOOD_REQUEST["inputs"][0]

#: Triton responds with 500 to JSON that is malformed or has values of the wrong type.
WRONG_JSON = (400, 500)


def check_refused(reply: Reply, *statuses: int) -> None:
    """The response is an error with a text."""
    assert reply.status in (statuses or (400,)), reply
    assert reply.error()


def raw_exchange(server: Server, *parts: bytes) -> int | None:
    """Sends bytes as long as the server accepts them; returns the status of its response, if
    any."""
    with Connection(server) as connection:
        connection.send_while_accepted(parts)
        with contextlib.suppress(OSError):
            connection.finish_sending()
        response = connection.read_response()
        return response[0] if response else None


def chunked(path: str) -> bytes:
    """The head of a POST request with chunks."""
    return get(path, "Transfer-Encoding: chunked").replace(b"GET", b"POST", 1)


# Loading.


# row: PREP-06
def test_cve_2023_31036_files_of_a_load_stay_inside(explicit: Server) -> None:  # noqa: F811
    """A path that leads out of the model's directory writes nothing."""
    target = pathlib.Path("/tmp/galatea_cve_2023_31036")
    config = json.dumps(identity_config(SPARE_MODEL))

    def attempt() -> None:
        for path in (f"../../{target.name}", str(target), f"1/../../../{target.name}"):
            reply = load(explicit, SPARE_MODEL, {"config": config, f"file:{path}": "AAAA"})
            check_refused(reply, 400, 500)

    repeat(explicit, attempt)
    assert not target.exists()


def test_cve_2024_53880_huge_declared_lengths(explicit: Server) -> None:  # noqa: F811
    """More than 2 GiB of base64 is refused before anything arrives."""
    path = f"/v2/repository/models/{SPARE_MODEL}/load"

    def attempt() -> None:
        for length in (2**31 + 1, 2**32, 2**62):
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
            assert raw_exchange(explicit, head.encode(), b'{"parameters":{') == 400

    repeat(explicit, attempt)


@pytest.mark.parametrize("field", ["default_model_filename", "label_filename"])
def test_cve_2025_23268_2026_24147_files_of_a_configuration_stay_inside(
    explicit: Server,  # noqa: F811
    repository: pathlib.Path,  # noqa: F811
    field: str,
) -> None:
    """No file outside the model's directory is read and returned."""
    secret = repository / "secret"
    secret.write_text("secret label\n")
    config = {**identity_config(SPARE_MODEL), "backend": "onnxruntime"}

    def attempt() -> None:
        for path in ("../secret", "../../secret", str(secret), "1/../../secret"):
            changed = json.loads(json.dumps(config))
            if field == "label_filename":
                changed["backend"] = "identity"
                changed["output"][0]["label_filename"] = path
            else:
                changed[field] = path
            reply = load(explicit, SPARE_MODEL, {"config": json.dumps(changed)})
            check_refused(reply, 400, 500)
            assert b"secret label" not in reply.body

    repeat(explicit, attempt)
    secret.unlink()


def test_cve_2025_23316_names_reach_no_shell(explicit: Server) -> None:  # noqa: F811
    """Names that a shell would execute."""
    target = pathlib.Path("/tmp/galatea_cve_2025_23316")

    def attempt() -> None:
        for name in (f"a;touch {target}", f"$(touch {target})", f"`touch {target}`", "a|b&c"):
            check_refused(load(explicit, name), 400, 404, 500)

    repeat(explicit, attempt)
    assert not target.exists()


def test_cve_2025_23335_23336_configurations_with_wrong_values(
    explicit: Server,  # noqa: F811
) -> None:
    """Values in a valid configuration, replaced at random."""
    source = random.Random(23335)
    values: list[Any] = [0, -1, 2**31, 2**63, -(2**63), 1.5, "", "x", None, [], {}, True, [[]]]

    def replace(document: Any) -> Any:
        if isinstance(document, dict) and document and source.random() < 0.8:
            key = source.choice(sorted(document))
            return {**document, key: replace(document[key])}
        if isinstance(document, list) and document and source.random() < 0.8:
            return [replace(document[0]), *document[1:]]
        return source.choice(values)

    base = {
        **identity_config(SPARE_MODEL),
        "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 10},
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "version_policy": {"latest": {"num_versions": 1}},
    }

    def attempt() -> None:
        key = source.choice(sorted(set(base) - {"name", "backend"}))
        config = json.dumps({**base, key: replace(base[key])})
        reply = load(explicit, SPARE_MODEL, {"config": config})
        assert reply.status in (200, 400, 500), reply

    repeat(explicit, attempt)
    assert unload(explicit, SPARE_MODEL).status == 200


def test_cve_2025_33238_33254_loads_unloads_and_requests_at_once(
    explicit: Server,  # noqa: F811
) -> None:
    """Parallel control requests and inferences for one model never mix up its state."""
    with concurrent.futures.ThreadPoolExecutor(6) as pool:

        def change(number: int) -> None:
            reply = (load, unload)[number % 2](explicit, SPARE_MODEL)
            assert reply.status in (200, 400), reply

        def ask(number: int) -> None:
            tensor = {**TENSOR, "data": [number]}
            reply = explicit.infer(SPARE_MODEL, {"inputs": [tensor]})
            assert reply.status in (200, 400, 404, 503), reply
            if reply.status == 200:
                assert reply.json()["outputs"][0]["data"] == [number]

        def attempt() -> None:
            changes = [pool.submit(change, number) for number in range(2)]
            requests = [pool.submit(ask, number) for number in range(4)]
            for one in changes + requests:
                one.result()

        repeat(explicit, attempt)
        assert load(explicit, SPARE_MODEL).status == 200
        assert explicit.infer(SPARE_MODEL, GOOD_REQUEST).status == 200
        assert unload(explicit, SPARE_MODEL).status == 200


# row: PREP-10
def test_cve_2026_24208_24209_names_that_lead_elsewhere(explicit: Server) -> None:  # noqa: F811
    """Model names are only names, at every door."""
    names = ("..", " ..", ".. ", ".", "", "  ", "a/b", "../x", "/etc", "%2e%2e", "..%2f")

    def attempt() -> None:
        for name in names:
            assert load(explicit, name).status in (400, 404, 500)
        for name in names:
            message = service_pb2.RepositoryModelLoadRequest(model_name=name)
            error = refusal(stub.RepositoryModelLoad, message)
            assert error.code() != grpc.StatusCode.UNAVAILABLE, error
        # Only the name is wrong in these.
        for name in [name for name in names if "%" not in name]:
            message = load_message({"1/model": b""})
            message.model_name = name
            message.parameters["config"].string_param = json.dumps(identity_config(name))
            error = refusal(stub.RepositoryModelLoad, message)
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error

    with grpc_stub(explicit) as stub:
        repeat(explicit, attempt)


def test_cve_2026_47480_links_and_unreadable_files(
    explicit: Server,  # noqa: F811
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """A link to itself and a file without permissions affect only their own model."""
    loop = write_identity(repository, "loop")
    (loop / "config.pbtxt").unlink()
    (loop / "config.pbtxt").symlink_to("config.pbtxt")
    nowhere = write_identity(repository, "nowhere")
    (nowhere / "config.pbtxt").unlink()
    (nowhere / "config.pbtxt").symlink_to("missing/file")

    def attempt() -> None:
        for name in ("loop", "nowhere"):
            reply = load(explicit, name)
            assert reply.status in (200, 400, 500), reply
            unload(explicit, name)
        assert explicit.request("POST", "/v2/repository/index", b"").status == 200

    repeat(explicit, attempt)


def test_cve_2026_47606_47627_47630_paths_of_a_configuration(
    explicit: Server,  # noqa: F811
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Libraries and environments next to the model, such as `m_evil`, aren't used."""
    evil = repository / f"{SPARE_MODEL}_evil"
    evil.mkdir()
    (evil / "batchstrategy.so").write_bytes(b"\x7fELF")

    def attempt() -> None:
        for path in (f"../{evil.name}/batchstrategy.so", str(evil / "batchstrategy.so")):
            config = {
                **identity_config(SPARE_MODEL),
                "dynamic_batching": {},
                "parameters": {"TRITON_BATCH_STRATEGY_PATH": {"string_value": path}},
            }
            reply = load(explicit, SPARE_MODEL, {"config": json.dumps(config)})
            check_refused(reply, 400, 500)
        for runtime in (f"../{evil.name}/libtriton_x.so", "/etc/passwd"):
            config = {**identity_config(SPARE_MODEL), "backend": "x", "runtime": runtime}
            reply = load(explicit, SPARE_MODEL, {"config": json.dumps(config)})
            check_refused(reply, 400, 500)

    repeat(explicit, attempt)
    unload(explicit, SPARE_MODEL)


# Settings and logs.


def test_cve_2024_0087_0100_destinations_are_fixed(server: Server, tmp_path: pathlib.Path) -> None:
    """No request can name the file for logs or traces."""
    target = tmp_path / "written"

    def attempt() -> None:
        for path, body in (
            ("/v2/logging", {"log_file": str(target)}),
            ("/v2/trace/setting", {"trace_file": [str(target)]}),
            (f"/v2/models/{GOOD_MODEL}/trace/setting", {"trace_file": [str(target)]}),
        ):
            check_refused(server.request("POST", path, json.dumps(body).encode()), 400, 501)

    repeat(server, attempt)
    assert not target.exists()


@pytest.mark.parametrize("mode", ["triton", "opentelemetry"])
def test_cve_2024_0100_traces_go_where_the_server_says(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
    tmp_path: pathlib.Path,
    mode: str,
) -> None:
    """A server that traces: no call over any protocol can set another file, mode or collector."""
    target, own = tmp_path / "written", tmp_path / "traces.json"
    url = "http://127.0.0.1:1/v1/traces"
    flags = [
        f"--trace-config={setting}"
        for setting in (
            "level=TIMESTAMPS", "rate=1", f"mode={mode}", f"triton,file={own}",
            f"opentelemetry,url={url}",
        )
    ]
    hostile = {
        "trace_file": str(target), "trace_mode": "triton", "url": "http://127.0.0.1:2/",
        "resource": "service.name=forged", "triton,file": str(target), "file": str(target),
    }
    with start_server(repository, EXPLICIT, f"--load-model={GOOD_MODEL}", *flags) as server:
        server.wait_until_ready()
        before = server.get("/v2/trace/setting").json()

        def attempt() -> None:
            for path in ("/v2/trace/setting", f"/v2/models/{GOOD_MODEL}/trace/setting"):
                for field, value in hostile.items():
                    # Unknown fields change nothing.
                    code = 501 if field == "trace_file" else 200
                    for form in (value, [value]):
                        body = json.dumps({field: form}).encode()
                        assert server.request("POST", path, body).status == code
            with grpc_stub(server) as stub:
                for model in ("", GOOD_MODEL):
                    for field, value in hostile.items():
                        request = service_pb2.TraceSettingRequest(model_name=model)
                        request.settings[field].value.append(value)
                        if field != "trace_file":
                            stub.TraceSetting(request)
                            continue
                        with pytest.raises(grpc.RpcError) as refused:
                            stub.TraceSetting(request)
                        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED

        repeat(server, attempt)
        assert server.get("/v2/trace/setting").json() == before
    assert not target.exists()
    assert own.exists() == (mode == "triton")


def test_cve_2024_0095_log_lines_are_not_forged(explicit: Server) -> None:  # noqa: F811
    """Line breaks and escapes in names and identifiers are escaped."""
    forged = "x\r\nE0101 00:00:00.000000 1 forged.cc:1] forged\x1b[31m"
    config = json.dumps({**identity_config(SPARE_MODEL), "name": forged})

    def attempt() -> None:
        tensor = {**TENSOR, "name": forged}
        check_refused(explicit.infer(GOOD_MODEL, {"inputs": [tensor], "id": forged}))
        check_refused(load(explicit, SPARE_MODEL, {"config": config}), 400, 500)

    repeat(explicit, attempt)
    # Refused configurations are logged.
    assert "x\\r\\nE0101 00:00:00.000000 1 forged.cc:1] forged\\u001B[31m" in explicit.log()
    assert "\nE0101 00:00:00.000000 1 forged" not in explicit.log()
    assert "\x1b" not in explicit.log()


def test_cve_2026_47481_headers_set_no_reserved_parameters(
    start_server: StartServer, repository: pathlib.Path  # noqa: F811
) -> None:
    """Forwarded headers with the names of parameters that the server reads."""
    flags = (
        EXPLICIT,
        f"--load-model={GOOD_MODEL}",
        "--http-header-forward-pattern=(timeout|priority|sequence_.*|triton_.*)",
    )
    with start_server(repository, *flags) as server:
        server.wait_until_ready()

        def attempt() -> None:
            for name in ("timeout", "priority", "sequence_id", "triton_x"):
                check_refused(server.infer(GOOD_MODEL, GOOD_REQUEST, headers={name: "1"}))

        repeat(server, attempt)


# Shared memory, which clients can't register unless a flag allows it.


def test_cve_2024_0088_0116_2025_23328_2026_47478_no_region_is_registered(
    server: Server,
) -> None:
    """Registering beyond a segment or twice, and unregistering while in use, are all refused."""
    bodies = [
        {"key": "/x", "offset": offset, "byte_size": size}
        for offset, size in ((0, 8), (2**63, 2**63), (-1, 8), (8, 2**64 - 1))
    ]

    def attempt() -> None:
        for body in bodies:
            for action in ("register", "unregister", "register"):
                path = f"/v2/systemsharedmemory/region/r/{action}"
                check_refused(server.request("POST", path, json.dumps(body).encode()), 400, 501)
        parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
        for offset in (0, 2**63, -1):
            shared = {**parameters, "shared_memory_offset": offset}
            tensor = {**{k: v for k, v in TENSOR.items() if k != "data"}, "parameters": shared}
            check_refused(server.infer(GOOD_MODEL, {"inputs": [tensor]}), 400, 404, 500, 501)

    repeat(server, attempt)


def test_cve_2025_23318_23319_23320_23329_23333_23334_internal_regions_stay_unknown(
    server: Server,
) -> None:
    """No client can access the memory between a server and its workers, or learn a name."""
    region = "triton_python_backend_shm_region_1"

    def attempt() -> None:
        path = f"/v2/systemsharedmemory/region/{region}/register"
        body = {"key": f"/{region}", "offset": 0, "byte_size": 64}
        check_refused(server.request("POST", path, json.dumps(body).encode()), 400, 501)
        # An input that is far too large.
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [9, 1000], "data": [0] * 9000}
        reply = server.infer(GOOD_MODEL, {"inputs": [tensor]})
        check_refused(reply)
        assert b"shm" not in reply.body and b"/dev" not in reply.body

    repeat(server, attempt)


# Bodies and headers over HTTP.


def test_cve_2025_23310_23311_33202_2026_47476_tiny_chunks(server: Server) -> None:
    """Chunks of one byte, on several handlers in turn, beyond the allowed number."""
    block = b"1\r\nA\r\n" * 66_000
    paths = itertools.cycle(
        (INFER, "/v2/repository/index", f"/v2/repository/models/{GOOD_MODEL}/load")
    )

    def attempt() -> None:
        path = next(paths)
        status = raw_exchange(server, chunked(path), block, b"0\r\n\r\n")
        assert status in (None, 400, 503), (path, status)

    repeat(server, attempt)


def test_cve_2025_23317_json_lengths_that_do_not_match(server: Server) -> None:
    """The length of the JSON compared with the body, in one segment and in several."""
    body = json.dumps(GOOD_REQUEST).encode()

    def attempt() -> None:
        for length in (len(body) + 1, len(body) - 1, -1, 99_999_999_999, 2**31, 2**64):
            request = post(INFER, body, f"{HEADER_LENGTH}: {length}")
            assert raw_exchange(server, request) in WRONG_JSON, length
        request = post(INFER, body, f"{HEADER_LENGTH}: {len(body) + 1}")
        with Connection(server) as connection:
            for start in range(0, len(request), 64):
                connection.send(request[start : start + 64])
            assert (connection.read_response() or (0,))[0] == 400

    repeat(server, attempt)


def test_cve_2025_33201_very_large_payloads(server: Server) -> None:
    """More than 64 MiB, both declared and in chunks."""
    over = 64 * MEBIBYTE + 1

    def attempt() -> None:
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {over}\r\n\r\n"
        assert raw_exchange(server, head.encode(), b"{") in (400, 413)

    def attempt_in_chunks() -> None:
        assert raw_exchange(server, chunked(INFER), *sent, b"0\r\n\r\n") in (None, 400, 413)

    sent = [b"%x\r\n" % MEBIBYTE + b" " * MEBIBYTE + b"\r\n"] * 65
    repeat(server, attempt)
    repeat(server, attempt_in_chunks, peak_mebibytes=160)


def test_cve_2026_24175_accept_encodings_out_of_range(server: Server) -> None:
    """A quality value that no number can represent is ignored."""

    def attempt() -> None:
        for value in ("gzip;q=1e9999", "gzip;q=-1", "gzip;q=" + "9" * 400, "*;q=x"):
            reply = server.infer(GOOD_MODEL, GOOD_REQUEST, headers={"Accept-Encoding": value})
            assert reply.status == 200

    repeat(server, attempt)


# Tensors.


# row: HTTP-18
def test_cve_2025_23323_23324_23326_23327_2026_24210_shapes_that_overflow(
    server: Server,
) -> None:
    """Products and batch sizes beyond 63 bits, over both protocols."""
    shapes = ([2**31, 2**31, 4], [2**62, 4], [1, 2**33, 2**33], [2**63 - 1, 2], [2**31, 1])

    def attempt() -> None:
        for shape in shapes:
            check_refused(server.infer(GOOD_MODEL, {"inputs": [{**TENSOR, "shape": shape}]}))
        for shape in ([-1, 1], [2**63, 1], [2**64, 1]):
            document = {"inputs": [{**TENSOR, "shape": shape}]}
            check_refused(server.infer(GOOD_MODEL, document), *WRONG_JSON)
        with grpc_stub(server) as stub:
            for shape in (*shapes, [-1, 1], [-(2**63), 2]):
                error = refusal(stub.ModelInfer, infer_message(shape=shape))
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT

    repeat(server, attempt)


def test_cve_2025_23325_2026_47477_nested_json(server: Server) -> None:
    """Nesting far beyond the allowed depth, in data and elsewhere."""
    nested = b"[" * 100_000
    head = json.dumps({**TENSOR, "data": None}).encode().replace(b"null}", b"")

    def attempt() -> None:
        check_refused(server.infer(GOOD_MODEL, b'{"inputs":[' + head + nested))
        check_refused(server.request("POST", "/v2/repository/index", nested))

    repeat(server, attempt)


def test_cve_2025_23331_sizes_are_compared_with_the_body(server: Server) -> None:
    """A shape of 16 GiB and a body of a few bytes."""
    shape = [1, 2**32]

    def attempt() -> None:
        reply = server.infer(GOOD_MODEL, {"inputs": [{**TENSOR, "shape": shape}]})
        check_refused(reply, 400, 500)
        binary = {"name": "INPUT0", "datatype": "INT32", "shape": shape}
        binary["parameters"] = {"binary_data_size": 2**34}
        check_refused(server.infer(GOOD_MODEL, {"inputs": [binary]}, b"\0" * 4))

    with unharmed(server, peak_mebibytes=64):
        repeat(server, attempt)


def test_cve_2025_33211_lengths_inside_tensors(server: Server) -> None:
    """Lengths of strings that lead past their tensor."""

    def attempt() -> None:
        for raw in (b"\xff\xff\xff\xff", b"\x05\0\0\0ab", b"\x01", b"\x01\0\0\0a" * 3):
            tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES"}
            tensor["parameters"] = {"binary_data_size": len(raw)}
            check_refused(server.infer("identity_bytes", {"inputs": [tensor]}, raw))

    repeat(server, attempt)


def test_cve_2026_24173_24174_numbers_of_the_wrong_kind(server: Server) -> None:
    """Negative, huge and fractional numbers where integers belong."""

    def attempt() -> None:
        for value in (-1, 1.5, 1e300, 2**64, 2**200, True, "1", None):
            document = {"inputs": [{**TENSOR, "shape": [value]}]}
            check_refused(server.infer(GOOD_MODEL, document), *WRONG_JSON)
            document = {**GOOD_REQUEST, "parameters": {"priority": value}}
            check_refused(server.infer(GOOD_MODEL, document), *WRONG_JSON)

    repeat(server, attempt)


def test_cve_2026_47479_arrays_of_empty_strings(server: Server) -> None:
    """Fewer strings than the shape specifies, and many more tensors than a request may have."""
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 10_000]}

    def attempt() -> None:
        check_refused(server.infer("identity_bytes", {"inputs": [{**tensor, "data": [""] * 9999}]}))

    def attempt_with_many() -> None:
        assert server.infer("identity_bytes", body).status == 200

    head = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,200000],"data":['
    body = head + b'"",' * 199_999 + b'""]}]}'
    repeat(server, attempt)
    repeat(server, attempt_with_many, peak_mebibytes=128)


# Outputs and classes.


def test_cve_2025_23321_classification_of_bytes(server: Server) -> None:
    """Classes of strings, whose elements have no size to divide by."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    output = {"name": "OUTPUT0", "parameters": {"classification": 1}}

    def attempt() -> None:
        reply = server.infer("identity_bytes", {"inputs": [tensor], "outputs": [output]})
        check_refused(reply)
        assert "unsupported type 'BYTES'" in reply.error()

    repeat(server, attempt)


def test_cve_2026_24146_huge_numbers_of_outputs_and_classes(server: Server) -> None:
    """A hundred thousand outputs, and classes of more than a million elements."""
    outputs = [{"name": f"OUTPUT{number}"} for number in range(100_000)]
    crowded = json.dumps({**GOOD_REQUEST, "outputs": outputs}).encode()

    def attempt() -> None:
        check_refused(server.infer(GOOD_MODEL, crowded))

    count = 1_000_001
    tensor = {"name": "INPUT0", "shape": [1, count], "datatype": "INT32"}
    tensor["parameters"] = {"binary_data_size": 4 * count}
    output = {"name": "OUTPUT0", "parameters": {"classification": 1}}
    document = {"inputs": [tensor], "outputs": [output]}

    def attempt_with_classes() -> None:
        reply = server.infer(GOOD_MODEL, document, bytes(4 * count))
        check_refused(reply)
        assert reply.error() == "classification output tensor too large"

    repeat(server, attempt)
    repeat(server, attempt_with_classes, peak_mebibytes=64)


# Streams and sequences.


def test_cve_2025_23322_streams_that_are_cancelled_early(server: Server) -> None:
    """Streams that end before, during and after their first response."""
    with grpc_stub(server) as stub:
        message = infer_message()

        def attempt() -> None:
            for reads in (0, 1):
                more = threading.Event()

                def requests(more: threading.Event = more) -> Any:
                    for _ in range(5):
                        yield message
                    more.wait(30)

                stream = stub.ModelStreamInfer(requests())
                for _ in range(reads):
                    next(stream)
                stream.cancel()
                more.set()

        repeat(server, attempt)


def test_cve_2026_24266_streams_with_errors_as_status_that_close_early(server: Server) -> None:
    """The first error ends the stream while further requests are on the way."""
    # The model that parses strings as numbers fails on this.
    failing = service_pb2.ModelInferRequest(
        model_name="simple_string", raw_input_contents=[b"\x01\0\0\0x" * 16] * 2
    )
    for name in ("INPUT0", "INPUT1"):
        failing.inputs.add(name=name, datatype="BYTES", shape=[1, 16])
    metadata = (("triton_grpc_error", "true"),)
    with grpc_stub(server) as stub:

        def attempt() -> None:
            messages = iter([infer_message(), failing, infer_message()])
            stream = stub.ModelStreamInfer(messages, metadata=metadata)
            with pytest.raises(grpc.RpcError):
                for _ in stream:
                    pass
            early = stub.ModelStreamInfer(iter([failing] * 3), metadata=metadata)
            early.cancel()

        repeat(server, attempt)


def test_cve_2024_0103_no_slot_is_shared_after_a_storm(explicit: Server) -> None:  # noqa: F811
    """Sequences that time out or are cancelled leave nothing behind for the next ones."""
    assert load(explicit, "sequences").status == 200

    def message(sequence: int, value: int, *flags: str) -> service_pb2.ModelInferRequest:
        request = infer_message()
        request.model_name = "sequences"
        request.raw_input_contents[0] = value.to_bytes(4, "little")
        request.parameters["sequence_id"].int64_param = sequence
        for flag in flags:
            request.parameters[flag].bool_param = True
        return request

    with grpc_stub(explicit) as stub:

        def attempt() -> None:
            whole = ("sequence_start", "sequence_end")
            storm = [stub.ModelInfer.future(message(n, n, *whole)) for n in range(1, 20)]
            for call in storm[::2]:
                call.cancel()
            with contextlib.suppress(grpc.RpcError):
                stub.ModelInfer(message(50, 50, *whole), timeout=0.001)
            for value in (1001, 1002):
                result = stub.ModelInfer(message(value, value, *whole), timeout=60)
                assert result.raw_output_contents[0] == value.to_bytes(4, "little")
            for number, call in enumerate(storm, 1):
                with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                    assert call.result().raw_output_contents[0] == number.to_bytes(4, "little")

        repeat(explicit, attempt)
    assert unload(explicit, "sequences").status == 200
    check_serving(explicit)


# Compressed bodies over HTTP.

#: The limit of bodies in these tests.
INPUT_BYTES_MAX = 16 * MEBIBYTE

TOO_LONG = (
    f"Decompressed data size exceeds the maximum allowed value of {INPUT_BYTES_MAX} bytes. Use "
    "--http-max-input-size to increase the limit."
)


@pytest.fixture(scope="module")
def limited(start_server: StartServer, models: pathlib.Path) -> Iterator[Server]:
    """A server with a limit whose effect is visible in its memory."""
    with start_server(models, f"--http-max-input-size={INPUT_BYTES_MAX}") as server:
        yield server.wait_until_ready()
    assert server.process.returncode == 0 or server.is_triton


def bomb(mebibytes: int, coding: str) -> bytes:
    """Zeros, compressed by a factor of a thousand. Blocks that end in a flush can be repeated."""
    deflater = zlib.compressobj(9, wbits={"gzip": 31, "deflate": 15}[coding])
    zeros = bytes(MEBIBYTE)
    first = deflater.compress(zeros) + deflater.flush(zlib.Z_FULL_FLUSH)
    block = deflater.compress(zeros) + deflater.flush(zlib.Z_FULL_FLUSH)
    return first + block * (mebibytes - 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("mebibytes", [64, 10 * 1024])
def test_cve_2026_24158_bodies_that_inflate(limited: Server, mebibytes: int, coding: str) -> None:
    """64 kB that inflate to 64 MiB, and 10 MB that inflate to 10 GiB, stop at the limit."""
    body = bomb(mebibytes, coding)

    def attempt() -> None:
        reply = limited.infer("identity_fp32", body, headers={"Content-Encoding": coding})
        assert (reply.status, reply.error()) == (400, TOO_LONG)

    # The memory covers what arrived, what was inflated up to the limit, and a part of it twice when
    # a buffer grows.
    most = len(body) // MEBIBYTE + 2 * INPUT_BYTES_MAX // MEBIBYTE
    with unharmed(limited, peak_mebibytes=most + 32):
        repeat(limited, attempt)


def test_cve_2026_24264_compressed_more_than_once(limited: Server) -> None:
    """Only the outermost layer is inflated, and only the first of several members."""
    header = {"Content-Encoding": "gzip"}
    sound = gzip.compress(b'{"inputs": []}')
    nested = gzip.compress(gzip.compress(bomb(64, "gzip")))
    members = sound + bomb(1024, "gzip")
    # The result of the first member alone.
    alone = limited.infer("identity_fp32", sound, headers=header)

    def attempt() -> None:
        reply = limited.infer("identity_fp32", nested, headers=header)
        assert reply.status in (400, 500), reply
        twice = limited.infer("identity_fp32", nested, headers={"Content-Encoding": "gzip, gzip"})
        assert twice.status == 501, twice
        reply = limited.infer("identity_fp32", members, headers=header)
        assert (reply.status, reply.error()) == (alone.status, alone.error())

    with unharmed(limited, peak_mebibytes=16):
        repeat(limited, attempt)


def test_cve_2026_24264_json_that_inflates(limited: Server) -> None:
    """Short bodies that inflate to the most deeply nested JSON, or the longest."""
    header = {"Content-Encoding": "gzip"}
    texts = (b"[" * MEBIBYTE, b'{"inputs":' * (MEBIBYTE // 8), b'"' + b"x" * MEBIBYTE)
    bodies = [gzip.compress(text) for text in texts]

    def attempt() -> None:
        for body in bodies:
            reply = limited.infer("identity_fp32", body, headers=header)
            assert reply.status in (400, 500), reply
            assert reply.error()

    repeat(limited, attempt)


def test_cve_2026_47482_bodies_that_do_not_inflate(limited: Server) -> None:
    """The inflated contents of refused bodies aren't kept."""
    rounds = 100
    sound = gzip.compress(b" " * (256 << 10))
    bodies = [sound[:-9], sound[:100], sound[:10], b"\x1f\x8b" + b"\xff" * 1000, b"nonsense"]

    def send_all() -> None:
        for body in bodies:
            for coding in ("gzip", "deflate"):
                header = {"Content-Encoding": coding}
                reply = limited.infer("simple", body, headers=header)
                assert reply.status in (400, 500)

    for _ in range(rounds):
        send_all()
    before = resident_kilobytes(limited)
    for _ in range(rounds):
        send_all()
    # A hundredth of the inflated size of these bodies.
    assert resident_kilobytes(limited) - before < 2 * 1024
    check_serving(limited)
