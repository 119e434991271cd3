"""Tests of `galatea check`, which checks a repository without a server."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any

import make_models
import pytest

from conftest import StartServer
from constant_models import constant_model
from python_backend import interpreter_flag
from server import Program

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 60
#: Files of forests.
FORESTS = pathlib.Path(__file__).parents[2] / "crates" / "forest" / "tests" / "goldens"

IDENTITY = """\
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "{model}" model_version: -1
  input_map {{ key: "{key}" value: "IN" }}
  output_map {{ key: "OUTPUT0" value: "OUT" }}
}} ] }}
"""


def write(repository: pathlib.Path, name: str, config: str, version: str | None = "1") -> None:
    """A model, with an empty version."""
    (repository / name).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if version is not None:
        (repository / name / version).mkdir()


def check(program: Program, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the check."""
    command = program.command([])
    return subprocess.run(
        [command[0], "check", *command[1:], *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def errors(program: Program, *repositories_and_flags: object) -> dict[str, list[Any]]:
    """The errors of each model."""
    done = check(program, "--json", *repositories_and_flags)
    document = json.loads(done.stdout)
    found = {model["name"]: model["errors"] for model in document["models"]}
    assert document["ok"] == (done.returncode == 0) == (not any(found.values())), document
    return found


def test_check_accepts_a_good_repository(program: Program, tmp_path: pathlib.Path) -> None:
    """The repository contains the example models, an ensemble, and an ensemble of this ensemble."""
    make_models.write_models(tmp_path, make_models.EXAMPLES)
    write(tmp_path, "id", IDENTITY)
    write(tmp_path, "inner", ENSEMBLE.format(model="id", key="INPUT0"))
    outer = ENSEMBLE.format(model="inner", key="IN").replace("OUTPUT0", "OUT")
    write(tmp_path, "outer", outer)
    done = check(program, tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith("models, nothing wrong")
    found = errors(program, tmp_path)
    assert {"id", "inner", "outer"} < set(found)
    assert not any(found.values())


def test_all_errors_of_a_file_with_their_places(program: Program, tmp_path: pathlib.Path) -> None:
    """The errors are printed as JSON and as text."""
    config = IDENTITY.replace("8", "-8") + "instance_group [ { kind: KIND_GPU } ]\n"
    write(tmp_path, "model", config)
    write(tmp_path, "other", IDENTITY)
    found = errors(program, tmp_path)
    assert found["other"] == []
    places = {(one["field"], one["line"], one["column"]) for one in found["model"]}
    assert ("max_batch_size", 2, 1) in places
    assert ("instance_group[0].kind", 5, 20) in places
    assert all(one["file"].endswith("model/config.pbtxt") for one in found["model"])
    done = check(program, tmp_path)
    assert done.returncode == 1
    assert "config.pbtxt:2:1" in done.stdout
    assert "^^^" in done.stdout


def test_syntax_errors_come_with_suggestions(program: Program, tmp_path: pathlib.Path) -> None:
    """Several errors are reported at once."""
    write(tmp_path, "model", "backend: 'identity'\nmax_batchsize: 1\nfoo { }\n")
    first, second = errors(program, tmp_path)["model"]
    assert (first["line"], first["suggestion"]) == (2, "max_batch_size")
    assert (second["line"], "suggestion" in second) == (3, False)


@pytest.mark.parametrize(
    ("config", "version", "reason"),
    [
        ('backend: "onnxruntime"', "1", "unable to find 'model.onnx'"),
        ('backend: "nonsense"', "1", "unable to find backend library for backend 'nonsense'"),
        (IDENTITY, None, "at least one version must be available"),
        (IDENTITY + 'name: "other"', "1", "unexpected directory name 'model'"),
        ("max_batch_size: 1", "1", "backend"),
        (ENSEMBLE.format(model="absent", key="INPUT0"), "1", "not available"),
        (ENSEMBLE.format(model="model", key="INPUT0"), "1", "is the ensemble itself"),
        (ENSEMBLE.format(model="good", key="NONE"), "1", "non-existing input NONE"),
        (
            IDENTITY + 'model_warmup { name: "s" batch_size: 1 inputs { key: "INPUT0" value { '
            'data_type: TYPE_FP32 dims: 4 input_data_file: "absent" } } }',
            "1",
            "absent",
        ),
    ],
)
def test_models_that_would_not_load(
    program: Program, tmp_path: pathlib.Path, config: str, version: str | None, reason: str
) -> None:
    """Each case has one error, and the model next to it is valid."""
    write(tmp_path, "model", config, version)
    write(tmp_path, "good", IDENTITY)
    found = errors(program, tmp_path)
    assert found["good"] == []
    assert any(reason in one["message"] for one in found["model"]), found


MISNAMED = "found {0}, expected model.{1}, or set default_model_filename"


def test_a_file_of_another_name_is_pointed_out(program: Program, tmp_path: pathlib.Path) -> None:
    """With and without a configuration. The expected file is named."""
    cases = {
        "bare": (None, "scale.onnx"),
        "onnx": ('backend: "onnxruntime"', "scale.onnx"),
        "python": ('backend: "python"', "code.py"),
    }
    for name, (config, file) in cases.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / file).write_bytes(constant_model(1))
        if config is not None:
            (tmp_path / name / "config.pbtxt").write_text(config)
    found = errors(program, interpreter_flag(), tmp_path)
    for name, (_, file) in cases.items():
        (error,) = found[name]
        kind = file.rpartition(".")[2]
        assert MISNAMED.format(file, kind) in error["message"], error
    (tmp_path / "onnx" / "config.pbtxt").write_text(
        'backend: "onnxruntime" default_model_filename: "scale.onnx"'
    )
    assert errors(program, tmp_path / "onnx") == {"onnx": []}


def test_an_unknown_backend_has_advice(program: Program, tmp_path: pathlib.Path) -> None:
    """The message suggests the intended name, and what has to be installed."""
    backends = tmp_path / "backends"
    for name in ("onxruntime", "tensorrt"):
        write(tmp_path / "r", name, f'backend: "{name}"')
    write(tmp_path / "r", "id", IDENTITY)
    done = check(program, "--json", f"--backend-directory={backends}", tmp_path / "r")
    found = {model["name"]: model["warnings"] for model in json.loads(done.stdout)["models"]}
    library = f"'{backends}/{{0}}/libtriton_{{0}}.so'"
    (typo,), (absent,) = found["onxruntime"], found["tensorrt"]
    assert "did you mean 'onnxruntime'?" in typo and library.format("onxruntime") in typo
    assert "did you mean" not in absent and library.format("tensorrt") in absent
    assert found["id"] == []
    command = program.command([])
    server = subprocess.run(
        [*command, f"--model-repository={tmp_path / 'r'}", f"--backend-directory={backends}",
         "--http-port=0", "--grpc-port=0", "--metrics-port=0"],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert server.returncode == 1
    assert "model 'onxruntime': there is no backend 'onxruntime': did you mean" in server.stderr


def test_missing_versions_cause_a_warning(program: Program, tmp_path: pathlib.Path) -> None:
    """The server serves the other versions."""
    write(tmp_path, "model", IDENTITY + "version_policy { specific { versions: [ 1, 7 ] } }")
    done = check(program, "--json", tmp_path)
    (model,) = json.loads(done.stdout)["models"]
    assert done.returncode == 0, model
    assert model["errors"] == []
    assert model["warnings"] == ["version_policy: version 7 has no directory"]


# row: RL-03
def test_resources_of_the_rate_limiter(program: Program, tmp_path: pathlib.Path) -> None:
    """The check finds unobtainable resources and conflicting definitions."""

    def limited(resource: str) -> str:
        return IDENTITY + (
            "instance_group { kind: KIND_CPU count: 2 rate_limiter { resources "
            f'{{ name: "R" {resource} }} }} }}'
        )

    write(tmp_path, "a", limited("count: 1"))
    write(tmp_path, "b", limited("count: 2"))
    write(tmp_path, "c", limited("count: 1 global: true"))
    write(tmp_path, "d", limited("count: 1"))
    assert not any(errors(program, tmp_path).values()), "nothing is limited"
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:1")
    found = errors(program, *flags, tmp_path)
    assert found["a"] == found["d"] == []
    assert "minimum required count is 2" in found["b"][0]["message"]
    assert "both global and device-specific" in found["c"][0]["message"]
    assert {one[0]["field"] for one in (found["b"], found["c"])} == {"instance_group"}


def test_versions_that_steps_of_ensembles_name(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A missing version is reported with its step, as the server does."""

    def pinned(model: str, version: int, key: str = "INPUT0") -> str:
        config = ENSEMBLE.format(model=model, key=key)
        return config.replace("model_version: -1", f"model_version: {version}")

    policy = "version_policy { specific { versions: [ 1, 3 ] } }"
    write(tmp_path, "part", IDENTITY + policy)
    for version in ("2", "3"):
        (tmp_path / "part" / version).mkdir()
    write(tmp_path, "older", pinned("part", 1))
    write(tmp_path, "newest", pinned("part", 3))
    assert not any(errors(program, tmp_path).values())

    write(tmp_path, "absent", pinned("part", 7))
    # The version has a directory, but isn't to be loaded.
    write(tmp_path, "left_out", pinned("part", 2))
    # An ensemble can't use a model that doesn't load either.
    outer = ENSEMBLE.format(model="absent", key="IN").replace("OUTPUT0", "OUT")
    write(tmp_path, "outer", outer)
    write(tmp_path, "several", pinned("part", 9, "NONE"))
    found = errors(program, tmp_path)
    assert {name for name, errors in found.items() if errors} == {
        "absent",
        "left_out",
        "outer",
        "several",
    }
    (error,) = found["absent"]
    reason = "ensemble 'absent' depends on 'part' whose required version 7 is not loaded."
    assert error["message"] == reason
    assert error["field"] == "ensemble_scheduling.step[0].model_version"
    assert (error["line"], error["column"]) == (6, 22)
    assert "whose required version 2 is not loaded" in found["left_out"][0]["message"]
    assert "not available" in found["outer"][0]["message"]
    messages = " ".join(one["message"] for one in found["several"])
    assert "whose required version 9 is not loaded" in messages
    assert "non-existing input NONE" in messages

    # The server reports the same.
    with start_server(tmp_path, "--exit-on-error=false") as server:
        assert reason in server.wait_until_live().log()


def test_check_reports_a_damaged_model_file(program: Program, tmp_path: pathlib.Path) -> None:
    """The backend reads the file."""
    write(tmp_path, "model", 'backend: "onnxruntime"')
    (tmp_path / "model" / "1" / "model.onnx").write_bytes(b"nothing")
    (error,) = errors(program, tmp_path)["model"]
    assert "model.onnx" in error["message"]
    assert error["file"].endswith("model/1")


# row: CLI-06
def test_several_repositories_and_flags(program: Program, tmp_path: pathlib.Path) -> None:
    """A model may be in only one repository; flags work as for the server."""
    for name in ("one", "two"):
        write(tmp_path / name, "model", IDENTITY)
    done = check(program, "--json", tmp_path / "one", tmp_path / "two")
    assert done.returncode == 1
    (error,) = json.loads(done.stdout)["errors"]
    assert "not unique" in error
    (tmp_path / "one" / "model" / "config.pbtxt").unlink()
    assert check(program, tmp_path / "two").returncode == 0
    done = check(program, "--disable-auto-complete-config", tmp_path / "one")
    assert done.returncode == 1
    assert "configurations are not completed" in done.stdout or "backend" in done.stdout


def test_models_of_one_name_in_namespaces(program: Program, tmp_path: pathlib.Path) -> None:
    """An ensemble uses the model in its own repository, or else the only one of that name."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    of_part = ENSEMBLE.format(model="part", key="INPUT0")
    write(one, "part", IDENTITY)
    write(two, "part", IDENTITY.replace("PUT0", "PUT1"))
    write(one, "pipeline", of_part)
    write(two, "pipeline", of_part.replace("PUT0", "PUT1"))
    write(two, "outer", ENSEMBLE.format(model="pipeline", key="IN").replace("OUTPUT0", "OUT"))
    write(one, "only", IDENTITY)
    write(three, "of_only", ENSEMBLE.format(model="only", key="INPUT0"))
    flag = "--model-namespacing=true"
    good = errors(program, one, two, three, flag)
    assert {f"{one}::part", f"{two}::part", f"{three}::of_only"} < set(good)
    assert not any(good.values()), good

    write(three, "of_any", of_part)
    write(two, "of_other", of_part)
    write(three, "a::b", IDENTITY)
    # A model that can't be read doesn't count as a model, so the ensembles use the only other one.
    write(two, "only", IDENTITY.replace("8", "-8"))
    write(two, "of_bad", ENSEMBLE.format(model="only", key="INPUT0"))
    found = errors(program, one, two, three, flag)
    reasons = {name: errors[0]["message"] for name, errors in found.items() if errors}
    expected = {
        f"{three}::of_any": "not available or ambiguous",
        f"{two}::of_other": "non-existing input INPUT0",
        f"{three}::a\\:\\:b": "contains '::'",
        f"{two}::only": "max_batch_size",
    }
    assert set(reasons) == set(expected)
    for name, reason in expected.items():
        assert reason in reasons[name], (name, reasons[name])
    assert check(program, one, two).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["--no-such-flag", "x"], 2), (["/no/such/directory"], 1)]
)
def test_repositories_that_cannot_be_checked(
    program: Program, arguments: list[str], code: int
) -> None:
    """There is a message on the error stream, and no success."""
    done = check(program, *arguments)
    assert done.returncode == code
    assert done.stderr.strip()


def test_files_and_directories_of_models_are_checked(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """Files are named as they were given, not as the server would see them."""
    good, bad, python = tmp_path / "good.onnx", tmp_path / "bad one.onnx", tmp_path / "words.py"
    good.write_bytes(constant_model(1))
    bad.write_text("hello")
    python.write_text("def predict(text: list[str]) -> list[int]:\n    return [1]\n")
    write(tmp_path / "models", "net", IDENTITY.replace("FP32", "FP33"))
    found = errors(program, good, bad, tmp_path / "models" / "net")
    assert set(found) == {"good", "bad_one", "net"} and not found["good"]
    (error,) = found["bad_one"]
    assert error["file"] == str(bad) and str(bad) in error["message"], error
    assert {one["file"] for one in found["net"]} == {f"{tmp_path}/models/net/config.pbtxt"}
    done = check(program, good)
    assert done.returncode == 0 and done.stdout.endswith("1 model, nothing wrong\n"), done.stdout
    done = check(program, interpreter_flag(), python)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "notes.txt").write_text("hello")
    done = check(program, tmp_path / "notes.txt")
    assert done.returncode == 1 and "is neither an ONNX model" in done.stderr


def test_files_of_forests_are_checked(program: Program, tmp_path: pathlib.Path) -> None:
    """They are named as they were given: alone, in a directory and in a repository."""
    folder, models = tmp_path / "files", tmp_path / "models"
    folder.mkdir()
    given = {
        "xgboost_logistic.json": "xgboost.json", "lightgbm_regression.txt": "model.txt",
        "sklearn_forest_classes.tl": "checkpoint.tl", "xgboost_dart.ubj": "small.ubj",
        "old_xgboost_dart.model": "xgboost.model",
    }
    for golden, name in given.items():
        shutil.copy(FORESTS / golden, folder / name)
    names = {"xgboost", "model", "checkpoint", "small"}
    (folder / "xgboost.model").rename(tmp_path / "old.model")
    found = errors(program, folder, tmp_path / "old.model")
    assert found == dict.fromkeys(names | {"old"}, []), found
    broken = tmp_path / "broken.json"
    broken.write_text('{"learner": 1}')
    found = errors(program, broken, folder / "small.ubj")
    assert not found["small"]
    (error,) = found["broken"]
    assert error["file"] == str(broken) and str(broken) in error["message"], error
    version = models / "churn" / "1"
    version.mkdir(parents=True)
    shutil.copy(folder / "xgboost.json", version)
    config = (
        'backend: "fil"\ninput { name: "input__0" data_type: TYPE_FP32 dims: [ -1, 7 ] }\n'
        'output { name: "output__0" data_type: TYPE_FP32 dims: [ -1, 1 ] }\n'
        'parameters { key: "model_type" value { string_value: "xgboost_json" } }\n'
        'parameters { key: "is_classifier" value { string_value: "true" } }\n'
    )
    (models / "churn" / "config.pbtxt").write_text(config)
    (error,) = errors(program, models)["churn"]
    assert "'input__0' has 7 values for each row, but the model takes 6" in error["message"], error
    (models / "churn" / "config.pbtxt").write_text(config.replace("7", "6"))
    assert errors(program, models) == {"churn": []}


def test_a_repository_is_only_its_models(program: Program, tmp_path: pathlib.Path) -> None:
    """The server ignores other files in a repository. An empty repository is valid too."""
    write(tmp_path / "r", "id", IDENTITY)
    (tmp_path / "r" / "id.onnx").write_bytes(constant_model(1))
    assert errors(program, tmp_path / "r") == {"id": []}
    (tmp_path / "empty").mkdir()
    assert errors(program, tmp_path / "empty") == {}


def test_what_a_user_of_triton_would_want_to_know(program: Program, tmp_path: pathlib.Path) -> None:
    """The report includes backends with their libraries, settings without effect, and
    differences for these models."""
    write(tmp_path, "ordered", IDENTITY + "dynamic_batching { preserve_ordering: true }")
    write(tmp_path, "ignored", IDENTITY + "optimization { eager_batching: true }")
    make_models.write_models(tmp_path, make_models.EXAMPLES)
    flags = ["--cuda-memory-pool-byte-size=0:1", "--backend-config=identity,x=1"]
    document = json.loads(check(program, "--json", *flags, tmp_path).stdout)
    backends = {one["name"]: one["library"] for one in document["backends"]}
    assert backends["identity"] is None
    assert "libonnxruntime" in backends["onnxruntime"]
    by_model = {one["name"]: one for one in document["models"]}
    assert by_model["ordered"]["backend"] == "identity"
    (warning,) = by_model["ignored"]["warnings"]
    assert warning.startswith("'optimization.eager_batching' changes nothing")
    first, second = document["flags_without_effect"]
    assert first.startswith("'--cuda-memory-pool-byte-size' has no effect")
    assert second == "'--backend-config=identity,x=1' has no effect"
    found = {one["text"].split(" ")[0]: one["models"] for one in document["differences"]}
    assert found["preserve_ordering"] == ["ordered"]
    assert found["requests"] == []

    text = check(program, *flags, tmp_path).stdout
    assert "warning: model 'ignored': 'optimization.eager_batching'" in text
    assert "\nbackends:\n  identity: built in\n  onnxruntime: " in text
    assert "\nflags without effect:\n  '--cuda-memory-pool-byte-size'" in text
    assert "\ndifferent from Triton (docs/differences.md has everything):\n" in text
    assert "in the order of the requests (ordered)\n" in text
    limited = check(program, "--json", "--memory-limit=1000000000", tmp_path).stdout
    assert not any(one["text"].startswith("requests") for one in json.loads(limited)["differences"])
