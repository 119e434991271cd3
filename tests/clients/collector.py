"""A collector of spans: it receives OpenTelemetry's protocol over HTTP, and keeps what comes."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import threading
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from server import wait_until

SPAN_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True)
class Span:
    """A span with what tests look at."""

    name: str
    trace: str
    number: str
    parent: str
    state: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[str]
    resource: dict[str, Any]
    scope: str


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes by name, as text or number."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
        for pair in pairs
    }


def spans_in(message: bytes) -> Iterator[Span]:
    """The spans of a message."""
    for of_resource in ExportTraceServiceRequest.FromString(message).resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    number=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    state=span.trace_state,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=attributes_of(span.attributes),
                    events=[event.name for event in span.events],
                    resource=attributes_of(of_resource.resource.attributes),
                    scope=of_scope.scope.name,
                )


class Collector:
    """The spans that were received, in batches, and the headers that came with them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.batches: list[list[Span]] = []
        self.headers: list[dict[str, str]] = []

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for batch in list(self.batches) for span in batch]

    def wait_for(self, count: int) -> list[Span]:
        """Waits until this number of spans is there."""
        enough = lambda: len(self.spans()) >= count  # noqa: E731
        wait_until(enough, SPAN_SECONDS_MAX, f"{count} spans are received")
        return self.spans()


@contextlib.contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """A collector that responds with this status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status == 200:
                collector.headers.append({"path": self.path, **dict(self.headers)})
                collector.batches.append(list(spans_in(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
