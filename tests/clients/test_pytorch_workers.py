"""Models of PyTorch that a worker executes because the library can't in the server's process.

Skipped unless GALATEA_TORCH_PYTHON names an interpreter with PyTorch, and for packages without a
C++ compiler.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from python_backend import interpreter_flag
from server import Program, Server
from test_pytorch_classes import LOAD_SECONDS_MAX, TORCH, needs_torch, parameter, save
from transports import Http

pytestmark = [pytest.mark.galatea_only, needs_torch]
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a C++ compiler in the tests' path"
)

#: `bincount` has no C interface in PyTorch.
PACKAGE = """\
class Counted(torch.nn.Module):
    def forward(self, x, y):
        total = torch.bincount(x.flatten(), minlength=4).sum()
        return {{"scaled": y * 2, "rows": torch.zeros_like(x) + total}}

import torch._inductor
sample = torch.tensor([[0], [1], [1]]), torch.rand(3, 2)
batch = torch.export.Dim("batch", min=1, max=64)
exported = torch.export.export(
    Counted(), sample[:1], {{"y": sample[1]}}, dynamic_shapes={{"x": {{0: batch}}, "y": {{0: batch}}}}
)
torch._inductor.aoti_compile_and_package(exported, package_path={path!r})
"""
COUNTED = """\
platform: "torch_aoti"
max_batch_size: 8
input [ { name: "KWARGS[y]" data_type: TYPE_FP32 dims: [ -1 ] },
        { name: "ARGS[0]" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUTPUT__1" data_type: TYPE_INT64 dims: [ 1 ] },
         { name: "RESULT[scaled]" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
#: The weights are in files of their own, two of which share memory.
PICKLED = """\
class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.second = torch.nn.Parameter(torch.tensor([100.0, 200.0, 300.0]))
        self.register_buffer("part", self.first.detach()[1:])

    def forward(self, x):
        return x @ self.first + self.second + self.part

import torch._inductor
batch = torch.export.Dim("batch", min=1, max=64)
exported = torch.export.export(Weighted(), (torch.rand(3, 2),), dynamic_shapes=({{0: batch}},))
torch._inductor.aoti_compile_and_package(
    exported,
    package_path={path!r},
    inductor_configs={{
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
    }},
)
"""
WEIGHTED = """\
platform: "torch_aoti"
max_batch_size: 8
input { name: "ARGS[0]" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "RESULT" data_type: TYPE_FP32 dims: [ 3 ] }
"""
BATCHED = """\
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }
"""


def library() -> str:
    """PyTorch's library that belongs to the interpreter."""
    code = "import importlib.util as u; print(u.find_spec('torch').origin)"
    done = subprocess.run([TORCH, "-c", code], capture_output=True, text=True, check=True)
    return str(pathlib.Path(done.stdout.strip()).parent / "lib" / "libtorch_cpu.so")


def flags() -> list[str]:
    """The library of the server, and the interpreter of the workers."""
    return [f"--torch-library={library()}", f"--backend-config=python,interpreter={TORCH}"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    save(PACKAGE.format(path=str(path)))
    return path


def write(repository: pathlib.Path, name: str, config: str, file: pathlib.Path) -> None:
    """Writes a model with a file."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    shutil.copy(file, repository / name / "1" / file.name)


@pytest.fixture(scope="module")
def server(
    start_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
    package: pathlib.Path,
) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("counted")
    write(repository, "counted", COUNTED, package)
    write(repository, "batched", COUNTED + BATCHED, package)
    with start_server(repository, *flags()) as running:
        yield running.wait_until_ready(LOAD_SECONDS_MAX)
    assert running.process.returncode == 0


def inputs(rows: int, columns: int = 2) -> dict[str, numpy.ndarray]:
    """Inputs of the package."""
    return {
        "ARGS[0]": numpy.arange(rows, dtype="i8").reshape(rows, 1),
        "KWARGS[y]": numpy.arange(rows * columns, dtype="f4").reshape(rows, columns),
    }


@needs_compiler
# row: BE-02
def test_a_package_with_operations_that_need_python(server: Server) -> None:
    """It has the names of the form in the server's process, in any order, and the log says why."""
    with contextlib.closing(Http(server)) as client:
        for rows in (1, 3):
            given = inputs(rows)
            found = client.infer("counted", given)
            assert found["OUTPUT__1"].tolist() == [[rows]] * rows
            assert (found["RESULT[scaled]"] == given["KWARGS[y]"] * 2).all()
    assert (
        "model 'counted': a worker, a process of Python, executes it, because its operations "
        "aten::bincount have no C interface" in server.log()
    )


@needs_compiler
def test_requests_of_a_package_are_executed_together(server: Server) -> None:
    """As in the server's process."""
    found: dict[int, list[list[int]]] = {}

    def send(rows: int) -> None:
        with contextlib.closing(Http(server)) as client:
            found[rows] = client.infer("batched", inputs(rows))["OUTPUT__1"].tolist()

    threads = [threading.Thread(target=send, args=(rows,)) for rows in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: [[4]], 3: [[4]] * 3}


@needs_compiler
# row: BE-02
def test_a_package_with_pickled_weights(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Only Python reads them."""
    path = tmp_path / "model.pt2"
    save(PICKLED.format(path=str(path)))
    write(tmp_path / "models", "weighted", WEIGHTED, path)
    with start_server(tmp_path / "models", *flags()) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            x = numpy.array([[1, 0], [0, 1], [2, 2]], "f4")
            found = client.infer("weighted", {"ARGS[0]": x})["RESULT"]
            with pytest.raises(InferenceServerException) as refused:
                client.infer("weighted", {"ARGS[0]": numpy.zeros((9, 2), "f4")})
            assert "must be <= 8" in str(refused.value), refused.value
        log = running.log()
    assert found.tolist() == [[103, 205, 307], [106, 208, 310], [109, 214, 319]]
    assert "executes it, because its weights are pickled, which only Python reads" in log


@needs_compiler
def test_a_shape_that_the_package_was_not_compiled_for_is_refused(server: Server) -> None:
    """Before the worker's code could read foreign memory."""
    with contextlib.closing(Http(server)) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer("counted", inputs(2, columns=5))
        expected = "input 'KWARGS[y]' of model 'counted' has shape [2, 5]: the model was compiled for"
        assert expected in str(refused.value)
        assert client.infer("counted", inputs(1))["OUTPUT__1"].tolist() == [[1]]


@needs_compiler
def test_wrong_configurations_of_a_package_are_refused(
    start_server: StartServer, tmp_path: pathlib.Path, package: pathlib.Path
) -> None:
    """In the words of the form in the server's process."""
    refusals = {
        "name": (COUNTED.replace("ARGS[0]", "ARGS[1]"), 'Input "ARGS[1]" for model "name" is not'),
        "type": (COUNTED.replace("INT64", "INT32", 1), "model provides TYPE_INT64"),
        "ragged": (
            COUNTED.replace("dims: [ 1 ] }", "dims: [ 1 ] allow_ragged_batch: true }", 1),
            "a model in a worker has no ragged batches, and its operations aten::bincount",
        ),
    }
    for name, (config, _) in refusals.items():
        write(tmp_path, name, config, package)
    with start_server(tmp_path, *flags(), "--model-control-mode=explicit") as running:
        running.wait_until_live()
        for name, (_, expected) in refusals.items():
            path = f"/v2/repository/models/{name}/load"
            refused = running.request("POST", path, b"{}").json()["error"]
            assert expected in refused, refused


@needs_compiler
def test_the_check_says_that_a_worker_is_used(
    program: Program, tmp_path: pathlib.Path, package: pathlib.Path
) -> None:
    """Without starting one."""
    write(tmp_path, "counted", COUNTED, package)
    command = program.command([])
    done = subprocess.run(
        [command[0], "check", *command[1:], "--json", f"--torch-library={library()}", tmp_path],
        capture_output=True, text=True, timeout=LOAD_SECONDS_MAX, check=True,
    )
    (model,) = json.loads(done.stdout)["models"]
    expected = (
        "a worker, a process of Python, executes it, because its operations aten::bincount have no "
        "C interface"
    )
    assert model["errors"] == [] and expected in model["warnings"], model


@needs_compiler
def test_a_worker_without_pytorch_says_what_to_install(
    start_server: StartServer, tmp_path: pathlib.Path, package: pathlib.Path
) -> None:
    """The server's library is not that of the worker's interpreter."""
    write(tmp_path, "counted", COUNTED, package)
    environment = {"PYTHONPATH": str(tmp_path / "blocked")}
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "torch.py").write_text("raise ImportError('no such thing')\n")
    more = ["--model-control-mode=explicit", f"--torch-library={library()}", interpreter_flag()]
    with start_server(tmp_path, *more, environment=environment) as running:
        running.wait_until_live()
        path = "/v2/repository/models/counted/load"
        refused = running.request("POST", path, b"{}").json()["error"]
    assert "(ImportError: no such thing)" in refused, refused
    assert " -m pip install torch" in refused, refused


SCRIPTED = """\
class Spoken(torch.nn.Module):
    def forward(self, x, words: list[str]):
        longer: list[str] = []
        for one in words:
            longer.append(one + str(len(words)))
        return x / 2, longer, torch.full((x.shape[0],), len(words))

class Keyed(torch.nn.Module):
    def forward(self, inputs: dict[str, torch.Tensor]):
        if inputs["a"].sum() < 0:
            raise ValueError("negative")
        return inputs["a"] - inputs["b"]

torch.jit.script(Spoken()).save({folder!r} + "/spoken.pt")
torch.jit.script(Keyed()).save({folder!r} + "/keyed.pt")
"""
SPOKEN = """\
backend: "pytorch"
max_batch_size: 8
input [ { name: "words" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } },
        { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "HALF" data_type: TYPE_FP32 dims: [ 2 ] },
         { name: "LONGER" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } },
         { name: "ROWS" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } } ]
"""
KEYED = """\
backend: "pytorch"
input [ { name: "b" data_type: TYPE_FP32 dims: [ 2 ] },
        { name: "a" data_type: TYPE_FP32 dims: [ 2 ] } ]
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("scripts")
    save(SCRIPTED.format(folder=str(folder)))
    return folder


def place(repository: pathlib.Path, name: str, config: str, file: pathlib.Path) -> None:
    """Writes a model of TorchScript."""
    write(repository, name, config, file)
    (repository / name / "1" / file.name).rename(repository / name / "1" / "model.pt")


def without_compiler(folder: pathlib.Path) -> dict[str, str]:
    """Variables of a server that finds no compiler, and no connection of an earlier server."""
    (folder / "empty").mkdir()
    return {"PATH": str(folder / "empty"), "XDG_CACHE_HOME": str(folder / "cache"), "CXX": ""}


# row: BE-02
def test_a_model_of_torchscript_without_a_compiler(
    start_server: StartServer, tmp_path: pathlib.Path, scripts: pathlib.Path
) -> None:
    """It has the names of the form in the server's process, and strings; the log says why."""
    repository = tmp_path / "models"
    more = parameter("ENABLE_WEIGHT_SHARING", "true") + parameter("ENABLE_JIT_EXECUTOR", "false")
    place(repository, "spoken", SPOKEN + more, scripts / "spoken.pt")
    place(repository, "keyed", KEYED, scripts / "keyed.pt")
    with start_server(repository, *flags(), environment=without_compiler(tmp_path)) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            words = numpy.array([["one"], ["zwölf"]], object)
            x = numpy.array([[1, 2], [3, 4]], "f4")
            found = client.infer("spoken", {"words": words, "x": x})
            assert found["HALF"].tolist() == (x / 2).tolist()
            longer = [text.decode() for text in found["LONGER"].flatten()]
            assert longer == ["one2", "zwölf2"]
            assert found["ROWS"].flatten().tolist() == [2, 2]
            given = {"a": numpy.array([1, 2], "f4"), "b": numpy.array([5, 5], "f4")}
            assert client.infer("keyed", given)["OUTPUT__0"].tolist() == [-4, -3]
            with pytest.raises(InferenceServerException) as refused:
                client.infer("keyed", {**given, "a": numpy.array([-1, 0], "f4")})
            text = str(refused.value)
            assert "PyTorch execute failure: " in text and "negative" in text, text
        log = running.log()
    assert "a worker, a process of Python, executes it, because there is no C++ compiler" in log
    assert "parameter 'ENABLE_WEIGHT_SHARING' has no effect: workers share no memory" in log


# row: BE-02
def test_a_model_of_torchscript_with_a_compiler_that_fails(
    start_server: StartServer, tmp_path: pathlib.Path, scripts: pathlib.Path
) -> None:
    """A worker executes it. The log has the compiler's message once."""
    repository = tmp_path / "models"
    for name in ("first", "second"):
        place(repository, name, KEYED, scripts / "keyed.pt")
    environment = without_compiler(tmp_path)
    compiler = tmp_path / "empty" / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such standard' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with start_server(repository, *flags(), environment=environment) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            given = {"a": numpy.array([1, 2], "f4"), "b": numpy.array([5, 5], "f4")}
            for name in ("first", "second"):
                assert client.infer(name, given)["OUTPUT__0"].tolist() == [-4, -3]
        log = running.log()
    reason = "the connection to PyTorch's interpreter can't be compiled"
    assert log.count(f"{reason}: c++ failed: no such standard") == 1, log
    for name in ("first", "second"):
        line = f"model '{name}': a worker, a process of Python, executes it, because {reason}"
        assert line in log, log


def test_a_library_without_headers_and_a_worker_without_pytorch_are_in_one_error(
    start_server: StartServer, tmp_path: pathlib.Path, scripts: pathlib.Path
) -> None:
    """The user may install either."""
    repository = tmp_path / "models"
    place(repository, "keyed", KEYED, scripts / "keyed.pt")
    (tmp_path / "package").mkdir()
    folder = pathlib.Path(library()).parent
    (tmp_path / "package" / "lib").symlink_to(folder)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "torch.py").write_text("raise ImportError('no such thing')\n")
    more = [
        "--model-control-mode=explicit", interpreter_flag(),
        f"--torch-library={tmp_path / 'package' / 'lib' / 'libtorch_cpu.so'}",
    ]
    environment = {"PYTHONPATH": str(tmp_path / "blocked"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start_server(repository, *more, environment=environment) as running:
        running.wait_until_live()
        reply = running.request("POST", "/v2/repository/models/keyed/load", b"{}")
        refused = reply.json()["error"]
    assert " -m pip install torch" in refused, refused
    missing = f"PyTorch's headers are not in '{tmp_path / 'package' / 'include'}'"
    assert f"A worker is needed, because the connection to PyTorch's interpreter can't be " \
        f"compiled: {missing}" in refused, refused


def test_wrong_configurations_of_torchscript_are_refused_without_a_compiler(
    start_server: StartServer, tmp_path: pathlib.Path, scripts: pathlib.Path
) -> None:
    """In the words of the form in the server's process; the check finds them, too."""
    repository = tmp_path / "models"
    refusals = {
        "count": (
            KEYED.replace("{ name: \"b\" data_type: TYPE_FP32 dims: [ 2 ] },", ""),
            "configuration expects 1 inputs, model provides 2",
        ),
        "damaged": (SPOKEN, "failed to load model"),
    }
    for name, (config, _) in refusals.items():
        place(repository, name, config, scripts / "spoken.pt")
    (repository / "damaged" / "1" / "model.pt").write_text("nothing")
    more = ["--model-control-mode=explicit", *flags()]
    with start_server(repository, *more, environment=without_compiler(tmp_path)) as running:
        running.wait_until_live()
        for name, (_, expected) in refusals.items():
            path = f"/v2/repository/models/{name}/load"
            refused = running.request("POST", path, b"{}").json()["error"]
            assert expected in refused, refused
