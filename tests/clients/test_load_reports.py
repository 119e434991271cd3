"""Tests of reports of the server's load in response headers (HTTP-30)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from compiling import compile_library
from conftest import StartServer
from server import Server

CONFIG = """
backend: "cache_blocks"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""
BODY = b'{"INPUT0":[1,2]}'
TEXT = "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=6400"
JSON = 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":6400}}'


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose model reports its cache blocks."""
    folder = tmp_path_factory.mktemp("load_reports")
    (folder / "models" / "m" / "1").mkdir(parents=True)
    (folder / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    library = folder / "backends" / "cache_blocks" / "libtriton_cache_blocks.so"
    compile_library(pathlib.Path(__file__).parent / "cache_blocks.c", library)
    backends = f"--backend-directory={folder / 'backends'}"
    with start_server(folder / "models", backends) as running:
        yield running.wait_until_ready()


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize(("form", "expected"), [
    ("text", TEXT),
    ("json", JSON),
    ("TEXT", None),
    ("", None),
    (None, None),
])
# row: HTTP-30
def test_reports_follow_generate_requests(
    server: Server, endpoint: str, form: str | None, expected: str | None
) -> None:
    """The header contains TensorRT-LLM's gauges in the format that the client names."""
    headers = {} if form is None else {"endpoint-load-metrics-format": form}
    reply = server.request("POST", f"/v2/models/m/{endpoint}", BODY, headers)
    assert (reply.status, reply.headers.get("endpoint-load-metrics")) == (200, expected)


def test_requests_that_reach_no_model_have_no_report(server: Server) -> None:
    """Neither refused requests nor those to other endpoints have the header."""
    headers = {"endpoint-load-metrics-format": "text"}
    for path, body in (
        ("/v2/models/m/generate", b"{}"),
        ("/v2/models/other/generate", BODY),
        ("/v2/models/m/infer", b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}'),
        ("/v2/models/m/stats", b""),
    ):
        reply = server.request("GET" if not body else "POST", path, body or None, headers)
        assert "endpoint-load-metrics" not in reply.headers, path


# row: HTTP-30
def test_a_server_without_such_models_has_no_report(
    start_server: StartServer, server: Server, tmp_path: pathlib.Path
) -> None:
    """Without the gauges, there is no header."""
    del server
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(CONFIG.replace("cache_blocks", "identity"))
    with start_server(tmp_path) as other:
        other.wait_until_ready()
        headers = {"endpoint-load-metrics-format": "text"}
        reply = other.request("POST", "/v2/models/m/generate", BODY, headers)
    assert (reply.status, "endpoint-load-metrics" in reply.headers) == (200, False)
