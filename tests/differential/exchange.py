"""Sends the cases to a server, and records its responses."""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import http.client
import json
import pathlib
import re
import sys
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from cases import UNSENT, Case  # noqa: E402
from metrics_cases import page  # noqa: E402
from serving import serving  # noqa: E402
from shared_memory_cases import RUN  # noqa: E402
from suites import SUITES, Suite  # noqa: E402

KEPT_HEADERS = [
    "content-type",
    "content-encoding",
    "accept-encoding",
    "inference-header-content-length",
]
#: Figures that differ from run to run, and the example parameters with each response of the
#: identity backend, which the goldens were recorded without.
MASKED_KEYS = {"ns", "last_inference", "param0", "param1", "param2", "param3"}
#: The same in a body, and what is left of an object that has no other member.
EXAMPLE = rb'"param0":"an example string parameter","param1":42,"param2":false,"param3":123.123'
EXAMPLES = re.compile(rb",?" + EXAMPLE + rb"(?=\})|" + EXAMPLE + rb",")
EMPTY = re.compile(rb'"parameters":\{\},?')


def masked(value: Any) -> Any:
    """The same JSON with masked values."""
    if isinstance(value, dict):
        parameters = value.get("parameters")
        if parameters and isinstance(parameters, dict) and MASKED_KEYS.issuperset(parameters):
            value = {k: v for k, v in value.items() if k != "parameters"}
        return {k: masked(v) for k, v in value.items() if k not in MASKED_KEYS}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def without_examples(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """A response's headers and body, as they would be without the example parameters."""
    shorter = EXAMPLES.sub(b"", body)
    if shorter == body:
        return headers, body
    shorter = EMPTY.sub(b"", shorter)

    def less(length: re.Match[str]) -> str:
        return str(int(length.group()) - (len(body) - len(shorter)))

    def of_json(name: str, value: str) -> str:
        length = {"inference-header-content-length": r".+", "content-type": r"(?<=-size=)\d+"}
        return re.sub(length[name], less, value) if name in length else value

    return {name: of_json(name, value) for name, value in headers.items()}, shorter


def body_parts(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A response's body as JSON, text, and base64 of the bytes after the JSON."""
    length = headers.get("inference-header-content-length")
    split = int(length) if length else len(body)
    text, rest = body[:split], body[split:]
    try:
        parts: dict[str, Any] = {"json": masked(json.loads(text))}
    except ValueError:
        parts = {"text": text.decode(errors="replace")}
    if rest:
        parts["binary"] = base64.b64encode(rest).decode()
    return parts


def inflated(coding: str, body: bytes) -> bytes:
    """A compressed body's contents; the encoding must match its name."""
    return zlib.decompress(body, wbits={"gzip": 31, "deflate": 15}[coding])


def send_request(connection: http.client.HTTPConnection, case: Case) -> None:
    """Sends a request with the case's headers, even if one has several values."""
    names = {name.lower() for name, _ in case.headers}
    connection.putrequest(
        case.method, case.path, skip_accept_encoding="accept-encoding" in names
    )
    if case.body or case.method == "POST":
        connection.putheader("Content-Length", str(len(case.body)))
    for name, value in case.headers:
        connection.putheader(name, value)
    connection.endheaders(case.body or None)


def over_http(address: str, case: Case) -> dict[str, Any]:
    """Sends one case over HTTP."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        send_request(connection, case)
        response = connection.getresponse()
        body = response.read()
        headers = {k.lower(): v for k, v in response.getheaders()}
        if "content-encoding" in headers:
            body = inflated(headers["content-encoding"], body)
        headers, body = without_examples(headers, body)
        # The type of an empty body has no meaning.
        kept = {k: headers[k] for k in KEPT_HEADERS if k in headers and body}
        reply = {"status": response.status, "headers": kept}
        if case.as_text:
            return reply | {"text": body.decode(errors="backslashreplace")}
        return reply | body_parts(headers, body)
    except (OSError, http.client.HTTPException) as error:
        return {"status": f"no response: {type(error).__name__}"}
    finally:
        connection.close()


def to_message(rpc: str, fields: Any) -> Any:
    """A request message of a gRPC case."""
    # Both kinds of inference use the same message.
    kind = getattr(service_pb2, f"{rpc.replace('Stream', '')}Request")

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return json_format.ParseDict(plain(fields), kind())


def to_document(message: Any) -> Any:
    """A response message as JSON."""
    return masked(json_format.MessageToDict(message, preserving_proto_field_name=True))


def over_grpc(channel: grpc.Channel, case: Case) -> dict[str, Any]:
    """Sends one case over gRPC."""
    response_kind = getattr(service_pb2, f"{case.rpc}Response")
    call = channel.unary_unary(
        f"/inference.GRPCInferenceService/{case.rpc}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response_kind.FromString,
    )
    try:
        response = call(to_message(case.rpc, case.message), metadata=case.metadata, timeout=60)
    except grpc.RpcError as error:
        return {"status": error.code().name, "text": error.details()}
    return {"status": "OK", "json": to_document(response)}


def over_stream(channel: grpc.Channel, case: Case) -> dict[str, Any]:
    """Sends one case as a stream, with all requests at once."""
    call = channel.stream_stream(
        f"/inference.GRPCInferenceService/{case.rpc}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    requests = [to_message(case.rpc, message) for message in case.messages or ()]
    result: dict[str, Any] = {"status": "OK", "responses": []}
    try:
        for response in call(iter(requests), metadata=case.metadata, timeout=60):
            result["responses"].append(to_document(response))
    except grpc.RpcError as error:
        result |= {"status": error.code().name, "text": error.details()}
    return result


def over_metrics(address: str, case: Case) -> dict[str, Any]:
    """Reads the metrics."""
    reply = over_http(address, case)
    return reply | {"text": page(reply["text"])}


def exchange(addresses: dict[str, str], cases: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Sends the cases to the addresses of the endpoints, in order."""
    with grpc.insecure_channel(addresses["grpc"]) as channel:

        def send(case: Case) -> dict[str, Any]:
            if case.messages is not None:
                return over_stream(channel, case)
            if case.path == "/metrics" and not case.door:
                return over_metrics(addresses["metrics"], case)
            if case.rpc:
                return over_grpc(channel, case)
            return over_http(addresses[case.door or "http"], case)

        return {case.name: send(case) for case in cases}


def responses_of(
    program: Sequence[str], suite: Suite, folder: pathlib.Path, is_triton: bool = False
) -> dict[str, dict[str, Any]]:
    """A server's responses to a suite; cases in `UNSENT` aren't sent to Triton."""
    models = folder / "models"
    suite.write_repository(models)
    cases = [case for case in suite.cases() if not (is_triton and case.ours in UNSENT)]
    command = [*program, *suite.flags, *(() if is_triton else suite.later_flags)]
    run = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        if suite.surroundings is not None:
            stack.enter_context(suite.surroundings(run))
            cases = [of_run(case, run) for case in cases]
        server = serving(command, models, suite.environment, is_triton)
        responses = exchange(stack.enter_context(server), cases)
    return json.loads(json.dumps(responses).replace(run, RUN))


def of_run(case: Case, run: str) -> Case:
    """The case with the run's own objects."""
    message = case.message and replaced(case.message, run)
    body = case.body.replace(RUN.encode(), run.encode())
    return dataclasses.replace(case, body=body, message=message)


def replaced(fields: dict[str, Any], run: str) -> dict[str, Any]:
    """The fields of a message, with the run's word in texts."""
    return {
        name: value.replace(RUN, run) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def record(program: pathlib.Path, suite: Suite, add: bool) -> None:
    """Records Triton's responses to a suite."""
    with tempfile.TemporaryDirectory() as folder:
        responses = responses_of([str(program)], suite, pathlib.Path(folder), is_triton=True)
    if add and suite.golden_path.exists():
        responses |= json.loads(suite.golden_path.read_text())
    suite.golden_path.write_text(json.dumps(responses, indent=1, sort_keys=True) + "\n")
    print(f"{len(responses)} responses written to {suite.golden_path}")


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triton", type=pathlib.Path, required=True, help="the server")
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("--add", action="store_true", help="keep the answers that are there")
    options = parser.parse_args()
    for name in options.suite or SUITES:
        record(options.triton, SUITES[name], options.add)


if __name__ == "__main__":
    main()
