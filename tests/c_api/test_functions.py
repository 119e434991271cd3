"""Tests of a request's properties on both sides: tritonserver.h and tritonbackend.h.

The backend inspector.c returns all that it can query. The expected values are
those of Triton's library for the same program, except for the texts of some errors.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

TENSORS = """
backend: "inspector"
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
]
output [
  { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OTHER" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
MODELS = {
    # The backend reports the number of instances.
    "tells": TENSORS
    + """
instance_group {
  kind: KIND_CPU host_policy: "near" secondary_devices { kind: KIND_NVDLA device_id: 3 }
}
""",
    "raw": """
backend: "inspector"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output [
  { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OTHER" data_type: TYPE_STRING dims: [ 1 ] }
]
""",
    "waits": TENSORS + 'parameters { key: "waits" value { string_value: "yes" } }',
    "counts": TENSORS
    + """
sequence_batching {
  state {
    input_name: "PREVIOUS" output_name: "NEXT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
  }
}
""",
}
#: The lines of every request to `tells` before those of the request itself.
LOADED = """
backend inspector policy 0 artifact 0
backend config {"cmdline":{"auto-complete-config":"true","backend-directory":"DIRECTORY",\
"colour":"red","default-max-batch-size":"4","min-compute-capability":"6.000000"}}
version known 1 policy now 1
memory ok
model tells version 1 artifact 0 at /tells completes 1 state 1
config 2: Invalid argument: model configuration version 2 not supported, supported versions \
are: 1
state 1
instance tells_0_N kind 1 device 0 passive 0
profile 0 Invalid argument: out of bounds index 0: instance is configured with 0 profiles -
secondary device 0 ok KIND_NVDLA 3
secondary device 1 Invalid argument: out of bounds index 1: instance is configured with 1 \
secondary devices  -1
host policy {"near":{"cpu-cores":"0-0"}}
"""
FULL = """
request seven flags 1 timeout 60000000 cancelled 0 traced 0
correlation number 1099511627776 ok
correlation text '' Invalid argument: [request id: seven] correlation ID in request is not a \
string
parameter string "v"
parameter int -3
parameter bool true
parameter double 1.50
parameter 4: Invalid argument: [request id: seven] out of bounds index 4: request has 4 \
parameters
input INPUT0 INT32 rank 2 last 3 bytes 12 buffers 1
for the host policy: bytes 12 buffers 1
buffer 12 in 0 0 begins with 5
for the host policy: 12 the same 1
its attributes 0 0 12
by name the same 1
input INPUT1 INT32 rank 2 last 1 bytes 4 buffers 1
for the host policy: bytes 4 buffers 1
buffer 4 in 0 0 begins with 4
for the host policy: 4 the same 1
its attributes 0 0 4
by name the same 1
input 2: Invalid argument: [request id: seven] out of bounds index 2: request has 2 inputs
no input: Invalid argument: [request id: seven] unknown request input name NONE
output TOLD
output 1: Invalid argument: [request id: seven] out of bounds index 1: request has 1 requested \
outputs
an output would have 6 bytes in 1 3 ok
unsent OTHER BYTES rank 2 last 7
by name BYTES rank 2 last 7
unsent 1: Invalid argument: out of bounds index 1: response has 1 outputs
no output: Not found: Output name NONE not found.
deleted ok
state Invalid argument: unable to add state 'NEXT'. State configuration is missing for model \
'tells'.
"""
BARE = """
request  flags 0 timeout 0 cancelled 0 traced 0
correlation number 0 ok
correlation text '' Invalid argument: [request id: <id_unknown>] correlation ID in request is \
not a string
parameter 0: Invalid argument: [request id: <id_unknown>] out of bounds index 0: request has 0 \
parameters
input INPUT0 INT32 rank 2 last 1 bytes 4 buffers 1
for the host policy: bytes 4 buffers 1
buffer 4 in 0 0 begins with 1
for the host policy: 4 the same 1
its attributes 0 0 4
by name the same 1
input 1: Invalid argument: [request id: <id_unknown>] out of bounds index 1: request has 1 inputs
no input: Invalid argument: [request id: <id_unknown>] unknown request input name NONE
output OTHER
output TOLD
output 2: Invalid argument: [request id: <id_unknown>] out of bounds index 2: request has 2 \
requested outputs
an output would have 5 bytes in 2 2 Unavailable: [request id: <id_unknown>] Output properties \
are not available
unsent OTHER BYTES rank 2 last 7
by name BYTES rank 2 last 7
unsent 1: Invalid argument: out of bounds index 1: response has 1 outputs
no output: Not found: Output name NONE not found.
deleted ok
state Invalid argument: unable to add state 'NEXT'. State configuration is missing for model \
'tells'.
"""
NO_STRING = "Invalid argument: given request's correlation id is not a string"
NO_NUMBER = "Invalid argument: given request's correlation id is not an unsigned int"


@pytest.fixture(scope="module")
def results(
    library: pathlib.Path,
    compile: Callable[..., pathlib.Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The results of the program and the backend."""
    folder = tmp_path_factory.mktemp("telling")
    options = ["-std=gnu11", "-shared", "-fPIC", "-I", ROOT / "examples/backends"]
    inspector = compile("cc", HERE / "inspector.c", *options)
    backends = folder / "backends"
    (backends / "inspector").mkdir(parents=True)
    inspector.rename(backends / "inspector" / "libtriton_inspector.so")
    for name, config in MODELS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
    command = [sys.executable, HERE / "inspect_library.py", library, folder / "models", backends]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "finalized with 0 instances state 1\n" in ended.stderr
    return json.loads(ended.stdout.replace(str(backends), "DIRECTORY"))


def normalized(lines: list[str]) -> list[str]:
    """Removes the values that may differ from run to run."""
    text = re.sub(r"instance tells_0_[01] ", "instance tells_0_N ", "\n".join(lines))
    return text.replace("profiles (null)", "profiles -").split("\n")


# row: PPAR-01 INST-11 BAPI-04 BAPI-07 BAPI-12
def test_a_backend_sees_the_whole_request(results: dict[str, Any]) -> None:
    """Removed properties are absent, and the query function places the outputs."""
    full = results["full"]
    assert normalized(full["response"]["lines"]) == (LOADED.strip() + FULL.rstrip()).split("\n")
    assert full["queries"] == [[42, "TOLD", 5, 2, 2]]


# row: BAPI-07
def test_a_backend_sees_a_minimal_request(results: dict[str, Any]) -> None:
    """All outputs are requested, and their placement is unknown."""
    assert normalized(results["bare"]["lines"]) == (LOADED.strip() + BARE.rstrip()).split("\n")


# row: SAPI-06
def test_a_request_returns_what_was_set(results: dict[str, Any]) -> None:
    """The getters are called before, between and after the setters."""
    full = results["full"]
    for state in ("before", "texts", "after"):
        assert full[state].pop("IsCancelled").startswith("Internal: ")
    empty = {"Id": "", "Flags": 0, "CorrelationId": 0, "CorrelationIdString": NO_STRING}
    empty |= {"Priority": 0, "PriorityUInt64": 0, "TimeoutMicroseconds": 0}
    assert full["before"] == empty
    texts = {"Id": "seven", "Flags": 1, "CorrelationId": NO_NUMBER, "CorrelationIdString": "words"}
    assert full["texts"] == empty | texts
    # The model has no priority levels.
    assert full["low"] == 0
    later = {"CorrelationId": 1 << 40, "CorrelationIdString": NO_STRING}
    later |= {"TimeoutMicroseconds": 60_000_000}
    assert full["after"] == empty | texts | later


# row: PPAR-02 BAPI-09 SAPI-08
def test_a_response_returns_what_its_backend_set(results: dict[str, Any]) -> None:
    """The response has parameters of every kind, and one output."""
    response = {
        name: value for name, value in results["full"]["response"].items() if name != "lines"
    }
    assert response == {
        "model": "tells 1",
        "id": "seven",
        "parameters": {"text": "words", "number": -7, "flag": True, "fraction": 0.5},
        "outputs": "1 TOLD [1, 1]",
        "memory": [0, 0],
    }


# row: BAPI-08 SAPI-03
def test_an_input_may_have_buffer_attributes_and_host_policy_data(results: dict[str, Any]) -> None:
    """The general data has its attributes; the instance's policy has separate data."""
    assert results["described"] == [
        "input INPUT0 INT32 rank 2 last 2 bytes 8 buffers 1",
        "for the host policy: bytes 8 buffers 1",
        "buffer 8 in 0 0 begins with 2",
        "for the host policy: 8 the same 0",
        "its attributes 0 0 8",
    ]


# row: SAPI-06
def test_raw_input_needs_a_model_with_one_input(results: dict[str, Any]) -> None:
    """The configuration determines its name, type and shape."""
    assert results["raw"]["raw"] == ["input INPUT0 INT32 rank 2 last 2 bytes 8 buffers 1"]
    (refusal,) = results["raw"]["tells"]
    assert refusal.startswith(
        "Invalid argument: [request id: <id_unknown>] Raw request must only have 1 input (found 1) "
        "to be deduced but got 2 inputs in 'tells' model configuration"
    )


# row: SAPI-07
def test_allocator_functions_may_be_set_late(results: dict[str, Any]) -> None:
    """A request that already uses the allocator gets the new functions, but its outputs keep
    their place."""
    size = len("TOLD") + 1
    assert results["late_allocator_functions"] == {
        "queries": [[43, "TOLD", size, 2, 2]],
        "described": [["TOLD", 43]],
        "memory": [0, 0],
    }


# row: IMP-10 BAPI-11
def test_a_state_follows_its_sequence(results: dict[str, Any]) -> None:
    """The state's buffer attributes are reported too."""
    assert results["sequence"] == [
        ["correlation text 'one' ok", "its state's attributes 0 0 4", f"state {step} ok"]
        for step in range(3)
    ]


# row: CAN-01
def test_a_backend_notices_a_cancelled_request(results: dict[str, Any]) -> None:
    """The backend responds only after the cancellation."""
    assert results["cancelled"] == {"before": False, "after": True, "error": None}


# row: CFG-25 BAPI-05
def test_a_backend_may_complete_its_model(results: dict[str, Any]) -> None:
    """The backend set the batch size during the load."""
    assert results["models"] == {
        "ready": True,
        "BatchProperties": 2,
        "TransactionProperties": 1,
        "max_batch_size": 4,
    }
