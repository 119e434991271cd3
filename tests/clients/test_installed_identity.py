"""Tests that a library `identity` in the backend directory is used instead of the built-in
backend.

The last tests need Triton's own library: GALATEA_TRITON_BACKENDS is a directory that contains it
as `identity/libtriton_identity.so`.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil

import numpy
import pytest
import tritonclient.grpc
import tritonclient.http

from compiling import compile_library
from conftest import ROOT, StartServer
from server import Program, Server
from test_check import errors
from test_plugin_backends import write_model

pytestmark = pytest.mark.galatea_only

EXAMPLE = ROOT / "examples" / "backends" / "identity.c"

#: The built-in backend needs INPUT0; the example in C accepts any name.
ANY_NAME = """
backend: "identity"
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
USUAL = ANY_NAME.replace('"A"', '"INPUT0"')
HELP = (
    "input_byte_size_counter "
    "Cumulative input byte size of all requests received by the model"
)
VALUES = numpy.array([1.5, -2.0, 3.25], dtype=numpy.float32)

BACKENDS = os.environ.get("GALATEA_TRITON_BACKENDS", "")
needs_triton = pytest.mark.skipif(
    not BACKENDS, reason="needs Triton's backends in GALATEA_TRITON_BACKENDS"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The C example under the name of the built-in backend."""
    path = tmp_path_factory.mktemp("library") / "libtriton_identity.so"
    compile_library(EXAMPLE, path)
    return path


def install(library: pathlib.Path, backends: pathlib.Path) -> str:
    """Installs the library where a server with this flag finds it."""
    (backends / "identity").mkdir(parents=True)
    shutil.copy(library, backends / "identity")
    return f"--backend-directory={backends}"


def output(server: Server, model: str, name: str) -> list[float]:
    """The model's output for VALUES."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        tensor = tritonclient.http.InferInput(name, VALUES.shape, "FP32")
        tensor.set_data_from_numpy(VALUES)
        return client.infer(model, [tensor]).as_numpy("OUTPUT0").tolist()


# row: BE-01
def test_the_built_in_backend_is_the_default(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The built-in backend is used if there is no library, and reads no settings."""
    write_model(tmp_path / "models", "usual", USUAL)
    write_model(tmp_path / "models", "any_name", ANY_NAME)
    flags = [
        f"--backend-directory={tmp_path / 'none'}",
        "--backend-config=identity,key=value",
        "--exit-on-error=false",
    ]
    with start_server(tmp_path / "models", *flags) as server:
        server.wait_until_live()
        assert output(server, "usual", "INPUT0") == VALUES.tolist()
        assert server.get("/v2/models/any_name/ready").status == 400
        assert "--backend-config=identity,key=value changes nothing" in server.log()
        assert "not the built-in one" not in server.log()


# row: CLI-23
def test_an_installed_library_is_used(
    start_server: StartServer, library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """This applies to models in the repository, and to models whose files clients send."""
    flag = install(library, tmp_path / "backends")
    models = tmp_path / "models"
    write_model(models, "any_name", ANY_NAME)
    write_model(models, "usual", USUAL)
    flags = [flag, "--backend-config=identity,key=value", "--model-control-mode=explicit"]
    with start_server(models, *flags, "--load-model=*") as server:
        server.wait_until_ready()
        for model, name in (("any_name", "A"), ("usual", "INPUT0")):
            assert output(server, model, name) == VALUES.tolist()
        log = server.log()
        place = tmp_path / "backends" / "identity"
        assert log.count(f"backend 'identity' is that in '{place}', not the built-in one") == 1
        assert "changes nothing" not in log
        config = {
            "backend": "identity",
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        }
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            client.load_model("sent", config=json.dumps(config), files={"file:1/data": b"x"})
        assert output(server, "sent", "A") == VALUES.tolist()


def test_a_library_in_the_model_directory_wins(
    start_server: StartServer, library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """It takes precedence over a damaged one in the backend directory."""
    damaged = tmp_path / "libtriton_identity.so"
    damaged.write_bytes(b"nothing")
    flag = install(damaged, tmp_path / "backends")
    model = write_model(tmp_path / "models", "beside", ANY_NAME)
    shutil.copy(library, model / "1")
    write_model(tmp_path / "models", "usual", USUAL)
    with start_server(tmp_path / "models", flag, "--exit-on-error=false") as server:
        server.wait_until_live()
        assert output(server, "beside", "A") == VALUES.tolist()
        # The built-in backend doesn't hide a damaged library.
        assert server.get("/v2/models/usual/ready").status == 400
        assert "unable to load shared library" in server.log()


def test_a_check_uses_the_same_library(
    program: Program, library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The model needs the library."""
    flag = install(library, tmp_path / "backends")
    write_model(tmp_path / "models", "any_name", ANY_NAME)
    assert errors(program, tmp_path / "models")["any_name"]
    assert errors(program, flag, tmp_path / "models")["any_name"] == []


@pytest.fixture
def triton(tmp_path: pathlib.Path) -> str:
    """The flag for a directory that contains Triton's library."""
    return install(pathlib.Path(BACKENDS) / "identity" / "libtriton_identity.so", tmp_path / "b")


@pytest.mark.parametrize("flag", ["", pytest.param("triton", marks=needs_triton)])
# row: BE-01
def test_parameters_metric_and_delays(
    start_server: StartServer, flag: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    """In both the built-in backend and Triton's: the size of inputs in a metric, and
    parameters of responses."""
    flags = [request.getfixturevalue(flag)] if flag else []
    config = USUAL + "max_batch_size: 8 dynamic_batching { }"
    delayed = config + """
        parameters { key: "execute_delay_ms" value { string_value: "20" } }
        instance_group { kind: KIND_CPU count: 2 }"""
    models = {"usual": config, "delayed": delayed}
    for name, text in models.items():
        write_model(tmp_path / "models", name, text)
    batch = VALUES.reshape(1, -1)
    with start_server(tmp_path / "models", *flags) as server:
        server.wait_until_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            tensor = tritonclient.grpc.InferInput("INPUT0", batch.shape, "FP32")
            tensor.set_data_from_numpy(batch)
            for name in models:
                result = client.infer(name, [tensor])
                assert result.as_numpy("OUTPUT0").tolist() == batch.tolist()
                parameters = result.get_response().parameters
                assert parameters["param0"].string_param == "an example string parameter"
                assert parameters["param1"].int64_param == 42
                assert parameters["param2"].bool_param is False
                assert parameters["param3"].double_param == 123.123
        metrics = server.metrics()
        for name in models:
            counted = f'input_byte_size_counter{{model="{name}",version="1"}} {batch.nbytes}'
            assert counted in metrics
            assert f"# HELP {HELP}\n" in metrics
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            given = tritonclient.http.InferInput("INPUT0", batch.shape, "FP32")
            given.set_data_from_numpy(batch)
            assert client.infer("usual", [given]).get_response()["parameters"] == {
                "param0": "an example string parameter",
                "param1": 42,
                "param2": False,
                "param3": 123.123,
            }
        infer = server.statistics("delayed")["inference_stats"]["compute_infer"]
        assert infer["count"] == 1
        assert infer["ns"] >= 20_000_000


@needs_triton
def test_requests_that_tritons_library_refuses(
    start_server: StartServer, triton: str, tmp_path: pathlib.Path
) -> None:
    """Its own checks apply, with its own texts."""
    write_model(tmp_path / "models", "any_name", ANY_NAME)
    with start_server(tmp_path / "models", triton, "--exit-on-error=false") as server:
        server.wait_until_live()
        assert server.get("/v2/models/any_name/ready").status == 400
        assert "expected input name to follow INPUT<index> pattern, got 'A'" in server.log()
