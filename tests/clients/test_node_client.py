"""Tests of stubs that gRPC for Node.js generates from the protocol, as JavaScript
clients use them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import ROOT
from server import Server

SCRIPT = pathlib.Path(__file__).with_name("node_client.js")
PROTOCOL = ROOT / "crates" / "protocol" / "proto"


# row: DEP-03
def test_calls(server: Server) -> None:
    """Health, metadata, inferences, a refusal and a stream."""
    node, modules = shutil.which("node"), os.environ.get("GALATEA_NODE_MODULES")
    if node is None or modules is None:
        pytest.skip("Node.js is missing, or GALATEA_NODE_MODULES with its packages")
    result = subprocess.run(
        [node, SCRIPT, PROTOCOL, server.grpc_url],
        env={**os.environ, "NODE_PATH": modules},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result
    assert json.loads(result.stdout) == {
        "live": True,
        "ready": True,
        "inputs": ["INPUT0"],
        "typed": [1, 2],
        "raw": [3, 4, 5],
        "refused": [5, "Request for unknown model: 'absent' is not found"],
        "stream": [[6], [7, 8]],
    }
