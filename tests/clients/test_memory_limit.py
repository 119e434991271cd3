"""Tests of `--memory-limit`: the memory that requests and responses hold, refusals, and memory
that is released."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import struct
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from conftest import StartServer
from raw_http import Connection
from raw_http2 import ACK, DATA, END_STREAM, SETTINGS, Http2Connection, frame, is_end_of
from resilience import GOOD_MODEL, MEBIBYTE, check_serving, peak_kilobytes, reset_peak
from server import HEADER_LENGTH, REQUEST_SECONDS_MAX, Server, resident_kilobytes, wait_until

pytestmark = pytest.mark.galatea_only

LIMIT_MEBIBYTES = 256

#: What the process may take beside its memory before and the limit: buffers of the HTTP/2 library
#: for each of 64 connections, and what allocators waste. A debug build takes half of it.
SLACK_MEBIBYTES = LIMIT_MEBIBYTES // 10

#: How large the process may be soon after a burst, beside its size before the first one.
KEPT_FACTOR = 1.1

CLIENTS = 64
TENSOR_BYTES = 16 * MEBIBYTE
ROUNDS = 3
INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"
INFER_PATH = f"/v2/models/{GOOD_MODEL}/infer"


@pytest.fixture(name="limited")
def limited_server(start_server: StartServer, models: pathlib.Path) -> Iterator[Server]:
    """A server whose requests and responses may hold 256 MiB."""
    with start_server(models, f"--memory-limit={LIMIT_MEBIBYTES}M") as server:
        yield server.wait_until_ready()


def gauge(server: Server, name: str) -> int:
    """The value of a metric without labels."""
    lines = server.metrics().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
    return int(float(value))


@contextlib.contextmanager
def bounded(server: Server) -> Iterator[None]:
    """During the block, memory stays within the limit; afterwards, nothing is held and
    everything works."""
    check_serving(server)
    before = resident_kilobytes(server)
    reset_peak(server)
    yield
    grown = (peak_kilobytes(server) - before) // 1024
    assert grown < LIMIT_MEBIBYTES + SLACK_MEBIBYTES, f"memory grew by {grown} MiB"
    wait_until(lambda: gauge(server, "galatea_memory_held_bytes") == 0, 60, "nothing is held")
    check_serving(server)


def binary_request(size: int) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request with a binary tensor."""
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "INT32",
                "shape": [1, size // 4],
                "parameters": {"binary_data_size": size},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(document).encode()
    return text + b"\x07\0\0\0" * (size // 4), {HEADER_LENGTH: str(len(text))}


def message_of(size: int) -> bytes:
    """The same as a message."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="INT32", shape=[1, size // 4]
    )
    request = service_pb2.ModelInferRequest(
        model_name=GOOD_MODEL, inputs=[tensor], raw_input_contents=[b"\x07\0\0\0" * (size // 4)]
    )
    return request.SerializeToString()


def test_many_large_http_requests(limited: Server) -> None:
    """64 clients with 16 MiB each get good responses or refusals, on persistent connections."""
    body, headers = binary_request(TENSOR_BYTES)

    def client(_: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", limited.http_port, timeout=300)
        statuses = []
        for _ in range(ROUNDS):
            connection.request("POST", INFER_PATH, body, headers)
            response = connection.getresponse()
            length = int(response.headers["Content-Length"])
            content = [len(part) for part in iter(lambda: response.read(1 << 20), b"")]
            assert sum(content) == length
            if response.status == 503:
                assert response.headers["Retry-After"] == "1"
            else:
                assert length > TENSOR_BYTES
            statuses.append(response.status)
        connection.close()
        return statuses

    with bounded(limited), concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        statuses = Counter(status for one in pool.map(client, range(CLIENTS)) for status in one)
    assert set(statuses) <= {200, 503} and statuses[200] >= ROUNDS, statuses
    assert gauge(limited, "galatea_memory_refusals_total") >= statuses[503]


def test_many_large_grpc_requests(limited: Server) -> None:
    """The same over gRPC."""
    message = message_of(TENSOR_BYTES)
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

    def client(_: int) -> list[str]:
        codes = []
        with grpc.insecure_channel(limited.grpc_url, options=options) as channel:
            call = channel.unary_unary(INFER_METHOD)
            for _ in range(ROUNDS):
                try:
                    assert len(call(message, timeout=300)) > TENSOR_BYTES
                    codes.append("OK")
                except grpc.RpcError as error:
                    codes.append(error.code().name)
                    assert "--memory-limit" in error.details(), error
                    assert ("grpc-retry-pushback-ms", "1000") in error.trailing_metadata()
        return codes

    with bounded(limited), concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        codes = Counter(code for one in pool.map(client, range(CLIENTS)) for code in one)
    assert set(codes) <= {"OK", "RESOURCE_EXHAUSTED"} and codes["OK"] >= ROUNDS, codes


def test_strings_are_charged_at_what_they_cost(limited: Server) -> None:
    """ONNX Runtime needs 32 bytes or more for each, for inputs and outputs."""

    def body(count: int) -> bytes:
        head = '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,%d],"data":[' % count
        return head.encode() + b'"",' * (count - 1) + b'""]}]}'

    path = "/v2/models/onnx_identity_bytes/infer"
    small, large = body(100_000), body(5_000_000)
    with Connection(limited) as connection:
        connection.send(request_of(path, small))
        assert (connection.read_response() or (0, b""))[0] == 200
    before = resident_kilobytes(limited)

    def client(_: int) -> tuple[int, bytes]:
        # A debug build reads 60 million strings, two requests at a time.
        with Connection(limited, 4 * REQUEST_SECONDS_MAX) as connection:
            connection.send(request_of(path, large))
            status, answer = connection.read_response() or (0, b"")
            return status, answer[:300]

    with bounded(limited), concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(client, range(12)))
    assert all(status == 503 and b"--memory-limit" in text for status, text in answers), answers
    wait_until(lambda: resident_kilobytes(limited) < before + 32 * 1024, 60, "memory is given back")


def request_of(path: str, body: bytes) -> bytes:
    """A request with this body."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_request_beyond_the_limit_is_refused_at_once(limited: Server) -> None:
    """Neither its body nor its message has to arrive."""
    with Connection(limited) as connection:
        length = 300 * MEBIBYTE
        head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        connection.send(f"{head}{HEADER_LENGTH}: 10\r\nContent-Length: {length}\r\n\r\n".encode())
        status, body = connection.read_response() or (0, b"")
    assert status == 503 and b"--memory-limit" in body
    assert gauge(limited, "galatea_memory_limit_bytes") == LIMIT_MEBIBYTES * MEBIBYTE


def test_binary_tensors_beyond_the_limit_of_json(
    start_server: StartServer, models: pathlib.Path
) -> None:
    """As in Triton, --http-max-input-size doesn't limit binary tensors."""
    with start_server(models) as server:
        server.wait_until_ready()
        body, headers = binary_request(100 * MEBIBYTE)
        assert server.request("POST", INFER_PATH, body, headers).status == 200
        raw = server.request("POST", INFER_PATH, bytes(65 * MEBIBYTE), {HEADER_LENGTH: "0"})
        assert raw.status == 400 and "http-max-input-size" in raw.error()


def test_unfinished_http_bodies(limited: Server) -> None:
    """22 clients hold back the ends of bodies of 62 MiB."""
    body, headers = binary_request(62 * MEBIBYTE)
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    with bounded(limited), contextlib.ExitStack() as stack:
        for _ in range(22):
            connection = stack.enter_context(Connection(limited))
            connection.send_while_accepted([head.encode(), body[:-1]])
        check_serving(limited)
        held = gauge(limited, "galatea_memory_held_bytes")
        assert 62 * MEBIBYTE < held <= (LIMIT_MEBIBYTES + 1) * MEBIBYTE


class Sender:
    """Sends messages within the server's windows until it accepts no more."""

    def __init__(self, connection: Http2Connection) -> None:
        self._connection = connection
        self._windows = {0: 65535}
        self._over: set[int] = set()
        # From here on, the windows of calls are as large as the server announces.
        connection.read_until(lambda one: one.kind == SETTINGS and not one.flags & ACK)
        connection.send(frame(SETTINGS, ACK))

    def begin(self) -> int:
        """Starts a call."""
        stream = self._connection.call(INFER_METHOD, None)
        self._windows[stream] = 16 * MEBIBYTE
        return stream

    def send(self, stream: int, body: bytes, flags: int) -> bool:
        """Sends the body of a call; returns true if the server accepted all of it."""
        position = 0
        while position < len(body):
            room = min(self._windows[0], self._windows[stream], 16384, len(body) - position)
            if stream in self._over or (room <= 0 and not self._take_frame()):
                return False
            if room > 0:
                piece = body[position : position + room]
                position += room
                self._windows[0] -= room
                self._windows[stream] -= room
                is_last = position == len(body)
                self._connection.send(frame(DATA, flags if is_last else 0, stream, piece))
        return True

    def _take_frame(self) -> bool:
        """Reads a frame; returns true if there was one within a second."""
        try:
            one = self._connection.read_until(lambda _: True)
        except TimeoutError:
            return False
        if one.kind == 8:
            (increment,) = struct.unpack(">I", one.payload)
            self._windows[one.stream] = self._windows.get(one.stream, 0) + increment
        elif one.stream and (one.kind == 3 or one.flags & END_STREAM):
            self._over.add(one.stream)
        return True


def senders(server: Server, count: int, stack: contextlib.ExitStack) -> list[Sender]:
    """Connections whose clients wait a second for the server, and no longer."""
    made = []
    for _ in range(count):
        connection = stack.enter_context(Http2Connection(server))
        connection._socket.settimeout(1)  # pylint: disable=protected-access
        made.append(Sender(connection))
    return made


def test_unfinished_grpc_messages(limited: Server) -> None:
    """Four connections each send all but the end of messages of 330 MiB in total."""
    message = message_of(30 * MEBIBYTE)
    body = b"\0" + len(message).to_bytes(4) + message
    with bounded(limited), contextlib.ExitStack() as stack:
        for sender in senders(limited, 4, stack):
            for _ in range(11):
                sender.send(sender.begin(), body[:-1], 0)
        check_serving(limited)
        held = gauge(limited, "galatea_memory_held_bytes")
        assert 30 * MEBIBYTE < held <= (LIMIT_MEBIBYTES + 1) * MEBIBYTE


def test_idle_grpc_connections_keep_the_buffer_of_their_longest_frame(limited: Server) -> None:
    """It is held until they close."""
    count, frame_bytes = 20, 200 << 10
    small = service_pb2.ModelInferRequest(model_name="nothing").SerializeToString()
    content = [b"x" * frame_bytes]
    large = service_pb2.ModelInferRequest(model_name="nothing", raw_input_contents=content)
    with bounded(limited), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Http2Connection(limited)) for _ in range(count)]
        for connection in connections:
            connection.read_until(lambda one: one.kind == SETTINGS)
            # From then on, the server expects as much as it announced.
            connection.send(frame(SETTINGS, ACK))
        held = []
        for request in (small, large.SerializeToString(), small):
            for connection in connections:
                stream = connection.call(INFER_METHOD, request)
                connection.read_until(is_end_of(stream))
            held.append(gauge(limited, "galatea_memory_held_bytes"))
        assert held[0] < 100_000 * count
        for now in held[1:]:
            assert frame_bytes * 0.9 * count < now - held[0] < frame_bytes * 1.1 * count


def test_unread_grpc_answers(limited: Server) -> None:
    """12 connections send requests of 8 MiB, and don't read the responses."""
    message = message_of(8 * MEBIBYTE)
    body = b"\0" + len(message).to_bytes(4) + message
    with bounded(limited), contextlib.ExitStack() as stack:
        for sender in senders(limited, 12, stack):
            for _ in range(10):
                if not sender.send(sender.begin(), body, END_STREAM):
                    break
        check_serving(limited)
        assert gauge(limited, "galatea_memory_held_bytes") > 64 * MEBIBYTE


@pytest.mark.parametrize("protocol", ["http", "grpc", "unread"])
def test_memory_goes_back_after_a_burst(
    start_server: StartServer, models: pathlib.Path, protocol: str
) -> None:
    """Soon after the first burst, the process is hardly larger than before."""
    with start_server(models) as server:
        server.wait_until_ready()
        check_serving(server)
        before = resident_kilobytes(server)
        if protocol == "unread":
            message = message_of(8 * MEBIBYTE)
            body = b"\0" + len(message).to_bytes(4) + message
            with contextlib.ExitStack() as stack:
                for sender in senders(server, 8, stack):
                    for _ in range(8):
                        sender.send(sender.begin(), body, END_STREAM)
        else:
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                list(pool.map(lambda _: send_one(server, protocol, 13 * MEBIBYTE), range(40)))
        assert peak_kilobytes(server) > before + (64 << 10)
        most = int(before * KEPT_FACTOR)
        wait_until(lambda: resident_kilobytes(server) < most, 30, f"memory is below {most} kB")
        check_serving(server)


def send_one(server: Server, protocol: str, size: int) -> None:
    """One large request, which must succeed."""
    if protocol == "http":
        body, headers = binary_request(size)
        assert server.request("POST", INFER_PATH, body, headers).status == 200
        return
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        assert len(channel.unary_unary(INFER_METHOD)(message_of(size), timeout=300)) > size
