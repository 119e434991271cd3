"""A span collector, which receives OpenTelemetry's protocol over HTTP and keeps the spans."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from server import wait_until

SPAN_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True)
class Span:
    """The parts of a span that tests use."""

    name: str
    trace: str
    number: str
    parent: str
    state: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[str]
    resource: dict[str, Any]
    scope: str


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes by name, as text or numbers."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
        for pair in pairs
    }


def read_message(body: bytes, form: str) -> ExportTraceServiceRequest:
    """A message in the binary format, or in the JSON format that Triton's releases up to 2.51
    send."""
    if form != "application/json":
        return ExportTraceServiceRequest.FromString(body)

    def with_bytes(json_object: dict[str, Any]) -> dict[str, Any]:
        """Unlike other bytes in JSON, span IDs are hexadecimal."""
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in json_object:
                number = bytes.fromhex(json_object[key])
                json_object[key] = base64.b64encode(number).decode()
        return json_object

    document = json.loads(body, object_hook=with_bytes)
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def spans_in(message: ExportTraceServiceRequest) -> Iterator[Span]:
    """The spans of a message."""
    for of_resource in message.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    number=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    state=span.trace_state,
                    kind=span.kind,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=attributes_of(span.attributes),
                    events=[event.name for event in span.events],
                    resource=attributes_of(of_resource.resource.attributes),
                    scope=of_scope.scope.name,
                )


class Collector:
    """The spans that were received, in batches, and the headers that were sent with them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.batches: list[list[Span]] = []
        self.headers: list[dict[str, str]] = []

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for batch in list(self.batches) for span in batch]

    def wait_for(self, count: int) -> list[Span]:
        """Waits until this number of spans has arrived."""
        enough = lambda: len(self.spans()) >= count  # noqa: E731
        wait_until(enough, SPAN_SECONDS_MAX, f"{count} spans are received")
        return self.spans()


@contextlib.contextmanager
def collecting(status: int = 200, tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """A collector that responds with this status, and may use TLS."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status == 200:
                named = {name.lower(): value for name, value in self.headers.items()}
                collector.headers.append({"path": self.path, **named})
                message = read_message(body, self.headers["Content-Type"])
                collector.batches.append(list(spans_in(message)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    collector = Collector(f"{scheme}://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
