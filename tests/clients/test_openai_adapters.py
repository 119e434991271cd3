"""Tests of LoRA adapters of models of TensorRT-LLM: the tensors that such a model gets, and the
adapters that are refused."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from openai_door import CHAT, TEXT, Door, chat, open_door
from python_backend import MODELS

pytestmark = pytest.mark.galatea_only

MODEL = "trt"
WEIGHTS = {"doll": [[1.5, 2.0, 3.0]], "sheep": [[8.0, 16.0, 32.0]]}


def write_adapter(folder: pathlib.Path, values: Any, **changes: numpy.ndarray) -> None:
    """Writes the files of an adapter, with the dimension of the batch as TensorRT-LLM's script
    does."""
    folder.mkdir(parents=True)
    arrays = {
        "weights": numpy.array([values], numpy.float16),
        "config": numpy.array([[[0, 0, 8]]], numpy.int32),
    }
    for name, array in (arrays | changes).items():
        numpy.save(folder / f"model.lora_{name}.npy", array)


def write_list(version: pathlib.Path, adapters: dict[str, str]) -> None:
    """Writes the list of adapters."""
    (version / "multi_lora.json").write_text(json.dumps(adapters))


def seen(door: Door) -> Any:
    """The inputs for an adapter that the model got last."""
    return door.seen(MODEL)[-1]


@pytest.fixture(name="door")
def fixture_door(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> Iterator[Door]:
    """A server that lets clients load a model with two adapters."""
    flags = ("--lora-separator=_lora_", "--model-control-mode=explicit")
    with open_door(start_server, tmp_path, *flags) as running:
        version = running.repository / MODEL / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text('backend: "python"\n')
        shutil.copy(MODELS / "tensorrtllm_words" / "model.py", version)
        for name, weights in WEIGHTS.items():
            write_adapter(version / name, weights)
        write_list(version, {name: f"{MODEL}/1/{name}" for name in WEIGHTS})
        load(running)
        yield running


def load(door: Door) -> None:
    """Loads the model."""
    reply = door.send("POST", f"/v1/models/{MODEL}/load")
    assert reply.status == 200, reply


def content(reply: Any) -> str:
    """The text of a chat."""
    assert reply.status == 200, reply
    return reply.json()["choices"][0]["message"]["content"]


# row: OAI-07
def test_the_tensors_are_sent_until_the_model_has_them(door: Door) -> None:
    """A request that fails doesn't count. Tasks are numbered in the order of the list."""
    named = [f"{MODEL}_lora_{name}" for name in WEIGHTS]
    assert [model.id for model in door.client().models.list()] == [MODEL, *named]
    first = {
        "lora_task_id": ["uint64", [1, 1], [1]],
        "lora_weights": ["float16", [1, 1, 3], WEIGHTS["doll"][0]],
        "lora_config": ["int32", [1, 1, 3], [0, 0, 8]],
    }
    failed = door.post(CHAT, chat("!fail", model=named[0]))
    assert (failed.status, failed.json()) == (500, {"detail": "the engine failed"})
    assert seen(door) == first
    assert content(door.post(CHAT, chat("a", model=named[0]))) == "6.5 a"
    assert seen(door) == first
    known = {"lora_task_id": first["lora_task_id"]}
    assert content(door.post(CHAT, chat("a", model=named[0]))) == "6.5 a"
    assert seen(door) == known
    # The identifiers of another list are used only after the model is loaded again.
    version = door.repository / MODEL / "1"
    write_list(version, {name: f"{MODEL}/1/{name}" for name in reversed(WEIGHTS)})
    text = door.post(TEXT, {"model": named[1], "prompt": "b", "stream": True})
    assert b"56.0 b" in text.body
    assert seen(door)["lora_task_id"] == ["uint64", [1, 1], [2]]
    assert len(seen(door)) == 3
    assert door.post(TEXT, {"model": named[1], "prompt": "b"}).status == 200
    assert seen(door) == {"lora_task_id": ["uint64", [1, 1], [2]]}
    assert content(door.post(CHAT, chat("a", model=MODEL))) == "a"
    assert seen(door) == {}
    door.send("POST", f"/v1/models/{MODEL}/unload")
    load(door)
    assert content(door.post(CHAT, chat("a", model=named[0]))) == "6.5 a"
    assert len(seen(door)) == 3
    assert seen(door)["lora_task_id"] == ["uint64", [1, 1], [2]]


# row: OAI-07
def test_adapters_that_are_refused(door: Door) -> None:
    """They are refused with the reason, and don't affect the others."""
    version = door.repository / MODEL / "1"
    write_adapter(version / "swapped", WEIGHTS["doll"], weights=numpy.ones((3, 2), ">f2"))
    write_adapter(version / "cut", WEIGHTS["doll"])
    cut = version / "cut" / "model.lora_config.npy"
    cut.write_bytes(cut.read_bytes()[:-1])
    (version / "empty").mkdir()
    names = ["doll", "swapped", "cut", "empty", "absent"]
    write_list(version, {name: f"{MODEL}/1/{name}" for name in names})
    for name, reason in [
        ("swapped", "the LoRA 'swapped' can't be read: lora_weights: arrays of type '>f2' can't be sent"),
        ("cut", "the LoRA 'cut' can't be read: lora_config: it ends before its last element"),
        ("empty", "LoRA file 'model.lora_weights.npy' not found for 'empty' in its model repository"),
        ("absent", f"LoRA directory '{MODEL}/1/absent' not found for 'absent' in its model repository"),
    ]:
        refused = door.post(CHAT, chat("a", model=f"{MODEL}_lora_{name}"))
        assert (refused.status, refused.json()) == (500, {"detail": reason})
    unknown = door.post(CHAT, chat("a", model=f"{MODEL}_lora_no"))
    detail = f"Unknown LoRA: no; for model: {MODEL}_lora_no"
    assert (unknown.status, unknown.json()) == (400, {"detail": detail})
    assert content(door.post(CHAT, chat("a", model=f"{MODEL}_lora_doll"))) == "6.5 a"
    assert door.send("GET", "/health/ready").status == 200


# row: OAI-07
def test_paths_outside_the_repository(door: Door) -> None:
    """As in Triton, such a list counts as malformed, and its adapters have no effect."""
    write_adapter(door.repository.parent / "outside", WEIGHTS["doll"])
    version = door.repository / MODEL / "1"
    for path in ("../outside", str(version / "doll")):
        write_list(version, {"doll": path})
        door.send("POST", f"/v1/models/{MODEL}/unload")
        load(door)
        assert [model.id for model in door.client().models.list()] == [MODEL]
        assert content(door.post(CHAT, chat("a", model=f"{MODEL}_lora_doll"))) == "a"
        assert seen(door) == {}


# row: OAI-07
def test_a_model_without_inputs_for_adapters(door: Door) -> None:
    """The server refuses the inputs, as Triton does."""
    version = door.repository / MODEL / "1"
    code = (version / "model.py").read_text().replace('("lora_', '("other_')
    (version / "model.py").write_text(code)
    door.send("POST", f"/v1/models/{MODEL}/unload")
    load(door)
    refused = door.post(CHAT, chat("a", model=f"{MODEL}_lora_doll"))
    assert refused.status == 500
    assert "unexpected inference input 'lora_" in refused.json()["detail"]
