"""The endpoints of cloud services, and model archives where SageMaker puts them."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from server import REQUEST_SECONDS_MAX, Reply

ARCHIVES = pathlib.Path("/opt/ml/models")
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
VALUES = np.array([[0.5, -2, 3]], np.float32)

IDENTITY = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""


def write_model(directory: pathlib.Path, config: str = IDENTITY) -> pathlib.Path:
    """A model that consists of only a configuration."""
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    return directory


class Archives:
    """Archives with names that no other test uses."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self.run = uuid.uuid4().hex

    def parent(self, name: str) -> pathlib.Path:
        """The parent directory of an archive."""
        return ARCHIVES / f"{self.run}{name}"

    def path(self, name: str) -> pathlib.Path:
        """The directory of an archive."""
        return self.parent(name) / "model"

    def remove(self) -> None:
        """Removes all archives."""
        for path in ARCHIVES.glob(f"{self.run}*"):
            shutil.rmtree(path)


@contextlib.contextmanager
def temporary_archives() -> Iterator[Archives]:
    """Archives that are removed at the end. The directory requires a user who may write
    to it."""
    try:
        ARCHIVES.mkdir(parents=True, exist_ok=True)
        probe = ARCHIVES / uuid.uuid4().hex
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        pytest.skip(f"archives can't be written: {error}")
    archives = Archives()
    try:
        yield archives
    finally:
        archives.remove()


def send(
    port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
) -> Reply:
    """Sends a request to the endpoint at a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def json_request(values: np.ndarray = VALUES) -> bytes:
    """An inference request that consists of JSON only."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": list(values.shape)}
    return json.dumps({"inputs": [tensor | {"data": values.flatten().tolist()}]}).encode()


def binary_request(values: np.ndarray = VALUES) -> tuple[bytes, int]:
    """An inference request as the client library creates it, with the length of its JSON
    part."""
    given = tritonclient.http.InferInput("INPUT0", list(values.shape), "FP32")
    given.set_data_from_numpy(values, binary_data=True)
    wanted = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=True)
    client = tritonclient.http.InferenceServerClient
    body, length = client.generate_request_body([given], outputs=[wanted])
    return body, length


def result_of(body: bytes, length: int | None) -> Any:
    """The output of a response as the client library reads it."""
    client = tritonclient.http.InferenceServerClient
    return client.parse_response_body(body, header_length=length).as_numpy("OUTPUT0")
