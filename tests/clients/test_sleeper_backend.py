"""Tests of the example backend whose executions cost what the model specifies."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from compiling import compile_library
from conftest import ROOT, StartServer
from server import Server
from transports import make_inputs

CONFIG = """
backend: "example_sleeper"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'

FIXED_US, ROW_US = 20_000, 1_000
WRONG = {"fixed_us": "soon", "row_us": "-1", "noise_percent": "101"}


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with models for the backend, some of which can't be loaded."""
    folder = tmp_path_factory.mktemp("sleeper")
    source = ROOT / "examples" / "backends" / "sleeper.c"
    compile_library(
        source, folder / "backends" / "example_sleeper" / "libtriton_example_sleeper.so"
    )
    repository = folder / "models"
    costs = PARAMETER.format("fixed_us", FIXED_US) + PARAMETER.format("row_us", ROW_US)
    models = {
        "quick": CONFIG,
        "exact": CONFIG + costs,
        "noisy": CONFIG + costs + PARAMETER.format("noise_percent", 50),
        **{name: CONFIG + PARAMETER.format(name, value) for name, value in WRONG.items()},
    }
    for name, config in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    options = ("--exit-on-error=false", "--strict-readiness=false")
    with start_server(
        repository, f"--backend-directory={folder / 'backends'}", *options
    ) as running:
        yield running.wait_until_ready()


def infer(server: Server, model: str, rows: int) -> None:
    """Sends a request, and checks that the response is its own."""
    tensor = numpy.arange(rows * 3, dtype=numpy.int32).reshape(rows, 3)
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        inputs = make_inputs(tritonclient.http, {"INPUT0": tensor})
        assert (client.infer(model, inputs).as_numpy("OUTPUT0") == tensor).all()


def slept_us(server: Server, model: str) -> dict[int, list[float]]:
    """The mean execution time, by rows."""
    found: dict[int, list[float]] = {}
    statistics: dict[str, Any] = server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
    for batch in statistics.get("batch_stats", []):
        spent = batch["compute_infer"]
        found[batch["batch_size"]] = [spent["ns"] / 1000 / spent["count"], spent["count"]]
    return found


def test_an_execution_takes_what_the_model_says(server: Server) -> None:
    """At least this much time passes; on a busy machine, it may be more."""
    for rows in (1, 8, 8):
        infer(server, "exact", rows)
    slept = slept_us(server, "exact")
    assert slept[1][0] >= FIXED_US + ROW_US
    assert slept[8][0] >= FIXED_US + 8 * ROW_US
    assert slept[8][1] == 2


def test_times_vary_if_they_may(server: Server) -> None:
    """Each duration is at least half of the usual one, and the random numbers are always the
    same."""
    for _ in range(8):
        infer(server, "noisy", 1)
    assert slept_us(server, "noisy")[1][0] >= (FIXED_US + ROW_US) / 2


def test_a_model_without_parameters_does_not_sleep(server: Server) -> None:
    """All costs are 0."""
    infer(server, "quick", 2)
    assert slept_us(server, "quick")[2][1] == 1


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_is_named(server: Server, name: str) -> None:
    """Its model doesn't load, but the others do."""
    with pytest.raises(InferenceServerException):
        infer(server, name, 1)
    assert f"the parameter {name} must be a number from 0 to" in server.log()
