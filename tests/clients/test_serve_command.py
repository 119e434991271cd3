"""Tests of `galatea serve MODEL...`: models without a repository and without configurations."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from constant_models import constant_model
from python_backend import interpreter_flag
from server import Program
from terminals import Terminal

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 120
ANY_PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
WORDS = '''
import beside

def predict(text: list[str]) -> list[int]:
    return [beside.count(one) for one in text]
'''
#: Models of TorchScript.
SCRIPTED = pathlib.Path(__file__).parents[2] / "crates" / "backend-pytorch" / "tests" / "models"
BESIDE = "def count(text):\n    return len(text.split())\n"


def command(program: Program, *arguments: object) -> list[str]:
    """The command line."""
    first, *rest = program.command([])
    return [first, "serve", *rest, *map(str, arguments)]


@contextlib.contextmanager
def serving(
    program: Program, *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """A server, as described by the JSON line that it prints when it is ready."""
    process = subprocess.Popen(
        command(program, "--json", *ANY_PORTS, *arguments),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        document = json.loads(line)
        assert "error" not in document, document
        assert document["process"] == process.pid
        yield document
    finally:
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, rest, errors) == (0, "", "")


def refused(program: Program, *arguments: object, **variables: str) -> tuple[int, str, str]:
    """The way in which a server that doesn't start ends."""
    done = subprocess.run(
        command(program, *ANY_PORTS, *arguments), capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False, env={**os.environ, **variables},
    )
    return done.returncode, done.stdout, done.stderr


def try_request(model: Mapping[str, Any], cwd: pathlib.Path) -> bytes:
    """The output of the request that was shown for a model, in a shell."""
    if shutil.which("curl") is None or shutil.which("head") is None:
        pytest.skip("needs curl and head")
    done = subprocess.run(
        ["sh", "-c", model["request"]], capture_output=True, cwd=cwd, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, (model["request"], done.stderr)
    return done.stdout


def model_bytes(
    inputs: Sequence[tuple[str, int, list[Any]]], weights: Any = None, datatype: int = 0
) -> onnx.ModelProto:
    """A model whose output is the sum of its inputs."""
    names = [name for name, _, _ in inputs]
    initializers = []
    if weights is not None:
        names.append("w")
        initializers.append(numpy_helper.from_array(weights, "w"))
    first = inputs[0]
    graph = helper.make_graph(
        [helper.make_node("Add" if len(names) > 1 else "Identity", names, ["y"])],
        "sum",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info("y", datatype or first[1], first[2])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file."""
    path = tmp_path / "add one.onnx"
    path.write_bytes(constant_model(1))
    return path


def test_a_file_is_served_under_its_name(program: Program, model: pathlib.Path) -> None:
    """The request that is shown works, and nothing is left behind."""
    folder = model.parent / "temporary"
    folder.mkdir()
    with serving(program, model, environment={"TMPDIR": str(folder)}) as ready:
        (one,) = ready["models"]
        assert (one["name"], one["version"], one["state"]) == ("add_one", "1", "READY")
        assert list(folder.iterdir()) != []
        page = subprocess.run(["curl", "--silent", ready["dashboard"]], capture_output=True, text=True)
        assert page.stdout.startswith("<!doctype html>")
        assert ready["http"].startswith("http://localhost:")
        reply = json.loads(try_request(one, model.parent))
        assert reply["outputs"][0]["data"] == [2]
        metrics = subprocess.run(["curl", "--silent", ready["metrics"]], capture_output=True, text=True)
        assert 'nv_inference_request_success{model="add_one",version="1"} 1' in metrics.stdout
    assert list(folder.iterdir()) == []


def test_requests_of_all_kinds_of_models_work(program: Program, tmp_path: pathlib.Path) -> None:
    """Long tensors, half precision, several inputs, strings, scalars."""
    f16, f32, i64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64
    models = {
        "long": [("x", f32, ["n", 3, 32, 32])],
        "half": [("x", f16, ["n", 4])],
        "two": [("it's", i64, ["n", 2]), ("b", i64, ["n", 2])],
        "strings": [("x", TensorProto.STRING, ["n", 2])],
        "scalar": [("x", TensorProto.DOUBLE, [])],
        "flags": [("x", TensorProto.BOOL, ["n"])],
    }
    for name, inputs in models.items():
        onnx.save(model_bytes(inputs), tmp_path / f"{name}.onnx")
    with serving(program, tmp_path) as ready:
        shown = {one["name"]: one for one in ready["models"]}
        assert set(shown) == set(models)
        replies = {name: try_request(one, tmp_path) for name, one in shown.items()}
    assert json.loads(replies["long"])["outputs"][0]["shape"] == [1, 3, 32, 32]
    assert json.loads(replies["two"])["outputs"][0]["data"] == [2, 2]
    assert json.loads(replies["strings"])["outputs"][0]["data"] == ["text", "text"]
    assert json.loads(replies["scalar"])["outputs"][0]["data"] == [0.5]
    assert json.loads(replies["flags"])["outputs"][0]["data"] == [True]
    assert (tmp_path / "response.bin").read_bytes().endswith(bytes(8))


def test_tensors_in_files_beside_the_model(program: Program, tmp_path: pathlib.Path) -> None:
    """The model is large, so that its tensors are in another file."""
    weights = numpy.arange(2000, dtype=numpy.float32)
    model = model_bytes([("x", TensorProto.FLOAT, ["n", 2000])], weights)
    onnx.save_model(
        model, tmp_path / "big.onnx", save_as_external_data=True, location="big.onnx.data",
        size_threshold=100,
    )
    assert (tmp_path / "big.onnx.data").exists()
    with serving(program, tmp_path / "big.onnx") as ready:
        (one,) = ready["models"]
        assert one["name"] == "big"
        reply = json.loads(try_request(one, tmp_path))
    assert reply["outputs"][0]["data"][1999] == 1999


def test_a_function_in_python(program: Program, tmp_path: pathlib.Path) -> None:
    """It may import files next to it, and its file may have any name."""
    (tmp_path / "count_words.py").write_text(WORDS)
    (tmp_path / "beside.py").write_text(BESIDE)
    with serving(program, interpreter_flag(), tmp_path / "count_words.py") as ready:
        (one,) = ready["models"]
        reply = json.loads(try_request(one, tmp_path))
    assert (one["name"], reply["outputs"][0]["data"]) == ("count_words", [1])


def test_directories_of_models_and_repositories(program: Program, tmp_path: pathlib.Path) -> None:
    """A directory with files, a directory of a model with versions, and a repository, all at
    once."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.onnx").write_bytes(constant_model(1))
    (tmp_path / "files" / "notes.txt").write_text("no model")
    for place in ("versions/3", "repository/c/1", "repository/d/1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.onnx").write_bytes(constant_model(2))
    paths = [tmp_path / name for name in ("files", "versions", "repository")]
    with serving(program, *paths) as ready:
        found = [(one["name"], one["version"]) for one in ready["models"]]
    assert found == [("a", "1"), ("c", "1"), ("d", "1"), ("versions", "3")]


def test_a_name_can_be_given_and_flags_of_the_server_follow(
    program: Program, model: pathlib.Path
) -> None:
    """For example, flags that disable an endpoint."""
    with serving(program, model, "--name=other", "--allow-grpc=false", "--id", "me") as ready:
        assert ready["grpc"] is None
        assert ready["models"][0]["name"] == "other"


def test_a_file_that_changes_is_not_reloaded_unless_asked(
    program: Program, model: pathlib.Path
) -> None:
    """With explicit control, a client requests it."""
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with serving(program, model, *flags) as ready:
        (one,) = ready["models"]
        assert json.loads(try_request(one, model.parent))["outputs"][0]["data"] == [2]
        model.write_bytes(constant_model(7))
        assert json.loads(try_request(one, model.parent))["outputs"][0]["data"] == [2]
        url = f"{ready['http']}/v2/repository/models/add_one/load"
        subprocess.run(["curl", "--silent", "--fail", "-X", "POST", url], check=True)
        assert json.loads(try_request(one, model.parent))["outputs"][0]["data"] == [8]


def test_forests_are_served_without_a_configuration(program: Program, tmp_path: pathlib.Path) -> None:
    """Probabilities of classes, from a file and from a directory."""
    goldens = pathlib.Path(__file__).parents[2] / "crates" / "forest" / "tests" / "goldens"
    (tmp_path / "inside").mkdir()
    (tmp_path / "tokens.model").write_text("of another program")
    for name in ("xgboost_logistic.json", "lightgbm_regression.txt", "xgboost_dart.ubj"):
        shutil.copy(goldens / name, tmp_path / "inside")
    shutil.copy(goldens / "lightgbm_regression.txt", tmp_path / "inside" / "model.txt")
    shutil.copy(goldens / "xgboost_logistic.json", tmp_path / "inside" / "xgboost.json")
    single = tmp_path / "old.model"
    shutil.copy(goldens / "old_xgboost_classes.model", single)
    with serving(program, single, tmp_path / "inside") as ready:
        models = {one["name"]: one for one in ready["models"]}
        one_number = ["lightgbm_regression", "model", "xgboost", "xgboost_dart", "xgboost_logistic"]
        assert sorted(models) == sorted([*one_number, "old"])
        sizes = {
            name: len(json.loads(try_request(one, tmp_path))["outputs"][0]["data"])
            for name, one in models.items()
        }
        assert sizes == {**dict.fromkeys(one_number, 1), "old": 3}


def test_what_can_not_be_served(program: Program, model: pathlib.Path) -> None:
    """Each error names what is wrong."""
    folder = model.parent
    (folder / "notes.txt").write_text("hello")
    (folder / "model.pt2").write_text("hello")
    (folder / "weights.pth").write_text("hello")
    (folder / "forest.joblib").write_text("hello")
    (folder / "broken.ubj").write_text("hello")
    (folder / "bad.onnx").write_text("hello")
    (folder / "empty").mkdir()
    (folder / "sub").mkdir()
    (folder / "sub" / "add one.onnx").write_bytes(constant_model(1))
    cases: list[tuple[list[object], str]] = [
        ([folder / "nothing.onnx"], f"error: there is no '{folder}/nothing.onnx'"),
        ([folder / "notes.txt"], "is neither an ONNX model (.onnx) nor a model in Python (.py)"),
        ([folder / "model.pt2"], "is no package of a compiled model: it is no ZIP archive"),
        ([folder / "weights.pth"], "(it has no code, but weights or a pickle): save one with"),
        ([SCRIPTED / "mlp.pt"], "is a model of TorchScript, which doesn't say the types and sizes"),
        ([SCRIPTED / "pair.pt"], 'input { name: "left" data_type: TYPE_FP32 dims: [ 4 ] }'),
        ([folder / "forest.joblib"], "is a pickle, which is code: export the model to ONNX"),
        ([folder / "broken.ubj"], f"failed to load '{folder}/broken.ubj': "),
        ([folder / "empty"], "has no model: no .onnx file, no model.py"),
        ([model, folder / "sub"], "would both be the model 'add_one'"),
        ([model, folder / "bad.onnx", "--name=x"], "'--name' needs exactly one model"),
    ]
    for arguments, reason in cases:
        code, out, errors = refused(program, *arguments)
        assert (code, out) == (1, ""), errors
        assert reason in errors
    code, _, errors = refused(program, model, folder / "bad.onnx")
    assert code == 1
    assert "ready   add_one" in errors
    assert "failed  bad: " in errors and f"'{folder}/bad.onnx'" in errors
    assert "The file is no ONNX model, or it is damaged." in errors
    assert "/1/model.onnx" not in errors
    code, out, _ = refused(program, "--json", folder / "bad.onnx")
    document = json.loads(out)
    assert document["models"][0]["state"] == "UNAVAILABLE"
    assert "not all models can be served" in document["error"]


def test_each_model_that_can_not_be_read_has_its_reason(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """This includes models that have no reason in the repository index."""
    for name, config in (("bad", "max_batch: 3"), ("other", 'name: "another"')):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    code, out, errors = refused(program, tmp_path)
    assert (code, out) == (1, "")
    assert re.search("^failed  bad: .*max_batch", errors, re.MULTILINE), errors
    assert "failed  other: " in errors and "unexpected directory name 'other'" in errors
    assert "error: not all models can be served" in errors
    code, out, _ = refused(program, "--json", tmp_path)
    models = {model["name"]: model for model in json.loads(out)["models"]}
    assert set(models) == {"bad", "other"} and code == 1
    assert models["other"]["state"] == "UNAVAILABLE"
    assert "unexpected directory name" in models["other"]["reason"]


def test_a_file_of_another_name_is_pointed_out(program: Program, tmp_path: pathlib.Path) -> None:
    """This is the case in the command's output and in the log."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "scale.onnx").write_bytes(constant_model(1))
    advice = "found scale.onnx, expected model.onnx, or set default_model_filename"
    for flags in ([], ["--log-info=true"]):
        code, out, errors = refused(program, tmp_path, *flags)
        assert code == 1 and advice in out + errors, (flags, out, errors)


def test_arguments_that_mean_nothing(program: Program, model: pathlib.Path) -> None:
    """The usage of the command is shown, not the server's."""
    for arguments, reason in (
        ([], "a model is missing"),
        ([model, "--nonsense"], "unrecognized option"),
        ([model, "--jsn"], 'Did you mean "--json"?'),
        ([model, "--htp-port=1"], 'Did you mean "--http-port"?'),
        ([model, "--name=a/b"], "it contains a slash"),
        ([model, "--load-model=x"], "requires setting '--model-control-mode=explicit'"),
    ):
        code, out, errors = refused(program, *arguments)
        assert (code, out) == (2, ""), arguments
        assert errors.startswith("error: ") and reason in errors
        assert errors.splitlines()[-1].startswith("Usage: galatea serve [options] MODEL...")


def test_without_onnx_runtime_the_error_says_how_to_get_it(
    program: Program, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The library isn't in any of the places that are searched."""
    done = subprocess.run(
        [str(program.path), "serve", *ANY_PORTS, str(model)], capture_output=True, text=True,
        timeout=SECONDS_MAX, env={"HOME": str(tmp_path), "PATH": str(tmp_path)},
    )
    if done.returncode == 0 or "ONNX Runtime's library was not found" not in done.stderr:
        pytest.skip("the system has ONNX Runtime")
    assert done.returncode == 1
    assert "pip install onnxruntime" in done.stderr


def test_a_port_in_use(program: Program, model: pathlib.Path) -> None:
    """The error names the flag for using another library."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        code, _, errors = refused(program, model, f"--http-port={taken.getsockname()[1]}")
    assert code == 1
    assert errors.endswith("already in use. Choose another with --http-port\n"), errors


def test_on_a_terminal(program: Program, model: pathlib.Path) -> None:
    """The line about models in progress is replaced by their states, in colour."""
    terminal = Terminal(command(program, *ANY_PORTS, model), {"TERM": "xterm", "NO_COLOR": ""})
    shown = terminal.read_until("Ctrl-C stops the server.")
    assert "\x1b[32mready\x1b[0m   add_one" in shown
    assert "Try it:" in shown and "curl --silent http://localhost:" in shown
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until("The server stops.")
    assert terminal.close() == 0


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_on_a_terminal_without_colours(
    program: Program, model: pathlib.Path, variables: Mapping[str, str]
) -> None:
    """Nothing is coloured."""
    terminal = Terminal(command(program, *ANY_PORTS, model), {"TERM": "xterm", **variables})
    shown = terminal.read_until("Ctrl-C stops the server.")
    assert "ready   add_one" in shown
    assert "\x1b[3" not in shown and "\x1b[1m" not in shown
    assert terminal.close() == 0


def test_away_from_terminals_nothing_is_coloured(program: Program, model: pathlib.Path) -> None:
    """The log is printed if flags enable it."""
    process = subprocess.Popen(
        command(program, *ANY_PORTS, "--log-info=true", model), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("curl "):
            break
    process.terminate()
    assert process.wait(SECONDS_MAX) == 0
    text = "".join(lines)
    assert "Started HTTPService" in text
    assert "\x1b" not in text


def test_under_the_name_of_triton_there_are_no_commands(
    program: Program, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Triton only accepts arguments that are options."""
    triton = tmp_path / "tritonserver"
    triton.symlink_to(program.path)
    for name in ("serve", "check", "new", "bench"):
        done = subprocess.run(
            [triton, name, model], capture_output=True, text=True, timeout=SECONDS_MAX
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"Unexpected argument: {name}\n")
