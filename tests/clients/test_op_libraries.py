"""Tests of libraries with operators for ONNX models: `model_operations` in a configuration.

The library is compiled with the system's C compiler, as users do it.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import grpc
import numpy
import onnx
import pytest
import tritonclient.grpc
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2, service_pb2_grpc

from compiling import compile_library
from conftest import StartServer
from server import Program, Reply, Server

SOURCE = pathlib.Path(__file__).with_name("operators") / "scale.c"
EXPLICIT = "--model-control-mode=explicit"
FIELD = "model_operations.op_library_filename"
SECONDS_MAX = 60

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }
"""


def compile_operators(library: pathlib.Path, *flags: str) -> pathlib.Path:
    """A library whose operator multiplies by two, or by the factor of a flag."""
    return compile_library(SOURCE, library, *flags)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory outside any repository, as an operator may have one."""
    folder = tmp_path_factory.mktemp("libraries")
    compile_operators(folder / "libscale.so")
    compile_operators(folder / "libno_entry.so", "-DNO_ENTRY")
    compile_operators(folder / "librefuses.so", "-DREFUSES")
    (folder / "libtext.so").write_text("no library")
    return folder


def onnx_model() -> bytes:
    """A model whose only operator comes from the library."""
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in "XY"]
    tensor[0].name, tensor[1].name = "IN", "OUT"
    node = helper.make_node("Scale", ["IN"], ["OUT"], domain="galatea.tests")
    graph = helper.make_graph([node], "scale", tensor[:1], tensor[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("galatea.tests", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def configuration(names: Sequence[object], more: str = "") -> str:
    """A configuration that the model completes."""
    operations = ", ".join(json.dumps(str(name)) for name in names)
    named = f"model_operations {{ op_library_filename: [ {operations} ] }}" if names else ""
    return f'backend: "onnxruntime" max_batch_size: 4 {named} {more}'


def write_model(
    repository: pathlib.Path, name: str, names: Sequence[object], more: str = ""
) -> pathlib.Path:
    """A model with these libraries."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.onnx").write_bytes(onnx_model())
    (repository / name / "config.pbtxt").write_text(configuration(names, more))
    return repository / name


def load(server: Server, model: str, parameters: dict[str, Any] | None = None) -> Reply:
    """Requests a load over HTTP."""
    body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
    return server.request("POST", f"/v2/repository/models/{model}/load", body)


def scaled(server: Server, model: str) -> list[float]:
    """The model's output for one, two and three."""
    tensor = {"name": "IN", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    reply = server.infer(model, {"inputs": [tensor]})
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"]


# row: CFG-18
def test_a_model_with_an_operator_of_a_library(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The model is completed, served and displayed, with several instances and another model."""
    library = libraries / "libscale.so"
    write_model(tmp_path, "completed", [library])
    group = "instance_group { count: 2 kind: KIND_CPU }"
    write_model(tmp_path, "complete", [library], TENSORS + group)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            for model in ("completed", "complete"):
                assert scaled(server, model) == [2, 4, 6]
                tensor = tritonclient.grpc.InferInput("IN", [2, 3], "FP32")
                tensor.set_data_from_numpy(numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
                response = client.infer(model, [tensor]).as_numpy("OUT")
                assert response.tolist() == [[0, 2, 4], [6, 8, 10]]
                shown = server.get(f"/v2/models/{model}/config").json()
                assert shown["model_operations"] == {"op_library_filename": [str(library)]}
                shown = client.get_model_config(model).config.model_operations
                assert list(shown.op_library_filename) == [str(library)]


def test_a_model_and_its_library_load_and_unload(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """A model loads completely after another one with the same library was unloaded."""
    write_model(tmp_path, "m", [libraries / "libscale.so"])
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        for _ in range(3):
            assert load(server, "m").status == 200
            assert scaled(server, "m") == [2, 4, 6]
            assert load(server, "m").status == 200
            assert scaled(server, "m") == [2, 4, 6]
            assert server.request("POST", "/v2/repository/models/m/unload", b"").status == 200


def test_where_libraries_are_found(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """Paths are relative to the server's working directory; names are left to the loader."""
    relative = os.path.relpath(libraries / "libscale.so", pathlib.Path.cwd())
    assert "/" in relative
    write_model(tmp_path, "relative", [relative])
    write_model(tmp_path, "by_the_loader", ["libscale.so"])
    known = os.environ.get("LD_LIBRARY_PATH")
    path = f"{libraries}:{known}" if known else str(libraries)
    with start_server(tmp_path, environment={"LD_LIBRARY_PATH": path}) as server:
        server.wait_until_ready()
        assert scaled(server, "relative") == [2, 4, 6]
        assert scaled(server, "by_the_loader") == [2, 4, 6]


@pytest.mark.galatea_only
def test_libraries_of_a_repository(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The model's own directory comes first, and links in it may lead anywhere."""
    repository = tmp_path / "models"
    model = write_model(repository, "own", ["libscale.so"])
    compile_operators(model / "libscale.so", "-DFACTOR=5")
    model = write_model(repository, "dotted", ["./1/ops.so"])
    compile_operators(model / "1" / "ops.so", "-DFACTOR=7")
    model = write_model(repository, "linked", ["ops.so"])
    (model / "ops.so").symlink_to("../own/libscale.so")
    model = write_model(repository, "outside", ["ops.so"])
    (model / "ops.so").symlink_to(libraries / "libscale.so")
    environment = {"LD_LIBRARY_PATH": str(libraries)}
    with start_server(repository, EXPLICIT, environment=environment) as server:
        server.wait_until_live()
        for name, factor in (("own", 5), ("dotted", 7), ("linked", 5)):
            assert load(server, name).status == 200
            assert scaled(server, name) == [factor, 2 * factor, 3 * factor]
        assert load(server, "outside").status == 200


def test_invalid_operator_libraries(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The load fails with the library and the reason, and the server continues to run."""
    cases = {
        "missing": (libraries / "libnone.so", "there is no '"),
        "missing_relative": ("./libnone.so", "there is no '"),
        "missing_for_the_loader": ("libgalatea_none.so", "it can't be opened as a library: "),
        "text": (libraries / "libtext.so", "it can't be opened as a library: "),
        "no_entry": (libraries / "libno_entry.so", "no function 'RegisterCustomOps'"),
        "refuses": (libraries / "librefuses.so", "its operators can't be registered: "),
        "directory": (libraries, "is not a file"),
    }
    for name, (library, _) in cases.items():
        write_model(tmp_path, name, [library])
        write_model(tmp_path, f"{name}_complete", [library], TENSORS)
    write_model(tmp_path, "none", [])
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        for name, (library, why) in cases.items():
            for model in (name, f"{name}_complete"):
                reply = load(server, model)
                assert reply.status == 400, reply
                assert f"load failed for model '{model}'" in reply.error()
                if not server.is_triton:
                    assert f"{FIELD} '{library}': " in reply.error()
                    assert why in reply.error()
        reply = load(server, "none")
        assert reply.status == 400
        assert "galatea.tests:Scale" in reply.error()
        assert server.is_live()


@pytest.mark.galatea_only
def test_a_truncated_library_does_not_end_the_server(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The system's loader would access missing pages, which would kill the process."""
    model = write_model(tmp_path, "m", ["ops.so"])
    whole = (libraries / "libscale.so").read_bytes()
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        for length in (len(whole) // 2, len(whole) // 3, 4096, 100):
            (model / "ops.so").write_bytes(whole[:length])
            reply = load(server, "m")
            assert reply.status == 400
            assert f"{FIELD} 'ops.so': " in reply.error()
        (model / "ops.so").write_bytes(whole)
        assert load(server, "m").status == 200
        assert scaled(server, "m") == [2, 4, 6]


@pytest.mark.galatea_only
def test_a_replaced_library_is_not_read_again(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The loader doesn't reread a loaded library of the same name, and the log says so."""
    model = write_model(tmp_path, "m", ["ops.so"])
    compile_operators(model / "ops.so", "-DFACTOR=2")
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        assert load(server, "m").status == 200
        assert "changed since it was opened" not in server.log()
        compile_operators(tmp_path / "new.so", "-DFACTOR=9", "-g3")
        (tmp_path / "new.so").rename(model / "ops.so")
        assert load(server, "m").status == 200
        assert scaled(server, "m") == [2, 4, 6]
        assert f"model 'm': {FIELD} 'ops.so': it is used as it was" in server.log()
        (model / "ops.so").rename(model / "newer.so")
        (model / "config.pbtxt").write_text(configuration(["newer.so"]))
        assert load(server, "m").status == 200
        assert scaled(server, "m") == [9, 18, 27]


def override(names: Sequence[object], **more: object) -> str:
    """A configuration as clients send it."""
    operations = {"op_library_filename": [str(name) for name in names]}
    return json.dumps({"backend": "onnxruntime", "model_operations": operations, **more})


@pytest.mark.galatea_only
@pytest.mark.parametrize("backend", ["onnxruntime", "identity", "example_foreign"])
def test_a_client_cannot_name_a_library(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path, backend: str
) -> None:
    """A client can neither add a library to the operator's libraries nor refer to one by another
    name."""
    loaded = tmp_path / "loaded"
    trap = compile_operators(tmp_path / "trap.so", f'-DLOADED="{loaded}"')
    library = libraries / "libscale.so"
    repository = tmp_path / "models"
    write_model(repository, "with", [library])
    write_model(repository, "without", [])
    (write_model(repository, "bare", []) / "config.pbtxt").unlink()
    with start_server(repository, EXPLICIT) as server:
        server.wait_until_live()
        assert load(server, "with").status == 200
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for model in ("with", "without", "bare"):
                for names in ([trap], [library, trap], [f"{libraries}/./libscale.so"]):
                    config = override(names, backend=backend)
                    reply = load(server, model, {"config": config})
                    assert reply.status == 500
                    first = names[-1] if model == "with" else names[0]
                    assert f"{FIELD}: '{first}' is not among the libraries" in server.log()
                    order = service_pb2.RepositoryModelLoadRequest(model_name=model)
                    order.parameters["config"].string_param = config
                    with pytest.raises(grpc.RpcError, match="failed to poll from model repository"):
                        stub.RepositoryModelLoad(order, timeout=SECONDS_MAX)
        assert scaled(server, "with") == [2, 4, 6]
    assert not loaded.exists()
    # Checks the trap itself.
    write_model(repository, "trapped", [trap])
    with start_server(repository, EXPLICIT) as server:
        server.wait_until_live()
        assert load(server, "trapped").status == 200
    assert loaded.exists()


def test_a_client_may_send_back_the_shown_configuration(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """The operator's libraries remain when another setting changes."""
    write_model(tmp_path, "m", [libraries / "libscale.so"])
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_live()
        assert load(server, "m").status == 200
        shown = server.get("/v2/models/m/config").json()
        shown["max_batch_size"] = 8
        assert load(server, "m", {"config": json.dumps(shown)}).status == 200
        assert server.get("/v2/models/m/config").json()["max_batch_size"] == 8
        assert scaled(server, "m") == [2, 4, 6]


@pytest.mark.galatea_only
def test_files_of_a_client_are_not_opened_as_libraries(
    start_server: StartServer, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """This holds for all file names, and for a configuration among the files."""
    loaded = tmp_path / "loaded"
    trap = compile_operators(tmp_path / "trap.so", f'-DLOADED="{loaded}"')
    repository = tmp_path / "models"
    library = libraries / "libscale.so"
    write_model(repository, "m", [library])

    def file(content: bytes) -> str:
        return base64.b64encode(content).decode()

    with start_server(repository, EXPLICIT) as server:
        server.wait_until_live()
        assert load(server, "m").status == 200
        for name in ("1/trap.so", "trap.so", "./trap.so", str(trap), str(library)):
            named = configuration([name])
            files = {
                "file:1/model.onnx": file(onnx_model()),
                "file:1/trap.so": file(trap.read_bytes()),
                "file:trap.so": file(trap.read_bytes()),
                "file:config.pbtxt": file(named.encode()),
            }
            for model in ("m", "new"):
                reply = load(server, model, {"config": override([name]), **files})
                assert reply.status == 500
                assert f"{FIELD}: can't be given with files" in server.log()
        assert scaled(server, "m") == [2, 4, 6]
    assert not loaded.exists()


def test_other_backends_leave_the_field_alone(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The field is for ONNX models; for others, the log says that it has no effect."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensors = TENSORS.replace("IN", "INPUT0").replace("OUT", "OUTPUT0")
    config = configuration(["/nowhere/libnone.so"], tensors).replace("onnxruntime", "identity")
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        shown = server.get("/v2/models/m/config").json()["model_operations"]
        assert shown == {"op_library_filename": ["/nowhere/libnone.so"]}
        if not server.is_triton:
            assert f"'{FIELD}' changes nothing: only ONNX models" in server.log()


@pytest.mark.galatea_only
def test_check_opens_libraries(
    program: Program, tmp_path: pathlib.Path, libraries: pathlib.Path
) -> None:
    """`galatea check` reports the errors that would make a load fail."""
    write_model(tmp_path, "good", [libraries / "libscale.so"])
    write_model(tmp_path, "missing", ["libs/none.so"], TENSORS)
    write_model(tmp_path, "no_entry", [libraries / "libno_entry.so"], TENSORS)
    command = program.command([])
    done = subprocess.run(
        [command[0], "check", *command[1:], "--json", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    models = json.loads(done.stdout)["models"]
    found = {model["name"]: [error["message"] for error in model["errors"]] for model in models}
    assert found["good"] == []
    [missing], [no_entry] = found["missing"], found["no_entry"]
    assert missing.startswith(f"{FIELD} 'libs/none.so': there is no '")
    assert str(tmp_path / "missing" / "libs" / "none.so") in missing
    assert "it has no function 'RegisterCustomOps'" in no_entry
