"""Sends the cases to a server and writes down what it answered."""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import pathlib
import sys
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

from cases import CRASH, DTYPES, Case, all_cases  # noqa: E402

ONNX_MODELS = ["simple", "mlp", "simple_string", "autocomplete"]
KEPT_HEADERS = ["content-type", "inference-header-content-length"]
#: Figures that differ from run to run, and the example parameters that some releases of the
#: original's identity backend send with each response.
MASKED_KEYS = {"ns", "last_inference", "param0", "param1", "param2", "param3"}


def write_repository(root: pathlib.Path) -> None:
    """The models that the cases name."""
    import make_models

    for dtype in [*DTYPES, "bytes", "bf16"]:
        kind = "TYPE_STRING" if dtype == "bytes" else f"TYPE_{dtype.upper()}"
        directory = root / f"identity_{dtype}"
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / "config.pbtxt").write_text(
            f'backend: "identity"\nmax_batch_size: 8\n'
            f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
            f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
            f"instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n"
        )
    make_models.write_models(root, make_models.EXAMPLES, ONNX_MODELS)


def masked(value: Any) -> Any:
    """The same JSON without what is masked."""
    if isinstance(value, dict):
        return {k: masked(v) for k, v in value.items() if k not in MASKED_KEYS}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def body_parts(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A response's body as JSON, text and base64 of what follows the JSON."""
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


def over_http(address: str, case: Case) -> dict[str, Any]:
    """Sends one case over HTTP."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(case.method, case.path, case.body or None, dict(case.headers))
        response = connection.getresponse()
        body = response.read()
        headers = {k.lower(): v for k, v in response.getheaders()}
        # The type of an empty body says nothing.
        kept = {k: headers[k] for k in KEPT_HEADERS if k in headers and body}
        return {"status": response.status, "headers": kept} | body_parts(headers, body)
    except (OSError, http.client.HTTPException) as error:
        return {"status": f"no response: {type(error).__name__}"}
    finally:
        connection.close()


def to_message(rpc: str, fields: Any) -> Any:
    """A request message of a gRPC case."""
    # Both inferences take the same message.
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
        response = call(to_message(case.rpc, case.message), timeout=20)
    except grpc.RpcError as error:
        return {"status": error.code().name, "text": error.details()}
    return {"status": "OK", "json": to_document(response)}


def over_stream(channel: grpc.Channel, case: Case) -> dict[str, Any]:
    """Sends one case as a stream, all requests at once."""
    call = channel.stream_stream(
        f"/inference.GRPCInferenceService/{case.rpc}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    requests = [to_message(case.rpc, message) for message in case.messages or ()]
    answer: dict[str, Any] = {"status": "OK", "responses": []}
    try:
        for response in call(iter(requests), metadata=case.metadata, timeout=20):
            answer["responses"].append(to_document(response))
    except grpc.RpcError as error:
        answer |= {"status": error.code().name, "text": error.details()}
    return answer


def exchange(
    http_address: str, grpc_address: str, spare_original: bool = False
) -> dict[str, dict[str, Any]]:
    """Sends every case, in order; `spare_original` leaves out what crashes it."""
    with grpc.insecure_channel(grpc_address) as channel:

        def send(case: Case) -> dict[str, Any]:
            if case.messages is not None:
                return over_stream(channel, case)
            return over_grpc(channel, case) if case.rpc else over_http(http_address, case)

        return {
            case.name: send(case)
            for case in all_cases()
            if not (spare_original and case.ours == CRASH)
        }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    repository = commands.add_parser("repository", help="write the model repository")
    repository.add_argument("--output", type=pathlib.Path, required=True)
    record = commands.add_parser("record", help="write down a server's answers")
    record.add_argument("--http", required=True)
    record.add_argument("--grpc", required=True)
    record.add_argument("--output", type=pathlib.Path, required=True)
    record.add_argument("--add", action="store_true", help="keep the answers that are there")
    options = parser.parse_args()
    if options.command == "repository":
        write_repository(options.output)
        return
    answers = exchange(options.http, options.grpc, spare_original=True)
    if options.add:
        answers |= json.loads(options.output.read_text())
    options.output.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    print(f"{len(answers)} answers written to {options.output}")


if __name__ == "__main__":
    main()
