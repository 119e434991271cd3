"""Tests of genai-perf, the load generator for language models, unmodified.

It writes prompts, makes perf_analyzer send them, and counts tokens with a tokenizer that is
created here, in which each word is one token.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import perf_tools
from compiling import build_examples
from conftest import ROOT, StartServer
from load_models import WORDS
from server import Server
from test_decoupled_examples import write

REQUESTS = 20
TOKENS = 8
VOCABULARY = ["[UNK]", "[BOS]", "[EOS]", *"the quick brown fox jumps over a lazy dog".split()]
LENGTH = ["--output-tokens-mean", str(TOKENS)]
KSERVE = ["--backend", "tensorrtllm", "--streaming", *LENGTH]
#: The tool names `generate`, also where it asks for a stream.
STREAM = ["--streaming", "--endpoint", "v2/models/words/generate_stream"]
CLIENTS = ["--concurrency", "2"]

MODES = {
    "grpc, TensorRT-LLM": ["grpc", *KSERVE, *CLIENTS],
    "grpc, TensorRT-LLM, a rate": ["grpc", *KSERVE, "--request-rate", "20"],
    "grpc, vLLM": ["grpc", "--backend", "vllm", "--streaming", *CLIENTS],
    "http, generate": ["http", "--endpoint-type", "generate", *LENGTH, *CLIENTS],
    "http, generate_stream": ["http", "--endpoint-type", "generate", *STREAM, *LENGTH, *CLIENTS],
}


@pytest.fixture(scope="module")
def generator() -> pathlib.Path:
    """genai-perf, which most machines don't have."""
    return perf_tools.find("genai-perf", "GALATEA_GENAI_PERF")


@pytest.fixture(scope="module")
def talking(
    generator: pathlib.Path, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model that repeats its prompts."""
    backends = tmp_path_factory.mktemp("backends")
    build_examples(ROOT / "examples" / "backends", backends)
    repository = tmp_path_factory.mktemp("talking")
    write(repository, "words", WORDS)
    with start_server(repository, f"--backend-directory={backends}") as server:
        yield server.wait_until_ready()
    assert server.process.returncode == 0


def write_tokenizer(folder: pathlib.Path) -> pathlib.Path:
    """A tokenizer for whole words, in the format that the library `transformers` reads."""
    model = WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def report(folder: pathlib.Path) -> dict[str, Any]:
    """The values that the tool computed."""
    (file,) = folder.glob("*/profile_export_genai_perf.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("mode", MODES)
# row: DEP-04
def test_modes(
    generator: pathlib.Path, talking: Server, tmp_path: pathlib.Path, mode: str
) -> None:
    """For each kind of model and endpoint, the tool finds all requests and all tokens."""
    analyzer = perf_tools.perf_analyzer()
    protocol, *options = MODES[mode]
    url = talking.http_url if protocol == "http" else talking.grpc_url
    command = [generator, "profile", "-m", "words", "-u", url, *options]
    command += ["--tokenizer", str(write_tokenizer(tmp_path / "tokenizer"))]
    command += ["--synthetic-input-tokens-mean", "20", "--num-prompts", "5"]
    command += ["--request-count", str(REQUESTS), "--artifact-dir", str(tmp_path / "report")]
    variables = {**perf_tools.environment(analyzer), "HF_HUB_OFFLINE": "1"}
    before = int(talking.statistics("words")["inference_count"])
    result = perf_tools.run(command, variables, tmp_path)
    assert result.returncode == 0, result
    found = report(tmp_path / "report")
    assert found["request_count"]["avg"] == REQUESTS
    lengths = found["output_sequence_length"]
    if protocol == "grpc" and LENGTH[0] in options:
        assert (lengths["min"], lengths["max"]) == (TOKENS, TOKENS)
    else:
        assert lengths["min"] >= 1
    if "--streaming" in options:
        assert found["time_to_first_token"]["avg"] > 0
    statistics = talking.statistics("words")
    assert statistics["inference_count"] - before >= REQUESTS
    assert statistics["inference_stats"]["fail"]["count"] == 0
