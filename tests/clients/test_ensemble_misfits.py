"""Tests of servers whose repository contains an ensemble that doesn't fit its models. The
responses to loads of such ensembles are compared with Triton's in the suite `misfits` in
tests/differential."""

from __future__ import annotations

import json
import pathlib

import pytest

from conftest import StartServer
from server import Server, wait_until

MODEL = """\
backend: "identity"
max_batch_size: {batch}
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {steps} ] }}
"""
STEP = """{{ model_name: "{model}" model_version: -1
  input_map {{ key: "INPUT0" value: "{source}" }}
  output_map {{ key: "OUTPUT0" value: "{target}" }} }}"""
NARROW = (
    "ensemble misfit allows maximum batch size 8, but it contains model narrow which only "
    "allows maximum batch size to be 4"
)


def step(model: str, source: str = "IN", target: str = "OUT") -> str:
    """A step of an ensemble."""
    return STEP.format(model=model, source=source, target=target)


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """An ensemble that allows larger batches than its step, and an ensemble of that
    ensemble."""
    models = {
        "wide": MODEL.format(batch=8),
        "narrow": MODEL.format(batch=4),
        "misfit": ENSEMBLE.format(steps=step("narrow")),
        "outer": ENSEMBLE.format(steps=step("misfit").replace("PUT0", "")),
    }
    for name, text in models.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root: pathlib.Path, name: str, text: str) -> None:
    """A model with one version."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(text)


def check_known(server: Server) -> None:
    """The server is ready, and knows only the names of the two ensembles."""
    server.wait_until_ready()
    index = server.request("POST", "/v2/repository/index", b"").json()
    assert sorted(index, key=lambda entry: entry["name"]) == [
        {"name": "misfit"},
        {"name": "narrow", "version": "1", "state": "READY"},
        {"name": "outer"},
        {"name": "wide", "version": "1", "state": "READY"},
    ]
    for name in ("misfit", "outer"):
        reply = server.get(f"/v2/models/{name}/config")
        assert reply.status == 404
        assert reply.error() == f"Request for unknown model: '{name}' is not found"
    for text in (
        NARROW,
        "ensemble 'outer' depends on 'misfit' which is not valid. Model 'misfit' failed with "
        f"error: {NARROW}",
    ):
        assert text in server.log()


def test_the_server_ends(start_server: StartServer, repository: pathlib.Path) -> None:
    """By default, a server doesn't start if a model in its repository is missing."""
    with start_server(repository) as server:
        assert server.wait_for_exit() == 1
        assert NARROW in server.log()
        assert "failed to load all models" in server.log()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_the_server_is_ready_without_them(
    start_server: StartServer, repository: pathlib.Path, strict: str
) -> None:
    """A model that never had a version doesn't prevent a server from being ready."""
    flags = ("--exit-on-error=false", f"--strict-readiness={strict}")
    with start_server(repository, *flags) as server:
        check_known(server)


def test_an_ensemble_loads_when_its_step_fits(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """This is in a polled repository, without another change to the ensembles."""
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with start_server(repository, *flags) as server:
        check_known(server)
        (repository / "narrow" / "config.pbtxt").write_text(MODEL.format(batch=8))
        for name in ("misfit", "outer"):
            path = f"/v2/models/{name}/ready"
            wait_until(lambda path=path: server.get(path).status == 200, 60, f"{name} is ready")


@pytest.mark.galatea_only
def test_an_endless_ensemble_fails_requests(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Triton loads an ensemble whose step produces its own input, and executes it endlessly."""
    write(tmp_path, "wide", MODEL.format(batch=8))
    steps = ", ".join([step("wide", "IN", "IN"), step("wide", "IN", "OUT")])
    write(tmp_path, "endless", ENSEMBLE.format(steps=steps))
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        reply = server.infer("endless", {"inputs": [tensor]})
        assert reply.status == 500
        text = "ensemble 'endless' can't run: its input 'IN' is made by step 0 as well"
        assert json.loads(reply.body) == {"error": text}
        assert "is made by step 0 as well, so that requests fail" in server.log()
