"""Tests of the model MODEL_NAME.

The first one calls the function, without a server. The second one asks the server
that the variable GALATEA_URL names, such as http://localhost:8000.
"""

import importlib.util
import json
import os
import pathlib
import urllib.request

import pytest

FILE = pathlib.Path(__file__).parent / "1" / "model.py"
URL = os.environ.get("GALATEA_URL")

TEXTS = ["three small words", ""]
COUNTS = [3, 0]


def test_the_function():
    spec = importlib.util.spec_from_file_location("model", FILE)
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    assert model.predict(TEXTS) == COUNTS


@pytest.mark.skipif(not URL, reason="GALATEA_URL names no server")
def test_the_server():
    text = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    body = json.dumps({"inputs": [text]}).encode()
    with urllib.request.urlopen(f"{URL}/v2/models/MODEL_NAME/infer", body) as reply:
        (output,) = json.load(reply)["outputs"]
    assert output["data"] == COUNTS
