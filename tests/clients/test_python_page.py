"""Checks that the models in docs/python.md work and its settings are known."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from conftest import ROOT, StartServer
from python_backend import interpreter_flag
from server import Program, Server

pytestmark = pytest.mark.galatea_only

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
#: What the tests below use: a name for each block, its kind and some of its words.
MARKS = {
    "new": ("sh", "galatea new"),
    "words": ("python", "Counts the words"),
    "request": ("sh", "models/words/infer"),
    "error": ("text", "model.py:1"),
    "arrays": ("python", "keepdims"),
    "stream": ("python", "yield from"),
    "class": ("python", "values + 1"),
    "configuration": ("text", "max_batch_size"),
    "stubs": ("sh", "workers/stubs"),
    "decoupled": ("python", '"NUMBER"'),
    "calls": ("python", "def add_one"),
    "environment": ("sh", "-m venv"),
    "environment of a model": ("text", "EXECUTION_ENV_PATH"),
    "place": ("python", "sys.prefix"),
    "gpu": ("python", "import torch"),
    # test_sklearn_backend.py tests this one.
    "sklearn": ("sh", "backends/sklearn"),
}

# A stand-in for the parts of PyTorch that the GPU model uses, on a CPU: `bench/gpu.py` runs
# the real PyTorch.
TORCH = """
import numpy

class Array(numpy.ndarray):
    def to(self, device):
        assert device == "cuda:0", device
        return self

class Model:
    def to(self, device):
        assert device == "cuda:0", device
        return self

    def __call__(self, values):
        return numpy.asarray(values + 1)

def load(path, weights_only):
    return Model()

class Capsule:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0

def from_dlpack(capsule):
    return numpy.from_dlpack(Capsule(capsule)).view(Array)
"""


def block(name: str) -> str:
    """A block on the page."""
    kind, words = MARKS[name]
    (found,) = [text for one, text in BLOCKS if one == kind and words in text]
    return str(found)


def write(repository: pathlib.Path, name: str, source: str, config: str | None = None) -> None:
    """A model with a file from the page."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def infer(server: Server, model: str, **inputs: tuple[str, list[int], list[Any]]) -> Any:
    """The values of a request's outputs."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    reply = server.infer(model, {"inputs": tensors})
    assert reply.status == 200, reply.body
    return {one["name"]: one["data"] for one in reply.json()["outputs"]}


def test_the_first_steps(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The page's commands, the file that it shows, and its request."""
    new, serve = block("new").splitlines()
    assert serve == "galatea --model-repository models"
    galatea = program.command([])[0]
    subprocess.run([galatea, *new.split()[1:]], cwd=tmp_path, check=True, timeout=60)
    written = (tmp_path / "models" / "words" / "1" / "model.py").read_text()
    assert block("words") in written
    address, body = re.findall(r"8000(\S+) -d '(.*)'$", block("request"), re.DOTALL)[0]
    with start_server(tmp_path / "models", interpreter_flag()) as server:
        server.wait_until_ready()
        reply = server.request("POST", address, body.encode())
    assert reply.json()["outputs"][0]["data"] == [3]


def test_the_models_work(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Each file on the page is a model."""
    write(tmp_path, "add_one", block("class"), block("configuration"))
    write(tmp_path, "arrays", block("arrays"))
    write(tmp_path, "stream", block("stream"))
    write(tmp_path, "decoupled", block("decoupled"))
    write(tmp_path, "calls", block("calls"))
    write(tmp_path, "gpu", block("gpu"), block("configuration"))
    (tmp_path / "gpu" / "1" / "torch.py").write_text(TORCH)
    with start_server(tmp_path, interpreter_flag()) as server:
        server.wait_until_ready()
        assert infer(server, "add_one", IN=("FP32", [1, 2], [1.5, -1])) == {"OUT": [2.5, 0.0]}
        found = infer(server, "arrays", x=("FP32", [2, 4], [1, 2, 3, 4, -1, 0, 0, 0]))
        assert found == {"label": ["high", "low"], "score": [2.5, -0.25]}
        assert infer(server, "calls", x=("FP32", [2], [1, 2])) == {"output": [3, 4]}
        assert infer(server, "gpu", IN=("FP32", [1, 2], [1.5, -1])) == {"OUT": [2.5, 0.0]}
        stream = generate_stream(server, "stream", text="a b")
        assert re.findall(r'"output":"(\w)"', stream) == ["a", "b"]
        stream = generate_stream(server, "decoupled", COUNT=3)
        assert re.findall(r'"NUMBER":(\d)', stream) == ["0", "1", "2"]


def generate_stream(server: Server, model: str, **inputs: Any) -> str:
    """The events of a request to the generate extension."""
    path = f"/v2/models/{model}/generate_stream"
    reply = server.request("POST", path, json.dumps(inputs).encode())
    assert reply.status == 200, reply.body
    return reply.body.decode()


def test_an_environment_in_the_models_directory(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The page's commands create the environment, and the model runs in it."""
    repository = tmp_path / "models"
    write(repository, "where", block("place"), block("environment of a model"))
    commands = block("environment").replace("python3", sys.executable)
    subprocess.run(commands, shell=True, cwd=tmp_path, check=True, timeout=120)
    with start_server(repository) as server:
        server.wait_until_ready()
        found = infer(server, "where", question=("BYTES", [1], [""]))
    assert found == {"output": [str(repository / "where" / "environment")]}


def test_the_error_names_the_line(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The text on the page is the same as the log's."""
    write(tmp_path, "m", "def predict(text) -> int: ...\n")
    with start_server(tmp_path, interpreter_flag()) as server:
        server.wait_for_exit()
        log = server.log()
    assert block("error").strip() in log


def test_the_stubs_can_be_installed() -> None:
    """`test_stubs.py` installs what is there."""
    *_, place = block("stubs").split()
    assert (ROOT / place / "pyproject.toml").is_file()


# row: PY-09
def test_the_settings_are_known(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The log doesn't report any of them as having no effect; it does so for others."""
    names = re.findall(r"^\| `([a-z]+(?:-[a-z]+)*)=(\w+)", PAGE, flags=re.MULTILINE)
    values = {"N": "5", "PATH": "python3"}
    flags = [f"--backend-config=python,{name}={values.get(one, one)}" for name, one in names]
    assert len(flags) == 8
    with start_server(tmp_path, *flags, "--backend-config=python,nonsense=1") as server:
        server.wait_until_ready()
        log = server.log()
    assert re.findall(r"--backend-config=(\S+) changes nothing", log) == ["python,nonsense=1"]


def test_every_block_is_used() -> None:
    """This guards the tests above: each new block on the page needs one of them."""
    assert sorted(map(block, MARKS)) == sorted(text for _, text in BLOCKS)
