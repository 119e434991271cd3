"""Tests of the parts of the backend `llamacpp` that need neither llama.cpp nor a server."""

import os
import random
import sys

import pytest
from harness import WORKER

sys.path.insert(0, str(WORKER))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "clients"))

import gguf_files  # noqa: E402
from galatea_llamacpp import gguf, processors, sampling  # noqa: E402
from galatea_worker.errors import BackendError  # noqa: E402


def read(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return gguf.read(str(path))


def test_a_header(tmp_path):
    header = read(tmp_path, gguf_files.content())
    assert (header.architecture, header.context_length) == ("words", 100_000)
    assert (header.first_token, header.is_embedding) == ("<s>", False)
    assert header.tokenizer_config()["eos_token"] == "</s>"
    more = {"words.pooling_type": 1, "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template.tool_use": "tools"}
    header = read(tmp_path, gguf_files.content(more))
    assert (header.first_token, header.is_embedding) == ("", True)
    named = header.tokenizer_config()["chat_template"]
    assert [one["name"] for one in named] == ["default", "tool_use"]
    long = read(tmp_path, gguf_files.content({"tokenizer.chat_template": "x" * (1 << 20 | 1)}))
    with pytest.raises(BackendError, match="chat template is longer than"):
        long.tokenizer_config()
    bare = dict.fromkeys(gguf_files.METADATA)
    header = read(tmp_path, gguf_files.content(bare))
    assert (header.context_length, header.first_token) == (0, "")
    assert header.tokenizer_config() is None


def test_the_first_token_depends_on_the_tokenizer(tmp_path):
    unsaid = {"tokenizer.ggml.add_bos_token": None}
    for kind, pre, expected in [("llama", None, "<s>"), ("gpt2", "llama-bpe", "<s>"),
                                ("gpt2", "qwen2", "")]:
        given = {**unsaid, "tokenizer.ggml.model": kind, "tokenizer.ggml.pre": pre}
        assert read(tmp_path, gguf_files.content(given)).first_token == expected, (kind, pre)


def test_damaged_headers_are_errors_and_nothing_else(tmp_path):
    """Each prefix, and many files with changed bytes."""
    data = gguf_files.content()
    refused = 0
    chance = random.Random(28)
    damaged = [data[:length] for length in range(0, len(data), 7)]
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(data))] = chance.choice((0, 1, 127, 255))
        damaged.append(bytes(changed))
    for one in damaged:
        try:
            header = read(tmp_path, one)
            header.tokenizer_config()
        except BackendError as error:
            assert "can't load" in str(error)
            refused += 1
    assert len(damaged) > refused > len(data) // 7


@pytest.mark.parametrize("cores, quota, expected", [
    (1, None, 1), (2, None, 1), (4, None, 3), (64, None, 63), (64, 8.0, 7), (64, 1.5, 1),
    (64, 0.5, 1), (8, 16.0, 7)])
def test_a_core_is_left_to_the_server(cores, quota, expected):
    assert processors.choose(cores, quota) == expected


def test_names_of_parameters():
    given = {"repetition_penalty": 1.5, "stop": "x", "seed": -1, "max_tokens": 1 << 40, "n": 1,
             "top_p": None}
    assert sampling.convert(given) == {
        "repeat_penalty": 1.5, "stop": ["x"], "seed": 0xffff_ffff, "max_tokens": (1 << 31) - 1}
    with pytest.raises(sampling.Refusal, match="there is no parameter 'temprature'"):
        sampling.convert({"temprature": 1})
