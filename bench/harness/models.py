"""Writes the model repositories that both servers read."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

IDENTITY_CONFIG = """\
name: "identity"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

# An ONNX Runtime model that returns its input, and three such models in a row.
STEP = "onnx_identity_fp32"
THREE_STEPS = "three_steps"
THREE_STEPS_CONFIG = f"""\
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{
  step [
    {{ model_name: "{STEP}" model_version: -1
      input_map {{ key: "INPUT0" value: "IN" }} output_map {{ key: "OUTPUT0" value: "one" }} }},
    {{ model_name: "{STEP}" model_version: -1
      input_map {{ key: "INPUT0" value: "one" }} output_map {{ key: "OUTPUT0" value: "two" }} }},
    {{ model_name: "{STEP}" model_version: -1
      input_map {{ key: "INPUT0" value: "two" }} output_map {{ key: "OUTPUT0" value: "OUT" }} }}
  ]
}}
"""
# The same with a compiled backend that both servers can host.
HOSTED = "hosted_identity"
HOSTED_BACKEND = "example_identity"
HOSTED_CONFIG = IDENTITY_CONFIG.replace('"identity"', f'"{HOSTED}"', 1).replace(
    'backend: "identity"', f'backend: "{HOSTED_BACKEND}"'
)
# The same in Python, which both servers execute in a separate process.
PYTHON = "python_identity"
PYTHON_CONFIG = IDENTITY_CONFIG.replace('"identity"', f'"{PYTHON}"', 1).replace(
    'backend: "identity"', 'backend: "python"'
)
PYTHON_FILE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", values)
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
"""
# Three such models in a row: called by a Python model, and as the steps of an ensemble.
PYTHON_STEPS = tuple(f"python_step_{number}" for number in (1, 2, 3))
PYTHON_BLS = "python_bls"
PYTHON_BLS_FILE = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = request.inputs()
            for model in {PYTHON_STEPS!r}:
                values = tensors[0].as_numpy()
                call = pb_utils.InferenceRequest(
                    model_name=model,
                    requested_output_names=["OUTPUT0"],
                    inputs=[pb_utils.Tensor("INPUT0", values)],
                )
                response = call.exec()
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                tensors = response.output_tensors()
            output = pb_utils.Tensor("OUTPUT0", tensors[0].as_numpy())
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
"""
PYTHON_ENSEMBLE = "python_ensemble"
PYTHON_ENSEMBLE_CONFIG = THREE_STEPS_CONFIG
for _step in PYTHON_STEPS:
    PYTHON_ENSEMBLE_CONFIG = PYTHON_ENSEMBLE_CONFIG.replace(f'"{STEP}"', f'"{_step}"', 1)
# Each request has a thousand responses.
PYTHON_DECOUPLED = "python_decoupled"
PYTHON_DECOUPLED_RESPONSES = 1000
DECOUPLED_POLICY = "model_transaction_policy { decoupled: true }\n"
PYTHON_DECOUPLED_FILE = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = request.inputs()[0].as_numpy()
            for _ in range({PYTHON_DECOUPLED_RESPONSES}):
                output = pb_utils.Tensor("OUTPUT0", values)
                sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Each request sleeps in a coroutine.
PYTHON_ASYNC = "python_async"
PYTHON_ASYNC_FILE = """\
import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0.05)
        for request in requests:
            sender = request.get_response_sender()
            output = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
            sender.send(
                pb_utils.InferenceResponse(output_tensors=[output]),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
"""
PYTHON_FILES = {
    PYTHON: PYTHON_FILE,
    PYTHON_BLS: PYTHON_BLS_FILE,
    PYTHON_DECOUPLED: PYTHON_DECOUPLED_FILE,
    PYTHON_ASYNC: PYTHON_ASYNC_FILE,
    **dict.fromkeys(PYTHON_STEPS, PYTHON_FILE),
}
# Requests that are served from the response cache.
CACHED = "cached_identity"
CACHED_CONFIG = IDENTITY_CONFIG.replace('"identity"', f'"{CACHED}"', 1) + (
    "response_cache { enable: true }\n"
)
# Requests of sequences, each of which starts and ends its own sequence.
SEQUENCE = "sequence_identity"
SEQUENCE_CONFIG = IDENTITY_CONFIG.replace('"identity"', f'"{SEQUENCE}"', 1) + (
    "sequence_batching { }\n"
)
# Each server's own cache, and a compiled cache that both host. Both have room for the requests
# of the few clients in a load.
OWN_CACHE = "local,size=67108864"
HOSTED_CACHE_NAME = "example_fifo"
HOSTED_CACHE = f"{HOSTED_CACHE_NAME},entries=4"
# Models without a file.
CONFIGS = {
    "identity": IDENTITY_CONFIG,
    HOSTED: HOSTED_CONFIG,
    **{name: PYTHON_CONFIG.replace(f'"{PYTHON}"', f'"{name}"', 1) for name in PYTHON_FILES},
    PYTHON_ENSEMBLE: PYTHON_ENSEMBLE_CONFIG,
    CACHED: CACHED_CONFIG,
    SEQUENCE: SEQUENCE_CONFIG,
    THREE_STEPS: THREE_STEPS_CONFIG,
}
for _name in (PYTHON_DECOUPLED, PYTHON_ASYNC):
    CONFIGS[_name] += DECOUPLED_POLICY

# Each server has one core and therefore one thread. More threads would only share the core, and
# the default number depends on the machine.
ONE_THREAD = """\
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "inter_op_thread_count" value { string_value: "1" } }
"""

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKE_MODELS = ROOT / "examples" / "make_models.py"


def backends(target: pathlib.Path, compiler: str, others: str | None = None) -> pathlib.Path:
    """Creates a directory with the compiled example backend and the existing backends."""
    library = pathlib.Path(HOSTED_BACKEND, f"libtriton_{HOSTED_BACKEND}.so")
    return _libraries(target, compiler, others, library, "examples/backends/identity.c")


def caches(target: pathlib.Path, compiler: str, others: str | None = None) -> pathlib.Path:
    """Creates a directory with the compiled example cache and the existing caches."""
    library = pathlib.Path(HOSTED_CACHE_NAME, f"libtritoncache_{HOSTED_CACHE_NAME}.so")
    return _libraries(target, compiler, others, library, "examples/caches/fifo.c")


def _libraries(
    target: pathlib.Path, compiler: str, others: str | None, library: pathlib.Path, source: str
) -> pathlib.Path:
    target.mkdir()
    for folder in pathlib.Path(others).iterdir() if others else ():
        (target / folder.name).symlink_to(folder.resolve())
    output = target / library
    output.parent.mkdir()
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", "-o", str(output)]
    subprocess.run([*command, str(ROOT / source), "-lpthread"], check=True)
    return target


class ModelStore:
    """Stores each model once, and builds a repository for each requested set of models."""

    def __init__(self, root: pathlib.Path, has_one_thread: bool = True) -> None:
        self._has_one_thread = has_one_thread
        self._models = root / "models"
        self._repositories = root / "repositories"

    def write(self, names: set[str]) -> None:
        """Writes the named models to the store."""
        for name in names & set(CONFIGS):
            (self._models / name / "1").mkdir(parents=True, exist_ok=True)
            (self._models / name / "config.pbtxt").write_text(CONFIGS[name])
            if name in PYTHON_FILES:
                (self._models / name / "1" / "model.py").write_text(PYTHON_FILES[name])
        self._write_networks(sorted(names - {*CONFIGS, STEP}))
        self._write_networks(sorted(names & {STEP}), "--for-tests")

    def _write_networks(self, names: list[str], *options: str) -> None:
        if not names:
            return
        command = [sys.executable, str(MAKE_MODELS), "--output", str(self._models), *options]
        subprocess.run([*command, "--only", *names], check=True, stdout=subprocess.DEVNULL)
        for name in names:
            config = self._models / name / "config.pbtxt"
            if self._has_one_thread:
                config.write_text(config.read_text() + ONE_THREAD)

    def repository(self, names: tuple[str, ...], copies: int = 1) -> pathlib.Path:
        """Returns a repository that contains exactly these models, each with this number of
        copies.

        Additional copies are called NAME_2 and so on.
        """
        root = self._repositories / f"{'+'.join(names)}x{copies}"
        for name in names:
            for number in range(1, copies + 1):
                target = root / (name if number == 1 else f"{name}_{number}")
                if not target.exists():
                    shutil.copytree(self._models / name, target)
                    config = target / "config.pbtxt"
                    text = config.read_text().replace(f'name: "{name}"\n', "", 1)
                    config.write_text(text)
        return root

    def network(self, name: str) -> pathlib.Path:
        """Returns a model's ONNX file."""
        return self._models / name / "1" / "model.onnx"
