"""docs/python.md: its model works, and its settings are known."""

from __future__ import annotations

import pathlib
import re

from conftest import ROOT, StartServer
from python_backend import interpreter_flag

PAGE = (ROOT / "docs" / "python.md").read_text()


def block(kind: str) -> str:
    """The only block of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_model_works(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The files of the page, in the places that it names."""
    folder = tmp_path / "add_one"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(block("text"))
    (folder / "1" / "model.py").write_text(block("python"))
    with start_server(tmp_path, interpreter_flag()) as server:
        server.wait_until_ready()
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -1]}
        reply = server.infer("add_one", {"inputs": [tensor]})
    assert reply.json()["outputs"][0]["data"] == [2.5, 0.0]


def test_the_settings_are_known(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """None of them is said to change nothing; others are."""
    names = re.findall(r"^\| `([a-z]+(?:-[a-z]+)*)=(\w+)", PAGE, flags=re.MULTILINE)
    values = {"N": "5", "PATH": "python3"}
    flags = [f"--backend-config=python,{name}={values.get(one, one)}" for name, one in names]
    assert len(flags) == 4
    with start_server(tmp_path, *flags, "--backend-config=python,nonsense=1") as server:
        server.wait_until_ready()
        log = server.log()
    assert re.findall(r"--backend-config=(\S+) changes nothing", log) == ["python,nonsense=1"]
