"""Contains one test for each way in which hostile input once cost more than it may.

Each test ends with a running server, a good response and nearly unchanged memory; see
`resilience.unharmed`. The tests about connections are in `test_hardening_connections.py`.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import pathlib
import shutil
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from conftest import StartServer
from raw_http import Connection, post
from resilience import (
    GOOD_MODEL,
    GOOD_REQUEST,
    MEBIBYTE,
    TEXT_BYTES_MAX,
    check_refused,
    grpc_stub,
    infer_message,
    refusal,
    unharmed,
    write_identity,
)
from server import HEADER_LENGTH, Reply, Server, wait_until

pytestmark = pytest.mark.galatea_only

EXPLICIT = "--model-control-mode=explicit"

#: A model of the repository that is not loaded.
SPARE_MODEL = "spare"

#: Warmup that takes minutes.
LONG_WARMUP = """
model_warmup {
  name: "long" batch_size: 1 count: 60000
  inputs { key: "ROUNDS" value { data_type: TYPE_INT64 dims: [ 1 ] input_data_file: "rounds" } }
}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository for clients that load models."""
    path = tmp_path_factory.mktemp("explicit")
    write_identity(path, GOOD_MODEL)
    write_identity(path, SPARE_MODEL)
    write_identity(path, "sequences", "sequence_batching { direct { } }")
    return path


@pytest.fixture(scope="module")
def explicit(start_server: StartServer, repository: pathlib.Path) -> Iterator[Server]:
    """A server on which clients load models. One model is served from the start."""
    with start_server(repository, EXPLICIT, f"--load-model={GOOD_MODEL}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def identity_config(name: str) -> dict[str, Any]:
    """The configuration of an identity model, as JSON."""
    tensor = {"data_type": "TYPE_INT32", "dims": [-1]}
    return {
        "name": name,
        "backend": "identity",
        "max_batch_size": 8,
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
    }


def load(server: Server, model: str, parameters: dict[str, Any] | None = None) -> Reply:
    """Requests a load over HTTP."""
    body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
    name = urllib.parse.quote(model, safe="")
    return server.request("POST", f"/v2/repository/models/{name}/load", body)


def unload(server: Server, model: str) -> Reply:
    """Requests an unload over HTTP."""
    return server.request("POST", f"/v2/repository/models/{model}/unload", b"")


def check_bad_request(reply: Reply, text: str) -> None:
    """The response is 400 with a short text that contains `text`."""
    assert reply.status == 400, reply.body[:1000]
    assert text in reply.error()
    assert len(reply.body) < TEXT_BYTES_MAX


def body_with(shape: bytes) -> bytes:
    """A request of at most 38 MiB with this shape."""
    return (
        b'{"inputs":[{"name":"INPUT0","datatype":"INT32","data":[7],"shape":[' + shape + b"]}]}"
    )


# Finding 2: memory use far beyond the size of the body.


@pytest.mark.parametrize("dim", [b"2,", b"1,"], ids=["overflow", "ones"])
def test_dims_over_http_are_counted_before_they_are_collected(server: Server, dim: bytes) -> None:
    """38 MiB of dimensions used 1.4 GiB, and were returned in the error."""
    with unharmed(server, peak_mebibytes=160):
        reply = server.infer(GOOD_MODEL, body_with(dim * (19 * MEBIBYTE) + b"1"))
        check_bad_request(reply, "shape has more than 256 dimensions")


def test_dims_over_grpc_are_counted_before_they_are_collected(server: Server) -> None:
    """A packed dimension takes one byte."""
    message = infer_message(shape=[1] * (8 * MEBIBYTE))
    with grpc_stub(server) as stub, unharmed(server, peak_mebibytes=64):
        check_refused(stub.ModelInfer, message, "shape has more than 256 dimensions")


def test_parameters_over_http_are_counted(server: Server) -> None:
    """It used eleven times the size of the body."""
    parameters = b",".join(b'"%d":0' % number for number in range(2_000_000))
    body = b'{"parameters":{' + parameters + b"}," + json.dumps(GOOD_REQUEST).encode()[1:]
    with unharmed(server, peak_mebibytes=160):
        reply = server.infer(GOOD_MODEL, body)
        check_bad_request(reply, "request has more than 65536 parameters")


@pytest.mark.parametrize("place", ["request", "input", "output"])
def test_parameters_over_grpc_are_counted_everywhere(server: Server, place: str) -> None:
    """The dimensions of an input were not limited."""
    message = infer_message()
    holder = {"request": message, "input": message.inputs[0], "output": message.outputs.add()}
    for number in range(400_000):
        holder[place].parameters[str(number)].bool_param = True
    with grpc_stub(server) as stub, unharmed(server, peak_mebibytes=96):
        check_refused(stub.ModelInfer, message, "request has more than 65536 parameters")


def test_strings_over_grpc_have_no_number(server: Server) -> None:
    """They are sent as a list and as raw contents. As in Triton, memory is their limit."""
    count = (1 << 22) + 1
    listed = infer_message(datatype="BYTES", shape=[1, count])
    listed.model_name = "identity_bytes"
    raw = service_pb2.ModelInferRequest()
    raw.CopyFrom(listed)
    raw.raw_input_contents[0] = bytes(4 * count)
    del listed.raw_input_contents[:]
    listed.inputs[0].contents.bytes_contents.extend([b""] * count)
    with grpc_stub(server) as stub, unharmed(server, peak_mebibytes=192):
        for message in (listed, raw):
            response = stub.ModelInfer(message, timeout=60)
            assert len(response.raw_output_contents[0]) == 4 * count


def test_long_names_are_not_repeated(server: Server) -> None:
    """A name of 16 MiB was returned, and was compared and copied on the way."""
    name = "n" * (16 * MEBIBYTE)
    tensor = GOOD_REQUEST["inputs"][0]
    with grpc_stub(server) as stub, unharmed(server, peak_mebibytes=160):
        reply = server.infer(GOOD_MODEL, {"inputs": [{**tensor, "name": name}]})
        check_bad_request(reply, "input name of 16777216 bytes is longer than 4096 bytes")
        reply = server.infer(GOOD_MODEL, {**GOOD_REQUEST, "outputs": [{"name": name}]})
        check_bad_request(reply, "output name of 16777216 bytes is longer than 4096 bytes")
        reply = server.infer(GOOD_MODEL, {**GOOD_REQUEST, "parameters": {name: 1}})
        check_bad_request(reply, "parameter name of 16777216 bytes is longer than 4096 bytes")
        check_refused(stub.ModelInfer, infer_message(name=name), "input name of 16777216 bytes")
        unknown = infer_message()
        unknown.model_name = name
        check_refused(stub.ModelInfer, unknown, "model name of 16777216 bytes")
        wrong_type = infer_message(datatype=name)
        error = refusal(stub.ModelInfer, wrong_type)
        assert len(error.details()) < TEXT_BYTES_MAX


def test_thousands_of_long_names_are_compared_once(server: Server) -> None:
    """4,096 inputs with long names that differ only at the end."""
    tensor = GOOD_REQUEST["inputs"][0]
    inputs = [{**tensor, "name": f"{'n' * 4000}{number}"} for number in range(4096)]
    with unharmed(server, peak_mebibytes=160):
        reply = server.infer(GOOD_MODEL, {"inputs": inputs})
        check_bad_request(reply, "expected 1 inputs but got 4096 inputs")


def test_typed_contents_take_no_more_than_their_tensor(server: Server) -> None:
    """One byte on the wire is eight bytes in memory, and growing lists would double that."""
    message = infer_message()
    del message.raw_input_contents[:]
    message.inputs[0].contents.int64_contents.extend([1] * (8 * MEBIBYTE))
    with grpc_stub(server) as stub, unharmed(server, peak_mebibytes=112):
        check_refused(stub.ModelInfer, message, "of type 'INT64', expected datatype 'INT32'")


# Finding 3: failed loads of new names.


def open_descriptors(server: Server) -> int:
    """The number of file descriptors that the process has open."""
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def index(server: Server) -> dict[str, dict[str, Any]]:
    """The repository index by name."""
    reply = server.request("POST", "/v2/repository/index", b"")
    return {entry["name"]: entry for entry in reply.json()}


def failing_load(server: Server, name: str) -> Reply:
    """Loads a model with files that no backend can load."""
    config = json.dumps({"name": name, "backend": "onnxruntime"})
    content = base64.b64encode(b"not a model").decode()
    return load(server, name, {"config": config, "file:1/model.onnx": content})


def test_failed_loads_keep_neither_directories_nor_descriptors(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """232 of them used up the descriptors of a server with a limit of 256."""
    environment = {"TMPDIR": str(tmp_path)}
    flags = (EXPLICIT, f"--load-model={GOOD_MODEL}")
    with start_server(repository, *flags, environment=environment) as server:
        server.wait_until_ready()
        with unharmed(server):
            # The first ones open files that stay open, such as the backend's library.
            for number in range(5):
                check_bad_request(failing_load(server, f"new_{number}"), "load failed for model")
            before = open_descriptors(server)
            for number in range(100):
                check_bad_request(failing_load(server, f"new_{number}"), "load failed for model")
            wait_until(
                lambda: open_descriptors(server) < before + 10 and not list(tmp_path.iterdir()),
                20,
                "descriptors are closed and directories are removed",
            )
            # As in Triton, the server isn't ready while a model has failed, ...
            assert server.get("/v2/health/ready").status == 400
            # ... and clients that ask for the reason get it.
            failed = {name: entry for name, entry in index(server).items() if "new_" in name}
            assert len(failed) == 100
            assert {entry["state"] for entry in failed.values()} == {"UNAVAILABLE"}
            assert all(entry["reason"] for entry in failed.values())
            for name in failed:
                assert unload(server, name).status == 200
            assert server.get("/v2/health/ready").status == 200
            assert not any("new_" in name for name in index(server))


# Finding 4: diagnostics of a configuration.


@pytest.mark.parametrize("field", ["input", "batch_input", "unknown"])
def test_mistakes_of_a_configuration_are_shown_up_to_a_number(
    explicit: Server, field: str
) -> None:
    """1.1 MiB of inputs without names caused 76 MiB of errors."""
    text = json.dumps(identity_config(SPARE_MODEL))[:-1]
    members = {
        "input": '"input":[' + ",".join(['{"optional":false}'] * 60_000) + "]",
        "batch_input": '"batch_input":[' + ",".join(['{"target_name":[]}'] * 60_000) + "]",
        "unknown": ",".join(f'"field_{number}":0' for number in range(100_000)),
    }
    config = f"{text},{members[field]}}}"
    logged = len(explicit.log())
    with unharmed(explicit, peak_mebibytes=192):
        reply = load(explicit, SPARE_MODEL, {"config": config})
        assert reply.status in (400, 500)
        assert len(reply.body) < TEXT_BYTES_MAX
        shown = explicit.log()[logged:]
        assert "more errors are not shown" in shown
        assert len(shown) < 4 * TEXT_BYTES_MAX


def test_configurations_have_a_size(explicit: Server) -> None:
    """Empty objects take three bytes of text and hundreds of bytes in memory."""
    text = json.dumps(identity_config(SPARE_MODEL))[:-1]
    with unharmed(explicit, peak_mebibytes=256):
        for count, expected in ((10_000_000, "at most 4194304 are read"), (1_000_000, "objects")):
            config = f'{text},"batch_input":[{",".join(["{}"] * count)}]}}'
            logged = len(explicit.log())
            reply = load(explicit, SPARE_MODEL, {"config": config})
            assert reply.status in (400, 500)
            assert expected in explicit.log()[logged:]
            assert len(reply.body) < TEXT_BYTES_MAX


@pytest.mark.parametrize("parameter", ["batch_padding", "batch_padding_outputs"])
def test_names_of_padding_are_not_repeated_by_each_error(explicit: Server, parameter: str) -> None:
    """Each error quoted the whole list, which added up to gigabytes for a list of 175 KiB."""
    config = identity_config(SPARE_MODEL) | {"max_batch_size": 8, "dynamic_batching": {}}
    names = ",".join(f"n{number}=0" for number in range(100_000))
    lists = {"batch_padding": "INPUT0=0", parameter: names}
    config["parameters"] = {key: {"string_value": text} for key, text in lists.items()}
    with unharmed(explicit, peak_mebibytes=64):
        reply = load(explicit, SPARE_MODEL, {"config": json.dumps(config)})
        assert reply.status in (400, 500)
        assert len(reply.body) < TEXT_BYTES_MAX


# Finding 7: warmup.


def warmup_config(name: str, sample: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an identity model with a warmup sample."""
    tensor = {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}
    whole = {"name": "sample", "batch_size": 1, "inputs": {"INPUT0": tensor}, **sample}
    return {**identity_config(name), "model_warmup": [whole]}


def test_warmup_is_bounded(explicit: Server) -> None:
    """4,294,967,295 executions never ended, on one of the four threads that load models."""
    with unharmed(explicit):
        for _ in range(8):
            config = json.dumps(warmup_config(SPARE_MODEL, {"count": 4_294_967_295}))
            reply = load(explicit, SPARE_MODEL, {"config": config})
            check_bad_request(reply, "warmup samples are executed more than 65536 times")
        huge = {"data_type": "TYPE_INT32", "dims": [1 << 31], "random_data": True}
        config = json.dumps(warmup_config(SPARE_MODEL, {"inputs": {"INPUT0": huge}}))
        check_bad_request(load(explicit, SPARE_MODEL, {"config": config}), "2147483648 bytes")
        config = json.dumps(warmup_config(SPARE_MODEL, {"count": 3}))
        assert load(explicit, SPARE_MODEL, {"config": config}).status == 200
        assert unload(explicit, SPARE_MODEL).status == 200


def copy_slow_model(models: pathlib.Path, repository: pathlib.Path, name: str) -> None:
    """Writes a model that warms up for minutes."""
    shutil.copytree(models / "onnx_slow", repository / name)
    config = repository / name / "config.pbtxt"
    config.write_text(config.read_text().replace('"onnx_slow"', f'"{name}"') + LONG_WARMUP)
    (repository / name / "warmup").mkdir()
    (repository / name / "warmup" / "rounds").write_bytes((100).to_bytes(8, "little"))


def test_warmup_ends_with_an_unload(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """There are more long warmups than threads that load models, and unloads end them."""
    names = [f"slow_{number}" for number in range(6)]
    shutil.copytree(models / GOOD_MODEL, tmp_path / GOOD_MODEL)
    for name in names:
        copy_slow_model(models, tmp_path, name)
    with start_server(tmp_path, EXPLICIT, f"--load-model={GOOD_MODEL}") as server:
        server.wait_until_ready()
        with unharmed(server), concurrent.futures.ThreadPoolExecutor(2 * len(names)) as pool:
            loads = [pool.submit(load, server, name) for name in names]
            wait_until(lambda: server.log().count("loading: slow_") >= 4, 60, "warmups run")
            # A load that comes after its model's unload starts a warmup again. Loads without a
            # thread end after those that have one.
            while not all(one.done() for one in loads):
                for reply in pool.map(lambda name: unload(server, name), names):
                    assert reply.status == 200
            for one in loads:
                assert one.result().status in (200, 400)


# Finding 8: slow calls on one connection.


# row: GRPC-22
def test_slow_loads_leave_threads_for_others(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """1,500 loads on one connection used 524 threads, and the index timed out."""
    shutil.copytree(models / GOOD_MODEL, tmp_path / GOOD_MODEL)
    copy_slow_model(models, tmp_path, "slow")
    with start_server(tmp_path, EXPLICIT, f"--load-model={GOOD_MODEL}") as server:
        server.wait_until_ready()
        threads = pathlib.Path(f"/proc/{server.process.pid}/task")
        with unharmed(server), grpc_stub(server) as stub:
            message = service_pb2.RepositoryModelLoadRequest(model_name="slow")
            calls = [stub.RepositoryModelLoad.future(message) for _ in range(1500)]
            wait_until(lambda: "loading: slow:1" in server.log(), 60, "a load is under way")
            # It is on the same connection, after all of them.
            index_message = service_pb2.RepositoryIndexRequest()
            assert len(stub.RepositoryIndex(index_message, timeout=30).models) == 2
            assert index(server)["slow"]["state"] == "LOADING"
            assert len(list(threads.iterdir())) < 150
            for call in calls:
                call.cancel()
            stub.RepositoryModelUnload(
                service_pb2.RepositoryModelUnloadRequest(model_name="slow"), timeout=60
            )


# Finding 9: names of models.


# row: PREP-10
def test_names_have_one_grammar(explicit: Server, repository: pathlib.Path) -> None:
    """Loads with files accepted any name of up to 4 MiB, and the metrics grew with it."""
    for name in (" blank", "back\\slash"):
        write_identity(repository, name)
    files = {"1/model": b""}
    with grpc_stub(explicit) as stub, unharmed(explicit):
        metrics = len(explicit.metrics())

        def message(name: str, with_files: bool) -> service_pb2.RepositoryModelLoadRequest:
            request = load_message(files) if with_files else load_message({})
            request.model_name = name
            request.parameters["config"].string_param = json.dumps(identity_config(name))
            return request

        for name in ("x" * 256, "x" * 4 * MEBIBYTE, "a\nb", "a\u0085b", "a\0b"):
            for with_files in (True, False):
                check_refused(
                    stub.RepositoryModelLoad, message(name, with_files), "invalid model name"
                )
        for name in (" x", "x "):
            check_refused(stub.RepositoryModelLoad, message(name, True), "invalid model name")
        for name in ("..", " .. ", "a/b", "../../x"):
            check_refused(stub.RepositoryModelLoad, message(name, True), "path traversal")
        for name in ("", "  "):
            check_refused(stub.RepositoryModelLoad, message(name, True), "cannot be empty")
        # Directories with odd names are served, as in Triton.
        for name in (" blank", "back\\slash"):
            stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name))
            ready = stub.ModelReady(service_pb2.ModelReadyRequest(name=name))
            assert ready.ready
            stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=name))
        assert len(explicit.metrics()) < metrics + 20_000


# Finding 10: files that come with a load.


def load_message(files: dict[str, bytes]) -> service_pb2.RepositoryModelLoadRequest:
    """A load over gRPC with files."""
    message = service_pb2.RepositoryModelLoadRequest(model_name="overlaid")
    message.parameters["config"].string_param = json.dumps(identity_config("overlaid"))
    for path, content in files.items():
        message.parameters[f"file:{path}"].bytes_param = content
    return message


def test_files_over_grpc_have_the_size_of_those_over_http(explicit: Server) -> None:
    """A file of 300 MiB was read before it was refused."""
    message = load_message({"1/model": bytes(300 * MEBIBYTE)})
    with grpc_stub(explicit) as stub, unharmed(explicit, peak_mebibytes=32):
        check_refused(stub.RepositoryModelLoad, message, "--http-max-input-size")
        stub.RepositoryModelLoad(load_message({"1/model": bytes(MEBIBYTE)}))
        assert unload(explicit, "overlaid").status == 200


def test_the_number_and_depth_of_files_are_limited(explicit: Server) -> None:
    """300,000 empty files took ten seconds, and each created one or more directories."""
    many = {f"1/{number}": b"" for number in range(300_000)}
    deep = {"/".join("d" * 17) + "/f": b""}
    with grpc_stub(explicit) as stub, unharmed(explicit, peak_mebibytes=128):
        check_refused(stub.RepositoryModelLoad, load_message(many), "more than 4096 files")
        check_refused(stub.RepositoryModelLoad, load_message(deep), "more than 16 directories")
        encoded = {f"file:{path}": "" for path in many}
        check_bad_request(load(explicit, "overlaid", encoded), "more than 4096 files")
        encoded = {f"file:{path}": "" for path in deep}
        check_bad_request(load(explicit, "overlaid", encoded), "more than 16 directories")


# Finding 12: files of tensors.


@pytest.mark.parametrize("kind", ["warmup", "initial_state"])
@pytest.mark.parametrize("datatype", ["TYPE_INT32", "TYPE_STRING"])
def test_sparse_files_of_tensors_are_not_read_whole(
    explicit: Server, repository: pathlib.Path, kind: str, datatype: str
) -> None:
    """A file of 3 GiB without a block on disk, for a tensor of four bytes."""
    name = f"sparse_{kind}_{datatype.lower()}"
    tensor = f"data_type: {datatype} dims: [ 1 ]"
    sample = f'inputs {{ key: "INPUT0" value: {{ {tensor} input_data_file: "big" }} }}'
    state = (
        'input_name: "S" output_name: "T" '
        f"{tensor} initial_state {{ name: \"first\" {tensor} data_file: \"big\" }}"
    )
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        f'backend: "identity" max_batch_size: 8 input {{ name: "INPUT0" {tensor} }} '
        f'output {{ name: "OUTPUT0" {tensor} }} '
        + (
            f'model_warmup {{ name: "s" batch_size: 1 {sample} }}'
            if kind == "warmup"
            else f"sequence_batching {{ state {{ {state} }} }}"
        )
    )
    (folder / kind).mkdir()
    with (folder / kind / "big").open("wb") as big:
        big.truncate(3 << 30)
    with unharmed(explicit, peak_mebibytes=64):
        reply = load(explicit, name)
        if datatype == "TYPE_INT32":
            # As in Triton, the tensor is the beginning of a long file.
            assert reply.status == 200, reply
        else:
            check_bad_request(reply, "3221225472 bytes")
        assert unload(explicit, name).status == 200


# Finding 13: lines of the log.


def test_log_lines_can_not_be_forged_by_unicode(explicit: Server) -> None:
    """Characters that end a line or reverse the text direction, in addition to the control
    characters."""
    deceptive = "\u2028E1121 forged\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    config = json.dumps({"name": f"x{deceptive}", "backend": "identity"})
    with unharmed(explicit):
        assert load(explicit, SPARE_MODEL, {"config": config}).status >= 400
        with grpc_stub(explicit) as stub:
            refusal(
                stub.RepositoryModelLoad,
                service_pb2.RepositoryModelLoadRequest(model_name=f"y{deceptive}"),
            )
        log = explicit.log()
        assert "\\u2028E1121 forged\\u2029\\u202A" in log
        assert not set(deceptive[14:]) & set(log)
        assert "\u2028" not in log


def test_the_log_repeats_a_bounded_part_of_a_request(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """An ID of 8 MiB became 48 or 90 MiB of the log."""
    flags = (EXPLICIT, f"--load-model={GOOD_MODEL}", "--log-verbose=2")
    with start_server(repository, *flags) as server:
        server.wait_until_ready()
        with unharmed(server, peak_mebibytes=128):
            before = len(server.log())
            document = {**GOOD_REQUEST, "id": "\u202e\x01" * (4 * MEBIBYTE)}
            document["inputs"] = [{**GOOD_REQUEST["inputs"][0], "shape": [9, 1], "data": [7] * 9}]
            reply = server.infer(GOOD_MODEL, json.dumps(document, ensure_ascii=False).encode())
            assert reply.status == 400
            assert len(reply.body) < 8 * TEXT_BYTES_MAX
            assert len(server.log()) - before < 20 * TEXT_BYTES_MAX


# Finding 18: input with two meanings.


def test_two_lengths_of_the_json_are_refused(server: Server) -> None:
    """The first one was used, but another reader might use the second."""
    body = json.dumps(GOOD_REQUEST).encode()
    path = f"/v2/models/{GOOD_MODEL}/infer"
    right, wrong = f"{HEADER_LENGTH}: {len(body)}", f"{HEADER_LENGTH}: 0"
    with unharmed(server):
        # Different code parses many headers than a few.
        for others in ([], [f"x-{number}: 1" for number in range(40)]):
            for headers, status in (
                ([right, wrong], 400),
                ([wrong, right], 400),
                ([right, right, wrong], 400),
                ([right, right], 200),
            ):
                with Connection(server) as connection:
                    connection.send(post(path, body, *headers, *others))
                    response = connection.read_response()
                    assert response is not None and response[0] == status, response


def test_surplus_raw_contents_are_refused(server: Server) -> None:
    """They were ignored."""
    message = infer_message()
    message.raw_input_contents.append(b"\0\0\0\0")
    with grpc_stub(server) as stub, unharmed(server):
        text = f"unexpected additional input data for model '{GOOD_MODEL}'"
        check_refused(stub.ModelInfer, message, text)


# Finding 20: other clients' sequences.


def test_the_scheduler_page_shows_no_correlation_ids(explicit: Server) -> None:
    """With another client's ID, anyone could take part in its sequence."""
    secret = 8_675_309_123_456_789
    parameters = {"sequence_id": secret, "sequence_start": True}
    with unharmed(explicit):
        assert load(explicit, "sequences").status == 200
        reply = explicit.infer("sequences", {**GOOD_REQUEST, "parameters": parameters})
        assert reply.status == 200, reply
        page = explicit.get("/v2/models/sequences/scheduler")
        assert page.json()["sequences"]["taken_slots"] >= 1
        assert str(secret) not in page.body.decode()
        parameters = {"sequence_id": secret, "sequence_end": True}
        explicit.infer("sequences", {**GOOD_REQUEST, "parameters": parameters})
        assert unload(explicit, "sequences").status == 200


# Finding 21: what errors reveal about the server.


def test_load_errors_name_neither_directories_nor_the_process(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The name of a directory for files that came with a load contained the process ID."""
    environment = {"TMPDIR": str(tmp_path)}
    flags = (EXPLICIT, f"--load-model={GOOD_MODEL}")
    with start_server(repository, *flags, environment=environment) as server:
        server.wait_until_ready()
        process = str(server.process.pid)
        broken = repository / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "config.pbtxt").write_text("max_batchsize: 1")
        with unharmed(server):
            replies = [failing_load(server, "new"), load(server, "broken")]
            replies.append(load(server, "missing", {"file:1/x": "AAAA"}))
            config = json.dumps({"name": "m", "backend": "onnxruntime"})
            replies.append(load(server, "m", {"config": config, "file:1/other": "AAAA"}))
            texts = [reply.error() for reply in replies]
            texts += [entry.get("reason", "") for entry in index(server).values()]
            for text in texts:
                assert str(tmp_path) not in text
                assert str(repository) not in text
                assert process not in text, text
        shutil.rmtree(broken)
