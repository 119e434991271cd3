"""Tests Triton's unmodified backend for vLLM, with a stand-in for the engine.

Skipped unless GALATEA_VLLM_BACKEND names a checkout of the repository vllm_backend.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from python_backend import interpreter_flag
from server import REQUEST_SECONDS_MAX, Reply, Server, wait_until
from transports import GrpcStream

CHECKOUT = pathlib.Path(os.environ.get("GALATEA_VLLM_BACKEND", ""))
STAND_IN = pathlib.Path(__file__).parent / "vllm_stand_in"
CLIENT_SECONDS_MAX = 120

pytestmark = pytest.mark.skipif(
    CHECKOUT == pathlib.Path(), reason="needs a checkout of vllm_backend in GALATEA_VLLM_BACKEND"
)

CONFIG = """
backend: "vllm"
instance_group { count: 1 kind: KIND_MODEL }
parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }
parameters { key: "ENABLE_VLLM_HEALTH_CHECK" value { string_value: "true" } }
"""
#: The arguments of each model's engine.
MODELS = {
    "vllm_model": {"model": "words", "gpu_memory_utilization": 0.1, "enforce_eager": True},
    "sick": {"model": "sick"},
    "missing": {"model": "missing"},
}
#: What the backend logs when the engine has ended a request.
CANCELLED = "Successfully cancelled the request"
PROMPT = "the most dangerous animal"


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    pytest.importorskip("PIL", reason="vllm_backend imports Pillow")
    folder = tmp_path_factory.mktemp("vllm")
    shutil.copytree(CHECKOUT / "src", folder / "backends" / "vllm")
    for name, engine in MODELS.items():
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.json").write_text(json.dumps(engine))
    flags = [
        f"--backend-directory={folder / 'backends'}",
        interpreter_flag(),
        "--model-control-mode=explicit",
        "--load-model=vllm_model",
    ]
    environment = {"PYTHONPATH": str(STAND_IN)}
    with start_server(folder / "models", *flags, environment=environment) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def generate(server: Server, endpoint: str = "generate", **body: Any) -> Reply:
    """Sends a prompt to one of the two endpoints."""
    text = json.dumps({"text_input": PROMPT, **body}).encode()
    return server.request("POST", f"/v2/models/vllm_model/{endpoint}", text)


def events(reply: Reply) -> list[dict[str, Any]]:
    """The documents in a reply that consists of events."""
    assert reply.headers["Content-Type"].startswith("text/event-stream"), reply
    lines = reply.body.decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def tensors(**values: Any) -> dict[str, numpy.ndarray]:
    """The inputs of a request, from texts and Boolean values."""
    kinds = {bool: numpy.bool_, bytes: numpy.object_}
    return {name: numpy.array([one], kinds[type(one)]) for name, one in values.items()}


def metrics(server: Server) -> dict[str, float]:
    """The engine's metrics."""
    lines = [one for one in server.metrics().splitlines() if one.startswith("vllm:")]
    assert all('model="vllm_model",version="1"' in one for one in lines), lines
    return {one.split("{")[0]: float(one.split()[-1]) for one in lines if "_bucket" not in one}


def test_the_completed_configuration(server: Server) -> None:
    config = server.get("/v2/models/vllm_model/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    inputs = {one["name"]: one.get("optional", False) for one in config["input"]}
    assert inputs.pop("text_input") is False
    assert set(inputs.values()) == {True}
    (group,) = config["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_MODEL", 1)


# row: BE-06
def test_generate(server: Server) -> None:
    reply = generate(server, parameters={"stream": False, "temperature": 0, "max_tokens": 5})
    expected = f"{PROMPT} the most dangerous animal the"
    assert reply.json()["text_output"] == expected
    short = {"stream": False, "max_tokens": 2, "exclude_input_in_output": True}
    assert generate(server, parameters=short).json()["text_output"] == " the most"


# row: BE-06
def test_generate_stream(server: Server) -> None:
    reply = generate(server, "generate_stream", parameters={"stream": True, "max_tokens": 3})
    assert [one["text_output"] for one in events(reply)] == [" the", " most", " dangerous"]


def test_more_outputs(server: Server) -> None:
    names = ("finish_reason", "cumulative_logprob", "num_input_tokens", "num_output_tokens")
    asked = {f"return_{name}": True for name in (*names, "logprobs")}
    reply = generate(server, sampling_parameters='{"max_tokens": 2, "logprobs": 1}', **asked)
    answer = reply.json()
    assert {name: answer[name] for name in names} == {
        "finish_reason": "length",
        "cumulative_logprob": -1.0,
        "num_input_tokens": 4,
        "num_output_tokens": 2,
    }
    logprobs = json.loads(answer["logprobs"])
    assert [list(one.values())[0]["decoded_token"] for one in logprobs] == ["the", "most"]


def test_several_texts(server: Server) -> None:
    answer = generate(server, parameters={"n": 2, "max_tokens": 1}).json()
    assert answer["text_output"] == [f"{PROMPT} the"] * 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"parameters": {"nonsense": 1}}, "Error generating stream: "),
        ({"parameters": {"stream": True, "exclude_input_in_output": False}}, "not allowed"),
        ({"parameters": {"lora_name": "a"}}, "LoRA feature is not enabled."),
        ({"text_input": "fail"}, "Error generating stream: the engine failed"),
    ],
)
def test_refused(server: Server, body: dict[str, Any], text: str) -> None:
    reply = generate(server, **body)
    assert reply.status == 400
    assert text in reply.error()
    assert generate(server, parameters={"max_tokens": 1}).status == 200


def test_embeddings(server: Server) -> None:
    document = {"input": [1, 2, 3, 4], "pooling_params": {"dimensions": [2]}}
    reply = generate(server, embedding_request=json.dumps(document), return_num_input_tokens=True)
    assert json.loads(reply.json()["text_output"]) == [4.0, 4.0]
    assert reply.json()["num_input_tokens"] == 4


@pytest.mark.parametrize("streams", [True, False])
def test_cancelled(server: Server, streams: bool) -> None:
    cancelled = server.log().count(CANCELLED)
    prompts = metrics(server).get("vllm:prompt_tokens_total", 0)
    endless = tensors(
        text_input=PROMPT.encode(), sampling_parameters=b'{"max_tokens": 100000}', stream=streams
    )
    stream = GrpcStream(server)
    stream.send("vllm_model", endless)
    wait_until(
        lambda: metrics(server).get("vllm:prompt_tokens_total", 0) > prompts,
        REQUEST_SECONDS_MAX,
        "the engine has the request",
    )
    stream.close(cancel=True)
    wait_until(
        lambda: server.log().count(CANCELLED) == cancelled + 1,
        REQUEST_SECONDS_MAX,
        "the engine has ended it",
    )


def test_many_at_once(server: Server) -> None:
    with GrpcStream(server) as stream:
        for number in range(32):
            inputs = tensors(
                text_input=f"number {number}".encode(),
                sampling_parameters=b'{"max_tokens": 4}',
                stream=True,
            )
            stream.send("vllm_model", inputs, request_id=str(number))
        texts: dict[str, str] = {}
        for _ in range(4 * 32):
            number, outputs = stream.receive()
            texts[number] = texts.get(number, "") + outputs["text_output"][0].decode()
    assert texts == {str(one): f" number {one} number {one}" for one in range(32)}


def test_metrics_of_the_engine(server: Server) -> None:
    before = metrics(server)
    for _ in range(2):
        assert generate(server, parameters={"max_tokens": 3}).status == 200
    expected = {
        "vllm:prompt_tokens_total": 8,
        "vllm:generation_tokens_total": 6,
        "vllm:request_prompt_tokens_sum": 8,
        "vllm:request_generation_tokens_sum": 6,
        "vllm:request_params_n_sum": 2,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:time_per_output_token_seconds_count": 4,
        "vllm:e2e_request_latency_seconds_count": 2,
    }

    def grown() -> dict[str, float]:
        now = metrics(server)
        return {name: now[name] - before.get(name, 0) for name in expected}

    wait_until(lambda: grown() == expected, REQUEST_SECONDS_MAX, "all is counted")


@pytest.mark.parametrize("arguments", [[], ["--streaming-mode"]])
def test_the_sample_client(
    server: Server, tmp_path: pathlib.Path, arguments: list[str]
) -> None:
    shutil.copy(CHECKOUT / "samples" / "prompts.txt", tmp_path)
    client = CHECKOUT / "samples" / "client.py"
    done = subprocess.run(
        [sys.executable, client, "--url", server.grpc_url, "--exclude-inputs-in-outputs"]
        + arguments,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
    assert "PASS: vLLM example" in done.stdout
    prompts = (tmp_path / "prompts.txt").read_text().splitlines()
    results = (tmp_path / "results.txt").read_text().split("\n\n=========\n\n")
    assert len(results) == len(prompts) + 1
    for prompt, result in zip(prompts, results):
        words = prompt.split()
        expected = [words[index % len(words)] for index in range(100)]
        assert result.split() == expected


def load(server: Server, model: str) -> Reply:
    """Loads a model."""
    return server.request("POST", f"/v2/repository/models/{model}/load", b"{}")


def test_an_engine_that_does_not_start(server: Server) -> None:
    assert "There is no model 'missing'." in load(server, "missing").error()


def test_a_sick_engine_unloads_its_model(server: Server) -> None:
    assert load(server, "sick").status == 200
    with GrpcStream(server) as stream:
        stream.send("sick", tensors(text_input=PROMPT.encode()))
        with pytest.raises(InferenceServerException, match="due to unhealthy vLLM engine"):
            stream.receive()
    is_gone = lambda: server.get("/v2/models/sick/ready").status == 400  # noqa: E731
    wait_until(is_gone, REQUEST_SECONDS_MAX, "the model is unloaded")


def test_loading_again(server: Server) -> None:
    for _ in range(2):
        reply = server.request("POST", "/v2/repository/models/vllm_model/unload", b"{}")
        assert reply.status == 200
        assert load(server, "vllm_model").status == 200
        assert generate(server, parameters={"max_tokens": 1}).status == 200
    assert "[vllm] Shutdown complete" in server.log()
