"""Tests of the image, run as users of Triton's image run it.

    cargo xtask image
    pip install 'cyclonedx-python-lib[json-validation]'
    GALATEA_TEST_IMAGE=localhost/galatea:0.1.0 pytest tests/deploy/test_image.py

GALATEA_TEST_ENGINE names a program other than podman, such as docker.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import pytest
from conftest import ROOT
from server import free_ports, wait_until

IMAGE = os.environ.get("GALATEA_TEST_IMAGE", "")
ENGINE = os.environ.get("GALATEA_TEST_ENGINE", "podman")

pytestmark = pytest.mark.skipif(not IMAGE, reason="GALATEA_TEST_IMAGE names no image")

#: From an image in a file to the first answer, with what the machine needs to unpack it.
SECONDS_MAX = 20

HOME = "/opt/tritonserver"

WORDS = '''\
def predict(text: list[str]) -> list[int]:
    """Counts the words of each text."""
    return [len(one.split()) for one in text]
'''

DOUBLE = """\
import numpy as np
from numpy.typing import NDArray


def predict(x: NDArray[np.int64]) -> NDArray[np.int64]:
    return x * 2
"""

#: Adds one to INPUT0, an INT32 of any batch size: `constant_model(1)` of tests/clients.
ADD = base64.b64decode(
    "CAg6cwodCgZJTlBVVDAKBWFkZGVkEgdPVVRQVVQwIgNBZGQSA2FkZCoOCAEQBioBAUIFYWRkZWRaHQoGSU5QVVQwEhMKEQgGEg0KBxIFYmF0Y2gKAggBYh4KB09VVFBVVDASEwoRCAYSDQoHEgViYXRjaAoCCAFCBAoAEA0="
)

LOCKED = (
    "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--shm-size=64k",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Container:
    """A running container."""

    engine: tuple[str, ...]
    name: str
    #: Those of HTTP, gRPC, metrics and SageMaker.
    ports: list[int]

    def request(self, path: str, body: object = None, port: int = 0) -> tuple[int, bytes]:
        """The status and body of a response."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        try:
            with urllib.request.urlopen(url, data, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def wait_until_ready(self, path: str = "/v2/health/ready", port: int = 0) -> Container:
        """Waits for the probe to succeed."""

        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                if self.request(path, port=port)[0] == 200:
                    return True
            assert self.tell("inspect", "--format={{.State.Running}}") == "true", self.log()
            return False

        wait_until(is_ready, 60, "the container is ready")
        return self

    def infer(self, model: str, name: str, datatype: str, rows: Sequence[object]) -> list[object]:
        """A model's output for an input with this name."""
        shape = [len(rows), 1] if datatype == "INT32" else [len(rows)]
        tensor = {"name": name, "datatype": datatype, "shape": shape, "data": rows}
        status, body = self.request(f"/v2/models/{model}/infer", {"inputs": [tensor]})
        assert status == 200, body
        (output,) = json.loads(body)["outputs"]
        return list(output["data"])

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container."""
        return call([*self.engine, "exec", self.name, *command])

    def tell(self, *command: str) -> str:
        """The engine's description of the container."""
        return call([*self.engine, *command, self.name]).stdout.strip()

    def log(self) -> str:
        """The server's output."""
        done = call([*self.engine, "logs", self.name])
        return done.stdout + done.stderr


def call(command: Sequence[str | pathlib.Path]) -> subprocess.CompletedProcess[str]:
    """Runs a program until it ends."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@contextlib.contextmanager
def running(
    *options: str, command: Sequence[str] = (), engine: Sequence[str] = (ENGINE,)
) -> Iterator[Container]:
    """A container that is removed at the end."""
    if shutil.which(engine[0]) is None:
        pytest.skip(f"{engine[0]} is not installed")
    ports = free_ports(4)
    pairs = zip(ports, (8000, 8001, 8002, 8080), strict=True)
    published = [f"--publish=127.0.0.1:{ours}:{theirs}" for ours, theirs in pairs]
    name = f"galatea-test-{ports[0]}"
    started = call([*engine, "run", "--detach", "--name", name, *published, *options, IMAGE, *command])
    assert started.returncode == 0, started.stderr
    try:
        yield Container(tuple(engine), name, ports)
    finally:
        call([*engine, "rm", "--force", name])


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository that every user can read."""
    folder = tmp_path / "models"
    for name, file, content in (
        ("words", "model.py", WORDS.encode()),
        ("double", "model.py", DOUBLE.encode()),
        ("add", "model.onnx", ADD),
    ):
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / file).write_bytes(content)
    return folder


def serves(container: Container) -> None:
    """Python models, models that use NumPy, and ONNX models respond."""
    assert container.infer("words", "text", "BYTES", ["one", "three small words"]) == [1, 3]
    assert container.infer("add", "INPUT0", "INT32", [4, 5]) == [5, 6]
    many = list(range(200_000))
    assert container.infer("double", "x", "INT64", many) == [2 * one for one in many]


# row: DEP-08
def test_the_command_of_tritons_documentation(models: pathlib.Path) -> None:
    """`docker run -v MODELS:/models IMAGE tritonserver --model-repository=/models`."""
    command = ["tritonserver", "--model-repository=/models"]
    with running(f"--volume={models}:/models", command=command) as container:
        serves(container.wait_until_ready())
        status, metrics = container.request("/metrics", port=2)
        assert status == 200 and b"nv_inference_count" in metrics
        call([ENGINE, "stop", "--time=30", container.name])
        assert container.tell("inspect", "--format={{.State.ExitCode}}") == "0", container.log()


# row: SEC-04
def test_it_needs_no_rights(models: pathlib.Path) -> None:
    """A user other than root, no writable files, no capabilities, and 64 KiB of shared memory."""
    options = [*LOCKED, *(["--read-only-tmpfs=false"] if ENGINE == "podman" else [])]
    with running(*options, f"--volume={models}:/models:ro") as container:
        serves(container.wait_until_ready())
        status = container.run("cat", "/proc/1/status").stdout
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["1000"] * 4 and fields["Gid"].split() == ["1000"] * 4
        assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
        for place in ("/", "/tmp", HOME, "/models"):
            assert container.run("touch", f"{place}/file").returncode != 0, place


# row: DEP-08
def test_everything_is_where_tritons_image_has_it() -> None:
    with running(command=["sleep", "60"]) as container:
        for kind, path in (
            ("-x", "bin/tritonserver"),
            ("-x", "bin/galatea"),
            ("-f", "lib/libtritonserver.so"),
            ("-f", "include/triton/core/tritonserver.h"),
            ("-d", "backends"),
            ("-d", "caches"),
            ("-f", "repoagents/checksum/libtritonrepoagent_checksum.so"),
            ("-f", "LICENSE"),
        ):
            assert container.run("test", kind, f"{HOME}/{path}").returncode == 0, path
        assert container.run("pwd").stdout.strip() == HOME
        version = container.run("tritonserver", "--version")
        assert version.returncode == 0, version.stderr
        files = container.run("find", HOME, "-user", "triton-server")
        assert files.stdout == "", "the server could change its own files"


# row: SM-01
def test_sagemaker_starts_it(models: pathlib.Path) -> None:
    """The command `serve` uses the only model, or the one that is named if there are several."""
    one = f"--volume={models / 'words'}:/opt/ml/model/words"
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["two words"]}
    with running(one, command=["serve"]) as container:
        container.wait_until_ready("/ping", port=3)
        status, body = container.request("/invocations", {"inputs": [text]}, port=3)
        assert status == 200 and json.loads(body)["outputs"][0]["data"] == [2]
    all_models = f"--volume={models}:/opt/ml/model"
    named = ["--env=SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=words", "--env=SAGEMAKER_BIND_TO_PORT=8000"]
    with running(all_models, *named, command=["serve"]) as container:
        container.wait_until_ready("/ping")
    with running(all_models, command=["serve"]) as container:
        assert container.tell("wait") == "1"
        assert "there are several models" in container.log()


# row: DEP-08
def test_three_commands_and_20_seconds(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """From an archive of the image to the first response, on a machine that never had the image."""
    if ENGINE != "podman":
        pytest.skip("only podman has a place for images beside its own")
    archive = tmp_path / "image.tar"
    saved = call([ENGINE, "save", "--output", str(archive), IMAGE])
    assert saved.returncode == 0, saved.stderr
    # Its path may have at most 50 characters.
    short = pathlib.Path(tempfile.mkdtemp(prefix="galatea-"))
    engine = (ENGINE, "--root", str(tmp_path / "images"), "--runroot", str(short))
    start = time.monotonic()
    loaded = call([*engine, "load", "--input", str(archive)])
    assert loaded.returncode == 0, loaded.stderr
    unpacked = time.monotonic()
    with running(f"--volume={models}:/models", engine=engine) as container:
        container.wait_until_ready()
        ready = time.monotonic()
        assert container.infer("words", "text", "BYTES", ["one"]) == [1]
        answered = time.monotonic()
    call([*engine, "rmi", "--force", IMAGE])
    print(
        f"unpacked in {unpacked - start:.1f} s, ready {ready - unpacked:.1f} s later, "
        f"answered after {answered - start:.1f} s"
    )
    assert answered - start < SECONDS_MAX


def test_the_list_of_components_is_one() -> None:
    """The image lists the program's components, in CycloneDX's format."""
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    with running(command=["sleep", "60"]) as container:
        text = container.run("cat", f"{HOME}/sbom.cdx.json").stdout
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_5)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"bomFormat"', '"form"')) is not None
    components = json.loads(text)["components"]
    found = {(one["name"], one["version"]) for one in components}
    lock = (ROOT / "Cargo.lock").read_text()
    for name in ("hyper", "h2", "rustls", "object_store"):
        (version,) = {one[1] for one in found if one[0] == name}
        assert f'name = "{name}"\nversion = "{version}"' in lock
