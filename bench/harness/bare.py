"""The bare loop: a server in C that responds with bytes recorded from another server.

Its cost per request consists of the kernel's and the load generator's, so its throughput is an
upper bound for servers. `bare.c` is the program, and this module writes the file with its
responses. Each response is a line of numbers followed by two texts. The numbers are the length
of the beginning of a request, of the ID in it and of the response, and whether such requests
are counted. The last response is for all other requests.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import socket
import subprocess

from . import request_body

SOURCE = pathlib.Path(__file__).with_suffix(".c")
HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"(?<=\r\ncontent-length: )\d+", re.IGNORECASE)
TIMEOUT_SECONDS = 10.0
# perf_analyzer numbers its requests, and drops responses without the request's number.
ID_DIGITS_MAX = 8
# The loop writes the number of counted requests in its place.
COUNT = "#" * 20
# The divisor for perf_analyzer, and the harness's counter.
STEPS = ("success", "queue", "compute_input", "compute_infer", "compute_output")


@dataclasses.dataclass(frozen=True)
class RecordedResponse:
    """The response to requests with this beginning and an ID of this length in bytes."""

    prefix: bytes
    text: bytes
    id_bytes: int = 0
    counted: bool = False


def program(work: pathlib.Path, compiler: str) -> pathlib.Path:
    """Compiles the loop."""
    target = work / "bare"
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(target), str(SOURCE)], check=True)
    return target


def write(responses: list[RecordedResponse], path: pathlib.Path) -> None:
    """Writes the file that the loop reads."""
    with path.open("wb") as file:
        for each in responses:
            sizes = f"{len(each.prefix)} {each.id_bytes} {len(each.text)} {int(each.counted)}\n"
            file.write(sizes.encode() + each.prefix + each.text)


def record(address: str, model: str, path: pathlib.Path) -> None:
    """Sends the load generators' and the harness's requests to a server, and writes its
    responses to a file."""
    responses = [_inference(address, model, digits) for digits in range(ID_DIGITS_MAX + 1)]
    about = f"/v2/models/{model}"
    for place in ("/v2/health/live", "/v2/health/ready", "/v2", about, f"{about}/config"):
        prefix = f"GET {place} ".encode()
        responses.append(RecordedResponse(prefix, _exchange(address, prefix)))
    prefix = f"GET {about}/stats ".encode()
    responses.append(RecordedResponse(prefix, counting(_exchange(address, prefix))))
    responses.append(RecordedResponse(b"", _exchange(address, b"GET /nothing ")))
    write(responses, path)


def _inference(address: str, model: str, digits: int) -> RecordedResponse:
    """Requests an inference with an ID of this many digits."""
    prefix = f"POST /v2/models/{model}/infer ".encode()
    text = _exchange(address, prefix, *request_body.http_body(model, "1" * digits))
    if not text.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"no inference to record: {text!r}")
    return RecordedResponse(prefix, text, id_bytes=digits, counted=True)


def _exchange(address: str, prefix: bytes, body: bytes = b"", json_bytes: int = 0) -> bytes:
    """Sends a request with this beginning, and returns the raw response."""
    head = prefix + f"HTTP/1.1\r\nHost: {address}\r\n".encode()
    if body:
        head += b"Content-Type: application/octet-stream\r\n"
        head += f"Inference-Header-Content-Length: {json_bytes}\r\n".encode()
        head += f"Content-Length: {len(body)}\r\n".encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as stream:
        stream.sendall(head + b"\r\n" + body)
        return receive(stream)


def receive(stream: socket.socket) -> bytes:
    """Reads one response."""
    text = b""
    while HEAD_END not in text or len(text) < _length(text):
        part = stream.recv(1 << 16)
        if not part:
            raise RuntimeError(f"the connection ended after {text!r}")
        text += part
    return text


def _length(text: bytes) -> int:
    head = text.partition(HEAD_END)[0]
    length = CONTENT_LENGTH.search(head)
    if length is None:
        raise RuntimeError(f"an answer of unknown length: {head!r}")
    return len(head) + len(HEAD_END) + int(length[0])


def counting(response: bytes) -> bytes:
    """Replaces the number of inferences in the statistics with the number of requests.

    The times remain as recorded, because the loop doesn't execute anything.
    """
    head, _, body = response.partition(HEAD_END)
    document = json.loads(body)
    statistics = document["model_stats"][0]
    statistics["inference_count"] = statistics["execution_count"] = COUNT
    for step in STEPS:
        statistics["inference_stats"][step]["count"] = COUNT
    statistics["batch_stats"] = []
    text = json.dumps(document, separators=(",", ":")).replace(f'"{COUNT}"', COUNT).encode()
    return CONTENT_LENGTH.sub(str(len(text)).encode(), head) + HEAD_END + text
