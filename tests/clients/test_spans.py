"""Tests of traces as spans, received by an OpenTelemetry collector."""

from __future__ import annotations

import json
import pathlib
import socket
import ssl
from collections.abc import Sequence

import numpy
import pytest
import tritonclient.grpc

from collector import Collector, Span, collecting
from compiling import compile_library
from conftest import ROOT, StartServer
from server import Server, wait_until
from tls_files import Authority, Identity
from test_tracing import DOOR_POINTS, MODEL, REQUEST, infer, repository  # noqa: F401
from transports import RESPONSE_SECONDS_MAX, TRANSPORTS, make_inputs

PARENT_TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT_SPAN = "b7ad6b7169203331"
PARENT = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01"


def flags(collector: Collector, *settings: str) -> list[str]:
    """The flags of a server that traces every request, and sends spans immediately."""
    given = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=1",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,bsp_schedule_delay=10",
        *settings,
    )
    return [f"--trace-config={setting}" for setting in given]


def named(spans: Sequence[Span], name: str) -> Span:
    """The only span with this name."""
    (found,) = (span for span in spans if span.name == name)
    return found


@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
# row: OTEL-06
def test_the_spans_of_a_request(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
    transport: str,
) -> None:
    """The client's request, the model and its execution, with their times as events."""
    with collecting() as collector, start_server(repository, *flags(collector)) as server:
        client = TRANSPORTS[transport](server.wait_until_ready())
        tensors = {"INPUT0": numpy.array([[1, 2]], numpy.int32)}
        client.infer("first", tensors, request_id="r")
        client.close()
        spans = collector.wait_for(3)
    root, model, compute = (named(spans, name) for name in ("InferRequest", "first", "compute"))
    assert (root.parent, model.parent, compute.parent) == ("", root.number, model.number)
    assert {span.trace for span in spans} == {root.trace}
    door = DOOR_POINTS["http" if transport == "http" else "grpc"]
    assert sorted(root.events) == sorted([*door, "INFER_RESPONSE_COMPLETE"])
    assert model.events == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    points = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert compute.events == points
    assert root.start <= model.start <= compute.start <= compute.end <= model.end <= root.end
    assert model.attributes == {
        "triton.model_name": "first",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert root.resource["service.name"] == "triton-inference-server"
    assert root.scope == "triton-server"


# row: OTEL-06
def test_steps_of_ensembles_are_spans_in_it(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Each with its execution."""
    with collecting() as collector, start_server(repository, *flags(collector)) as server:
        infer(server.wait_until_ready(), "both")
        spans = collector.wait_for(6)
    ensemble = named(spans, "both")
    assert ensemble.parent == named(spans, "InferRequest").number
    for step in ("first", "second"):
        span = named(spans, step)
        assert span.parent == ensemble.number
        assert span.attributes["triton.trace_parent_id"] == ensemble.attributes["triton.trace_id"]
    executions = [span.parent for span in spans if span.name == "compute"]
    assert sorted(executions) == sorted(named(spans, step).number for step in ("first", "second"))


#: The example that returns its inputs, which reports activities and the context it has.
SPEAKING = """
#include <stdlib.h>
#include "triton/core/tritonbackend.h"
#define TRITONBACKEND_ModelInstanceExecute answer
#include "identity.c"
#undef TRITONBACKEND_ModelInstanceExecute
TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  TRITONSERVER_InferenceTrace* trace;
  const char* context;
  TRY(TRITONBACKEND_RequestTrace(requests[0], &trace));
  if (trace != NULL) {
    TRY(TRITONSERVER_InferenceTraceContext(trace, &context));
    char* copy = strdup(context);
    TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "WORK_START"));
    TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), copy));
    TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "WORK_END"));
    free(copy);
  }
  return answer(instance, requests, count);
}
"""


# row: BAPI-15 OTEL-10
def test_activities_of_backends_are_spans(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A backend can also read the context of its request's span."""
    model = tmp_path / "models" / "first"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(MODEL.replace('"identity"', '"speaking"'))
    source = tmp_path / "speaking.c"
    source.write_text(SPEAKING)
    compile_library(source, model / "libtriton_speaking.so")
    with collecting() as collector:
        with start_server(tmp_path / "models", *flags(collector)) as server:
            send_http(server.wait_until_ready(), {"traceparent": PARENT, "tracestate": "a=b"})
            spans = collector.wait_for(4)
    work, request = named(spans, "WORK"), named(spans, "first")
    # The activities come before the backend reports its execution.
    assert work.parent == request.number
    assert [work.events[0], work.events[-1]] == ["WORK_START", "WORK_END"]
    context = {"traceparent": f"00-{PARENT_TRACE}-{request.number}-01", "tracestate": "a=b"}
    assert json.loads(work.events[1]) == context


@pytest.mark.galatea_only
# row: BE-01
def test_activities_of_the_identity_backend(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """One span, one event, and nested spans, with Triton's names."""
    model = tmp_path / "models" / "first"
    (model / "1").mkdir(parents=True)
    given = {"enable_custom_tracing": "true", "nested_span_count": "3",
             "single_activity_frequency": "2"}
    parameters = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in given.items()
    )
    (model / "config.pbtxt").write_text(MODEL + parameters)
    with collecting() as collector:
        with start_server(tmp_path / "models", *flags(collector)) as server:
            infer(server.wait_until_ready())
            spans = collector.wait_for(7)
    request, alone = named(spans, "first"), named(spans, "CUSTOM_ACTIVITY")
    assert alone.parent == request.number
    assert "CUSTOM_SINGLE_ACTIVITY" in request.events
    outer = request
    for number in range(3):
        inner = named(spans, f"CUSTOM_ACTIVITY{number}")
        assert inner.parent == outer.number
        expected = [f"CUSTOM_ACTIVITY{number}_START", f"CUSTOM_ACTIVITY{number}_END"]
        if number % 2 == 0:
            expected.insert(1, "CUSTOM_SINGLE_ACTIVITY")
        assert inner.events == expected
        outer = inner


def test_calls_by_backends_are_spans_in_what_is_open(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A library calls another model, and reports when it does so."""
    library = tmp_path / "backends" / "tracing" / "libtriton_tracing.so"
    compile_library(ROOT / "tests" / "c_api" / "trace_points.c", library)
    for name in ("plain", "nested"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        config = MODEL.replace('"identity"', '"tracing"')
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    backends = f"--backend-directory={tmp_path / 'backends'}"
    with collecting() as collector:
        with start_server(tmp_path / "models", backends, *flags(collector)) as server:
            infer(server.wait_until_ready(), "nested")
            spans = collector.wait_for(5)
    outer, inner = named(spans, "nested"), named(spans, "plain")
    assert inner.parent == outer.number
    assert inner.attributes["triton.trace_parent_id"] == outer.attributes["triton.trace_id"]
    assert [event for event in outer.events if event in ("ask", "answer")] == ["ask", "answer"]
    executions = [span.parent for span in spans if span.name == "compute"]
    assert sorted(executions) == sorted((outer.number, inner.number))


def send_http(server: Server, headers: dict[str, str]) -> None:
    """A request over HTTP with headers."""
    body = json.dumps(REQUEST).encode()
    assert server.request("POST", "/v2/models/first/infer", body, headers).status == 200


def send_grpc(server: Server, headers: dict[str, str]) -> None:
    """The same over gRPC, with metadata."""
    tensors = {"INPUT0": numpy.array([[1, 2]], numpy.int32)}
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.infer("first", make_inputs(tritonclient.grpc, tensors), headers=headers)


@pytest.mark.parametrize("send", [send_http, send_grpc])
@pytest.mark.parametrize("settings", [["rate=0"], ["rate=1000"], ["rate=1", "count=1"]])
# row: OTEL-09
def test_requests_of_traced_clients_are_traced(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
    send: object,
    settings: list[str],
) -> None:
    """They are in the client's trace, whatever the rate and count are; others aren't."""
    assert callable(send)
    with collecting() as collector:
        with start_server(repository, *flags(collector, *settings)) as server:
            server.wait_until_ready()
            if "count=1" in settings:
                infer(server)
                collector.wait_for(3)
                collector.batches.clear()
            send(server, {})
            send(server, {"traceparent": "00-bad"})
            send(server, {"traceparent": PARENT, "tracestate": "a=b"})
        spans = collector.spans()
    assert sorted(span.name for span in spans) == ["InferRequest", "compute", "first"]
    assert {span.trace for span in spans} == {PARENT_TRACE}
    # Triton reads metadata past its end, so a trace state over gRPC is rarely valid.
    if not (server.is_triton and send is send_grpc):
        assert {span.state for span in spans} == {"a=b"}
    assert named(spans, "InferRequest").parent == PARENT_SPAN


def test_nothing_is_traced_while_the_level_is_off(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Not even traced clients have spans."""
    with collecting() as collector:
        flag = f"opentelemetry,url={collector.url}"
        settings = ["--trace-config=mode=opentelemetry", f"--trace-config={flag}"]
        with start_server(repository, *settings) as server:
            send_http(server.wait_until_ready(), {"traceparent": PARENT})
        assert collector.spans() == []


# row: OTEL-08
def test_spans_come_in_batches(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Full batches are sent at once, and the rest when the server stops."""
    settings = ["opentelemetry,bsp_schedule_delay=600000", "opentelemetry,bsp_max_export_batch_size=4"]
    with collecting() as collector:
        given = [flag for flag in flags(collector, *settings) if "delay=10" not in flag]
        with start_server(repository, *given) as server:
            infer(server.wait_until_ready(), count=3)
            assert len(collector.wait_for(8)) == 8
        assert [len(batch) for batch in collector.batches] == [4, 4, 1]


# row: OTEL-07
def test_what_goes_with_spans(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Attributes come from flags and the environment, and from headers."""
    environment = {
        "OTEL_RESOURCE_ATTRIBUTES": "zone=a,host=b",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret",
    }
    settings = ["opentelemetry,resource=service.name=mine", "opentelemetry,resource=host=c"]
    with collecting() as collector:
        given = flags(collector, *settings)
        with start_server(repository, *given, environment=environment) as server:
            infer(server.wait_until_ready())
            resource = collector.wait_for(3)[0].resource
    expected = {"service.name": "mine", "zone": "a", "host": "c"}
    assert {name: resource[name] for name in expected} == expected
    (headers,) = collector.headers
    assert headers["path"] == "/v1/traces"
    # Releases of Triton after 2.51 send the binary form too.
    form = "application/json" if server.is_triton else "application/x-protobuf"
    assert headers["content-type"] == form
    assert headers["api-key"] == "secret"


@pytest.mark.galatea_only
def test_a_collector_that_is_gone_harms_no_request(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """The log says that spans are lost."""
    with collecting() as collector:
        pass
    with start_server(repository, *flags(collector)) as server:
        infer(server.wait_until_ready(), count=5)
        failed = " spans to http://127.0.0.1:"
        wait_until(lambda: failed in server.log(), RESPONSE_SECONDS_MAX, "the log says so")
    assert server.process.returncode == 0


@pytest.mark.galatea_only
def test_a_collector_that_hangs_costs_memory_up_to_a_limit(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """Requests are served; spans without room are dropped, and the log says so."""
    big = {**REQUEST, "id": "x" * (1 << 20)}
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        collector = Collector(f"http://127.0.0.1:{hanging.getsockname()[1]}/")
        environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2s"}
        settings = ["opentelemetry,bsp_max_queue_size=100000"]
        given = flags(collector, *settings)
        with start_server(repository, *given, environment=environment) as server:
            server.wait_until_ready()
            for _ in range(80):
                assert server.infer("first", big).status == 200
            dropped = " were dropped so far"
            wait_until(lambda: dropped in server.log(), RESPONSE_SECONDS_MAX, "the log says so")
            late = "failed to send"
            wait_until(lambda: late in server.log(), RESPONSE_SECONDS_MAX, "a batch is given up")


@pytest.mark.galatea_only
def test_a_collector_that_refuses(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
) -> None:
    """The log contains its status."""
    with collecting(503) as collector, start_server(repository, *flags(collector)) as server:
        infer(server.wait_until_ready())
        refused = "the collector responded with 503"
        wait_until(lambda: refused in server.log(), RESPONSE_SECONDS_MAX, "the log says so")


@pytest.mark.galatea_only
@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b/"])
def test_collectors_that_cannot_be_reached_are_refused_at_start(
    start_server: StartServer, tmp_path: pathlib.Path, url: str
) -> None:
    """The error contains the option's name."""
    settings = ["--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={url}"]
    with start_server(tmp_path, *settings) as server:
        assert server.wait_for_exit() == 1
        assert 'Bad option: "--trace-config opentelemetry,url".' in server.log()
        assert f"Got {url}" in server.log()


@pytest.fixture(name="authority")
def fixture_authority(tmp_path: pathlib.Path) -> Authority:
    """Signs the certificates of a collector."""
    return Authority(tmp_path, "of the collector")


def tls_context(identity: Identity, clients: Authority | None = None) -> ssl.SSLContext:
    """A collector's TLS, which may require certificates that `clients` has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.file)
    return context


@pytest.mark.galatea_only
def test_spans_over_tls(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
    authority: Authority,
) -> None:
    """The collector's certificate is checked, and the server shows its own."""
    own = authority.issue("server")
    environment = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(own.certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(own.key),
    }
    context = tls_context(authority.issue("collector"), clients=authority)
    with collecting(tls=context) as collector:
        assert collector.url.startswith("https://")
        with start_server(repository, *flags(collector), environment=environment) as server:
            infer(server.wait_until_ready())
            assert len(collector.wait_for(3)) == 3


@pytest.mark.galatea_only
def test_a_collector_without_trust_gets_nothing(
    start_server: StartServer,
    repository: pathlib.Path,  # noqa: F811
    authority: Authority,
) -> None:
    """The log says why."""
    with collecting(tls=tls_context(authority.issue("collector"))) as collector:
        with start_server(repository, *flags(collector)) as server:
            infer(server.wait_until_ready())
            refused = "invalid peer certificate"
            wait_until(lambda: refused in server.log(), RESPONSE_SECONDS_MAX, "the log says why")
        assert collector.spans() == []


@pytest.mark.galatea_only
@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_certificates_that_are_none_are_refused_at_start(
    start_server: StartServer, tmp_path: pathlib.Path, content: str | None
) -> None:
    """The error contains the file's name."""
    file = tmp_path / "trusted.pem"
    if content is not None:
        file.write_text(content)
    settings = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=https://a"]
    environment = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(file)}
    with start_server(tmp_path, *settings, environment=environment) as server:
        assert server.wait_for_exit() == 1
        assert f"'{file}' can't be used for the collector: " in server.log()
