"""Tests of `galatea tune`, which chooses instances, batches, delays and threads for an
objective."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import pytest

from constant_models import constant_model
from conftest import StartServer
from python_backend import interpreter_flag
from server import Program

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 180
QUICK = ["--seconds=1", "--instances=2", "--max-batch=8"]
#: Each execution sleeps, whatever its size. Requests are not joined. It sleeps for so long that
#: serving takes little of a processor, however busy the machine is.
SLEEPING = """\
# What the team agreed on.
backend: "identity"
max_batch_size: 2  # small
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "execute_delay_ms" value { string_value: "20" } }
"""

#: A row takes 20 ms alone, and two together eight times as long: no noise turns that round.
LARGER_IS_SLOWER = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "INPUT0").as_numpy() for one in requests]
        # sleep: the cost of an execution, which the command measures
        time.sleep(0.02 * 8 ** (sum(len(one) for one in inputs) - 1))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one)]) for one in inputs
        ]
"""


def run(program: Program, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command until it ends, with the flags of the server under test."""
    first, *flags = program.command([])
    line = [first, "tune", *flags, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def results(program: Program, *arguments: object) -> dict[str, Any]:
    """The document that it prints."""
    done = run(program, *QUICK, *arguments, "--json")
    assert done.returncode == 0, done
    # The progress is printed even without a terminal, and without Python's own terms.
    steps = [line.split()[0] for line in done.stderr.splitlines()]
    assert set(steps) == {"starting", "measuring", "simulating", "checking"}, done.stderr
    assert "Some" not in done.stderr and "None" not in done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    (default,) = [one for one in found["checked"] if one["is_default"]]
    assert found["checked"][0]["measured"] >= default["measured"] / 1.001
    return found


@pytest.fixture
def sleeping(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of a model."""
    directory = tmp_path / "models" / "sleeping"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(SLEEPING)
    return directory


def test_the_best_configuration_is_written_and_loads(
    program: Program, sleeping: pathlib.Path, start_server: StartServer
) -> None:
    """Large batches are best if they cost nothing. Existing settings are not replaced unless
    this is requested."""
    config = sleeping / "config.pbtxt"
    output = sleeping.parent.parent / "config.pbtxt"
    found = results(program, sleeping, "--output", output)
    assert config.read_text() == SLEEPING
    best = found["checked"][0]
    assert (best["is_default"], best["instances"], best["max_batch"]) == (False, 2, 8)
    assert found["simulated"] == 8 and best["simulated"] > 0
    assert [curve["instances"] for curve in found["costs"]] == [1, 2]
    assert min(found["costs"][0]["ms"].values()) >= 20
    text = output.read_text()
    assert text == found["config"]
    # Only this part is changed; the other lines and comments in the file stay.
    changed = SLEEPING.replace("batch_size: 2", "batch_size: 8").replace("count: 1", "count: 2")
    assert text == changed + "dynamic_batching { }\n"
    changes = ["max_batch_size: 2 -> 8", "instances: 1 -> 2", "dynamic_batching is added"]
    assert found["changes"] == changes
    config.write_text(text)
    with start_server(sleeping.parent) as server:
        server.wait_until_ready()
        loaded = json.loads(server.request("GET", "/v2/models/sleeping/config").body)
        assert loaded["max_batch_size"] == 8 and "dynamic_batching" in loaded


def test_smaller_batches_are_not_written_unasked(
    program: Program, sleeping: pathlib.Path
) -> None:
    """A batch takes longer than its requests one by one, so no batching is best. Clients send
    some batches."""
    batching = "dynamic_batching {\n  preserve_ordering: true  # for the log\n}\n"
    own = SLEEPING.replace('"identity"', '"python"')
    config = sleeping / "config.pbtxt"
    config.write_text(own + batching)
    (sleeping / "1" / "model.py").write_text(LARGER_IS_SLOWER)
    line = [sleeping, interpreter_flag(), "--max-batch=2", "--instances=1", "--write"]
    found = results(program, *line)
    assert all(one["max_batch"] == 2 for one in found["checked"]), found
    assert config.read_text() == found["config"] == own + batching and found["changes"] == []
    (note,) = [note for note in found["notes"] if "--allow-smaller-batches tries that" in note]
    assert note.startswith("instances 1, no batching may do better (simulated: "), found
    found = results(program, *line, "--allow-smaller-batches")
    assert found["checked"][0]["max_batch"] == 1, found
    # Its requests may still be as large.
    assert config.read_text() == found["config"] == own
    assert found["changes"] == ["dynamic_batching is dropped"]
    done = run(program, sleeping, interpreter_flag(), *QUICK, "--instances=1", "--max-batch=2")
    assert done.returncode == 0 and "# Objective: rows per second." in done.stdout
    assert done.stdout.endswith(own) and "# Nothing is changed" in done.stdout, done


@pytest.mark.parametrize(
    ("objective", "simulated"), [("p99<400ms", 4 + 3 * 5), ("goodput<400ms", 4 + 3)]
)
def test_latencies_are_objectives(
    program: Program, sleeping: pathlib.Path, objective: str, simulated: int
) -> None:
    """If there is time to wait, batches are best too. Each size is tried with its delays, or
    with the objective."""
    found = results(program, sleeping, f"--objective={objective}", "--instances=1")
    best = found["checked"][0]
    assert best["measured"] > 0 and best["max_batch"] > 1, found
    assert best["latency_ms"] <= 400
    assert found["simulated"] == simulated


def test_rows_count_and_not_requests(program: Program, sleeping: pathlib.Path) -> None:
    """The file is replaced if this is requested."""
    config = sleeping / "config.pbtxt"
    found = results(program, sleeping, "--batch=2", "--instances=1", "--write")
    best = found["checked"][0]
    # An execution takes 20 ms, so with 8 rows each there are 400 rows per second, and half as many
    # requests.
    assert best["max_batch"] == 8 and 200 < best["measured"] <= 420, found
    assert best["simulated"] > 200
    assert config.read_text() == found["config"]


def test_padding_is_kept_where_requests_are_joined(
    program: Program, sleeping: pathlib.Path
) -> None:
    """It is refused for a model without batches."""
    padding = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"batch_padding": "INPUT0=0", "batch_padding_outputs": "OUTPUT0=1"}.items()
    )
    text = SLEEPING.replace("[ 4 ]", "[ -1 ]") + "dynamic_batching { }\n" + padding
    (sleeping / "config.pbtxt").write_text(text)
    found = results(program, sleeping, "--instances=1", "--shape=INPUT0:4")
    assert found["checked"][0]["max_batch"] > 1, found
    assert 'key: "batch_padding"' in found["config"]


def test_threads_of_onnx_models_are_tried(program: Program, tmp_path: pathlib.Path) -> None:
    """A file without a configuration gets one."""
    model = tmp_path / "plus.onnx"
    model.write_bytes(constant_model(1))
    output = tmp_path / "config.pbtxt"
    found = results(program, model, "--max-batch=1", "--output", output)
    assert {curve["threads"] for curve in found["costs"]} >= {None, 1}
    assert output.read_text() == found["config"]
    done = run(program, model, "--output", output)
    assert done.returncode == 2 and "is replaced only with '--write'" in done.stderr


def test_what_can_not_be_tuned_is_refused(
    program: Program, sleeping: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """An invalid objective, and one that no configuration reaches."""
    done = run(program, sleeping, "--objective=fast")
    assert done.returncode == 2
    assert "'--objective' is throughput, p99<20ms or goodput<20ms, not 'fast'" in done.stderr
    done = run(program, sleeping, "--objective=p99<1ms", *QUICK, "--instances=1", "--max-batch=2")
    assert done.returncode == 1 and "no configuration reaches the objective" in done.stderr
    assert "as it is: not within 1ms at any rate tried" in done.stderr
    done = run(program, sleeping, "--objective=goodput<1ms", *QUICK, "--instances=1", "--max-batch=2")
    assert done.returncode == 1 and "no configuration reaches the objective" in done.stderr
    done = run(program, tmp_path / "missing")
    assert done.returncode == 1 and "missing" in done.stderr


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("sequence_batching { }", "has a sequence batcher"),
        ("model_transaction_policy { decoupled: true }", "is decoupled"),
    ],
)
def test_schedulers_that_are_not_simulated_are_refused(
    program: Program, sleeping: pathlib.Path, more: str, reason: str
) -> None:
    """This happens before anything is measured."""
    (sleeping / "config.pbtxt").write_text(SLEEPING + more)
    done = run(program, sleeping)
    assert done.returncode == 1 and reason in done.stderr, done
