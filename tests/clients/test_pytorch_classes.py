"""Tests of PyTorch models in Python, `runtime: "model.py"`, which the supplied script executes.

Skipped unless GALATEA_TORCH_PYTHON names an interpreter with PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from python_backend import interpreter_flag
from server import Server
from transports import Http

TORCH = os.environ.get("GALATEA_TORCH_PYTHON", "")
needs_torch = pytest.mark.skipif(
    not TORCH, reason="needs a Python with PyTorch in GALATEA_TORCH_PYTHON"
)
pytestmark = pytest.mark.galatea_only
#: PyTorch imports slowly, and each instance does.
LOAD_SECONDS_MAX = 300

#: The compiler of PyTorch takes seconds for each model.
EAGER = '{"disable": true}'
CONFIG = """\
backend: "pytorch"
runtime: "model.py"
max_batch_size: {batch}
{tensors}
{more}
"""
#: The smallest network, whose weight its file of weights may replace.
SCALED = """\
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x):
        return x * self.factor
"""
TWO = """\
import torch
from torch.nn import Dropout, Module

import companion


class Zoo(Module):
    def forward(self, x, y):
        return companion.total(x, y), (x > y), torch.full((x.shape[0], 1), x.shape[0])


class Zulu(Module):
    def forward(self, x, y):
        raise RuntimeError("the class that is later in the alphabet")
"""
FAILING = """\
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative values")
        return x.mT
"""
ONE = "input { name: \"X\" data_type: TYPE_FP32 dims: [ 3 ] }\n" \
      "output { name: \"Y\" data_type: TYPE_FP32 dims: [ 3 ] }"


def parameter(key: str, value: str) -> str:
    """A parameter of a configuration."""
    text = value.replace('"', '\\"')
    return f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'


def write(
    repository: pathlib.Path,
    name: str,
    code: str | None,
    tensors: str = ONE,
    batch: int = 8,
    more: str = "",
    compiled: bool = False,
) -> pathlib.Path:
    """Writes a model, and returns its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if not compiled:
        more += parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", EAGER)
    text = CONFIG.format(batch=batch, tensors=tensors, more=more)
    (repository / name / "config.pbtxt").write_text(text)
    if code is not None:
        (version / "model.py").write_text(code)
    return version


def save(statements: str) -> None:
    """Runs statements in the interpreter with PyTorch, from a file, which TorchScript reads."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(f"import torch\n{statements}")
        file.flush()
        subprocess.run([TORCH, "-W", "ignore", file.name], check=True)


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("classes")
    write(repository, "plain", SCALED)
    weights = write(repository, "weighted", SCALED) / "model.pt"
    script = write(repository, "scripted", None) / "model.pt"
    save(
        f"torch.save({{'factor': torch.tensor([5.0])}}, {str(weights)!r})\n"
        "class Half(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x / 2\n"
        f"torch.jit.trace(Half(), torch.ones(1, 3)).save({str(script)!r})\n"
    )
    two = (
        "input [ { name: 'B' data_type: TYPE_INT64 dims: [ 2 ] },\n"
        "        { name: 'A' data_type: TYPE_INT64 dims: [ 2 ] } ]\n"
        "output [ { name: 'SUM' data_type: TYPE_INT64 dims: [ 2 ] },\n"
        "         { name: 'MORE' data_type: TYPE_BOOL dims: [ 2 ] },\n"
        "         { name: 'ROWS' data_type: TYPE_INT64 dims: [ 1 ] } ]"
    )
    version = write(
        repository, "two", TWO, two,
        more="dynamic_batching { preferred_batch_size: 4 "
             "max_queue_delay_microseconds: 60000000 }\n",
    )
    (version / "companion.py").write_text("def total(x, y):\n    return x + 10 * y\n")
    turned = ONE.replace("[ 3 ]", "[ -1, -1 ]")
    write(repository, "failing", FAILING, turned, batch=0)
    write(repository, "renamed", None, more='default_model_filename: "network.py"\n')
    (repository / "renamed" / "1" / "network.py").write_text(SCALED.replace("2.0", "7.0"))
    flags = [f"--backend-config=python,interpreter={TORCH}", "--log-verbose=1"]
    with start_server(repository, *flags) as running:
        yield running.wait_until_ready(LOAD_SECONDS_MAX)
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Http]:
    with contextlib.closing(Http(server)) as one:
        yield one


@needs_torch
@pytest.mark.parametrize(
    ("model", "factor"), [("plain", 2), ("weighted", 5), ("renamed", 7), ("scripted", 0.5)]
)
# row: BE-02
def test_a_class_or_a_model_of_torchscript_is_executed(
    client: Http, model: str, factor: float
) -> None:
    """The weights are next to the class's file."""
    values = numpy.arange(6, dtype="f4").reshape(2, 3)
    assert client.infer(model, {"X": values})["Y"].tolist() == (values * factor).tolist()


@needs_torch
# row: BE-02
def test_an_exported_program_is_executed(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Its own checks refuse other shapes. Both forms of its file's name work."""
    file = tmp_path / "program.pt2"
    save(
        "class Sloped(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.slope = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))\n"
        "    def forward(self, x):\n"
        "        return x * self.slope, x.sum(1, keepdim=True)\n"
        "batch = torch.export.Dim('batch', min=1, max=4)\n"
        "shapes = ({0: batch},)\n"
        "program = torch.export.export(Sloped(), (torch.ones(2, 3),), dynamic_shapes=shapes)\n"
        f"torch.export.save(program, {str(file)!r})\n"
    )
    tensors = ONE + "\noutput { name: \"SUM\" data_type: TYPE_FP32 dims: [ 1 ] }"
    models = tmp_path / "models"
    for name, more in (("usual", ""), ("named", 'default_model_filename: "program.pt2"\n')):
        version = write(models, name, None, tensors, more=more)
        shutil.copy(file, version / ("program.pt2" if more else "model.pt2"))
    flags = [f"--backend-config=pytorch,interpreter={TORCH}"]
    with start_server(models, *flags) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            for name in ("usual", "named"):
                for rows in (1, 3):
                    values = numpy.arange(3 * rows, dtype="f4").reshape(rows, 3)
                    found = client.infer(name, {"X": values})
                    assert found["Y"].tolist() == (values * [1, 2, 3]).tolist()
                    assert found["SUM"].tolist() == values.sum(1, keepdims=True).tolist()
                with pytest.raises(InferenceServerException) as refused:
                    client.infer(name, {"X": numpy.zeros((5, 3), "f4")})
                assert "AssertionError: " in str(refused.value), refused.value


@needs_torch
# row: BE-02
def test_requests_of_a_batch_are_executed_together(server: Server) -> None:
    """Inputs and outputs are in the order of the configuration; the class is the first in
    alphabetical order."""
    found: dict[int, dict[str, numpy.ndarray]] = {}

    def send(number: int) -> None:
        with contextlib.closing(Http(server)) as one:
            x = numpy.array([[number, 5]] * (1 + number % 2))
            found[number] = one.infer("two", {"A": numpy.ones_like(x), "B": x})

    threads = [threading.Thread(target=send, args=(number,)) for number in (1, 2, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = {number: 1 + number % 2 for number in found}
    assert sum(rows.values()) == 4
    for number, outputs in found.items():
        count = rows[number]
        assert outputs["SUM"].tolist() == [[number + 10, 15]] * count
        assert outputs["MORE"].tolist() == [[number > 1, True]] * count
        assert outputs["ROWS"].tolist() == [[4]] * count
    assert "the class 'Zoo' of the file is served, which is before Zulu" in server.log()


@needs_torch
def test_an_error_of_the_model_is_that_of_its_request(client: Http) -> None:
    """The error contains the line in the model's file; outputs with a different element order
    are copied."""
    values = numpy.arange(6, dtype="f4").reshape(2, 3)
    with pytest.raises(InferenceServerException) as refused:
        client.infer("failing", {"X": -values})
    text = str(refused.value)
    assert "Failed to process the request(s) for model 'failing_0', message: ValueError: " \
        "negative values\n\nAt:\n" in text, text
    assert re.search(r"failing/1/model\.py\(7\): forward\n", text), text
    assert client.infer("failing", {"X": values})["Y"].tolist() == values.T.tolist()


REFUSED = {
    "no_class": ("class Network:\n    pass\n", "", "Cannot find a subclass of torch.nn.Module"),
    "no_file": (None, "", "No model found in "),
    "other": (None, 'default_model_filename: "other.pt2"\n', "other.pt2' is no exported program"),
    "outside": (
        SCALED,
        'default_model_filename: "../outside.pt2"\n',
        "file name '../outside.pt2' must stay inside the model's directory",
    ),
    "compiled": (
        None,
        'default_model_filename: "compiled.pt2"\n',
        "A compiled model needs the platform torch_aoti, and no runtime",
    ),
    "threads": (
        SCALED,
        parameter("NUM_THREADS", "many"),
        "ValueError: invalid literal for int() with base 10: 'many'\n\nparameter 'NUM_THREADS'",
    ),
    "model": (
        SCALED,
        parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"model": 1}'),
        "'model' is not an optional parameter for 'torch.compile'",
    ),
    "unknown": (
        SCALED,
        parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"speed": 1}'),
        "unexpected keyword argument 'speed'",
    ),
    "json": (
        SCALED,
        parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{"),
        "parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' must be a JSON object",
    ),
    "syntax": ("def f(:\n", "", "SyntaxError: "),
}


@needs_torch
def test_what_cannot_be_loaded_is_refused(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The errors have the texts of Triton's script."""
    for name, (code, more, _) in REFUSED.items():
        write(tmp_path, name, code, more=more, compiled="TORCH_COMPILE" in more)
    (tmp_path / "other" / "1" / "other.pt2").write_text("nothing")
    with zipfile.ZipFile(tmp_path / "compiled" / "1" / "compiled.pt2", "w") as archive:
        archive.writestr("m/data/aotinductor/model/model.so", "nothing")
    flags = [f"--backend-config=python,interpreter={TORCH}", "--model-control-mode=explicit"]
    with start_server(tmp_path, *flags) as running:
        running.wait_until_live()
        for name, (_, _, expected) in REFUSED.items():
            path = f"/v2/repository/models/{name}/load"
            refused = running.request("POST", path, b"{}").json()["error"]
            assert expected in refused, refused


@needs_torch
def test_parameters_and_the_compiler(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Threads are set, and other settings are reported; without a compiler, the class is
    executed unchanged."""
    code = SCALED + (
        "\n    def forward(self, x):\n"
        "        counts = torch.get_num_threads(), torch.get_num_interop_threads(), 0\n"
        "        return torch.tensor([counts], dtype=torch.float32) + 0 * x\n"
    )
    more = parameter("NUM_THREADS", "2") + parameter("INTRA_OP_THREAD_COUNT", "4")
    write(tmp_path, "counting", code, more=more, compiled=True)
    flags = [f"--backend-config=pytorch,interpreter={TORCH}"]
    environment = {"PATH": str(tmp_path), "CXX": ""}
    with start_server(tmp_path, *flags, environment=environment) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            found = client.infer("counting", {"X": numpy.zeros((1, 3), "f4")})["Y"]
        assert found.tolist() == [[2, 1, 0]]
        log = running.log()
        assert "parameter 'INTRA_OP_THREAD_COUNT' has no effect" in log
        assert "executed without torch.compile: there is no C++ compiler 'g++'" in log


@needs_torch
def test_the_model_is_compiled(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """This uses `torch.compile`, with the parameters in the configuration."""
    code = SCALED.replace("return x", "return (1 + torch.compiler.is_compiling()) * x")
    more = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"backend": "eager"}')
    write(tmp_path, "compiled", code, more=more, compiled=True)
    flags = [f"--backend-config=python,interpreter={TORCH}"]
    with start_server(tmp_path, *flags) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            found = client.infer("compiled", {"X": numpy.ones((1, 3), "f4")})["Y"]
    assert found.tolist() == [[4, 4, 4]]


@needs_torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler in the tests' path")
# row: BE-02
def test_the_compiler_of_pytorch_compiles_the_model(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """By default, it writes C++ code and calls the compiler."""
    code = SCALED.replace("return x", "return (1 + torch.compiler.is_compiling()) * x.relu()")
    # The compiler may take longer than the client waits for a response.
    more = (
        "model_warmup { name: 'w' batch_size: 1 inputs { key: 'X'"
        " value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } } }\n"
    )
    write(tmp_path / "models", "compiled", code, more=more, compiled=True)
    cache = tmp_path / "cache"
    flags = [f"--backend-config=pytorch,interpreter={TORCH}"]
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with start_server(tmp_path / "models", *flags, environment=environment) as running:
        running.wait_until_ready(LOAD_SECONDS_MAX)
        with contextlib.closing(Http(running)) as client:
            found = client.infer("compiled", {"X": numpy.array([[1, -1, 2]], "f4")})["Y"]
            log = running.log()
    assert found.tolist() == [[4, 0, 8]]
    assert "executed without torch.compile" not in log
    assert list(cache.rglob("*.so"))


def test_a_worker_without_pytorch_says_what_to_install(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This uses the interpreter that lacks it."""
    write(tmp_path, "plain", SCALED)
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise OSError('libcudart.so.13: cannot open')")
    environment = {"PYTHONPATH": str(blocked.parent)}
    flags = [interpreter_flag(), "--model-control-mode=explicit"]
    with start_server(tmp_path, *flags, environment=environment) as running:
        running.wait_until_live()
        path = "/v2/repository/models/plain/load"
        refused = running.request("POST", path, b"{}").json()["error"]
    assert "RuntimeError: Missing/Incomplete PyTorch package installation" in refused, refused
    assert "OSError: libcudart.so.13: cannot open" in refused, refused
    assert " -m pip install torch" in refused, refused
