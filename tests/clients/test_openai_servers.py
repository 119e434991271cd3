"""Tests of servers with other settings of the OpenAI endpoint: restricted APIs, model control,
templates, and models that name their inputs and outputs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import pytest

from openai_door import (
    CHAT,
    EMBEDDING,
    JSON,
    TEMPLATE,
    TEXT,
    chat,
    events,
    open_door,
    without_times,
    write_models,
)
from python_backend import interpreter_flag, tensors, write_model
from server import START_SECONDS_MAX, Program, free_ports, wait_until

pytestmark = pytest.mark.galatea_only

Start = Callable[..., Any]


# row: OAI-06
def test_apis_are_restricted(start_server: Start, tmp_path: pathlib.Path) -> None:
    """Each group has its own header, and the refusal has Triton's form."""
    flags = (
        *("--openai-restricted-api", "inference,model-repository", "infer-key", "infer-value"),
        "--openai-restricted-api=metrics:other=secret",
    )
    with open_door(start_server, tmp_path, *flags) as door:
        for method, path in [
            ("POST", CHAT),
            ("POST", TEXT),
            ("POST", EMBEDDING),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/vllm_model"),
            ("POST", "/v1/models/vllm_model/load"),
        ]:
            reply = door.send(method, path)
            message = "This API is restricted, expecting header 'infer-key' with valid value"
            error = {"message": message, "type": "authentication_error", "code": "invalid_auth"}
            assert (reply.status, reply.json()) == (401, {"error": error}), path
            assert door.send(method, path, infer_key="wrong").status == 401
        assert door.post(CHAT, chat(), infer_key="infer-value").status == 200
        assert door.send("GET", "/v1/models", Infer_Key="infer-value").status == 200
        assert door.send("GET", "/metrics").status == 401
        assert door.send("GET", "/metrics", other="secret").status == 200
        assert door.send("GET", "/health/ready").status == 200
        client = door.client(default_headers={"infer-key": "infer-value"})
        assert len(list(client.models.list())) == 2
        with pytest.raises(openai.AuthenticationError):
            door.client().models.list()


# row: OAI-04
def test_models_are_loaded_and_unloaded(start_server: Start, tmp_path: pathlib.Path) -> None:
    """This works only in explicit mode, with Triton's responses."""
    flags = ("--model-control-mode=explicit", "--load-model=vllm_model")
    with open_door(start_server, tmp_path, *flags) as door:
        names = lambda: [model.id for model in door.client().models.list()]  # noqa: E731
        assert names() == ["vllm_model"]
        post = lambda path: door.send("POST", f"/v1/models/{path}")  # noqa: E731
        assert post("python_model/unload").json() == {"detail": "Unknown model: python_model"}
        loaded = post("python_model/load").json()
        assert loaded.pop("created") > 0
        owner = "Triton Inference Server"
        assert loaded == {"id": "python_model", "object": "model", "owned_by": owner}
        assert names() == ["python_model", "vllm_model"]
        again = post("python_model/load")
        assert (again.status, again.json()["detail"]) == (
            400,
            "Model 'python_model' is already loaded",
        )
        unknown = post("other/load")
        assert unknown.status == 500
        assert unknown.json()["detail"].startswith("Failed to load model 'other': ")
        gone = post("vllm_model/unload")
        assert gone.json() == {"status": "success", "model": "vllm_model"}
        assert names() == ["python_model"]
        assert door.post(CHAT, chat()).json() == {"detail": "Unknown model: vllm_model"}


PLAIN = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            question = pb_utils.get_input_tensor_by_name(request, "QUESTION").as_numpy()
            answer = pb_utils.Tensor("ANSWER", np.char.upper(question.astype(str)).astype(object))
            responses.append(pb_utils.InferenceResponse([answer]))
        return responses
"""


def test_any_model_by_its_configuration(start_server: Start, tmp_path: pathlib.Path) -> None:
    """Parameters name the prompt's input and the text's output."""
    with open_door(
        start_server, tmp_path, "--model-control-mode=explicit", "--load-model=vllm_model"
    ) as door:
        config = tensors("QUESTION:STRING:1", "ANSWER:STRING:1") + "max_batch_size: 4\n"
        for name, value in [
            ("openai_prompt_input", "QUESTION"),
            ("openai_text_output", "ANSWER"),
            ("latency_objective_us", "0"),
        ]:
            config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
        config += "dynamic_batching {}\n"
        write_model(door.repository, "upper", config, None)
        (door.repository / "upper" / "1" / "model.py").write_text(PLAIN)
        assert door.send("POST", "/v1/models/upper/load").status == 200
        reply = door.post(CHAT, chat("hello", model="upper"))
        assert reply.json()["choices"][0]["message"]["content"] == "HELLO"
        # A model that isn't decoupled sends one chunk.
        stream = events(door.post(CHAT, chat("hello", model="upper", stream=True)).body)
        deltas = [one["choices"][0] for one in stream[:-1]]
        assert [(one["delta"]["content"], one["finish_reason"]) for one in deltas] == [
            ("", None),
            ("HELLO", "stop"),
        ]
        assert stream[-1] == "[DONE]"
        # A deadline that can't be met is refused, as on the inference endpoint.
        late = door.post(CHAT, chat("hello", model="upper"), request_timeout="0.000001")
        assert (late.status, list(late.json())) == (503, ["detail"])
        document = {"model": "upper", "input": "hello"}
        assert door.post("/v1/responses", document).json()["output"][0]["status"] == "completed"
        late = door.post("/v1/responses", document, request_timeout="0.000001")
        assert (late.status, late.json()["error"]["type"]) == (503, "server_error")
        assert int(late.headers["Retry-After"]) >= 1


def test_templates_of_a_tokenizer(start_server: Start, tmp_path: pathlib.Path) -> None:
    """The template comes from the tokenizer's configuration. One that loops is refused, and one
    that refuses gives the reason."""
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    template = (
        "{% for m in messages %}{% if m.content == 'loop' %}{% for a in range(9999) %}"
        "{% for b in range(9999) %}{% endfor %}{% endfor %}{% elif m.content == 'refuse' %}"
        "{{ raise_exception('not this') }}{% endif %}{{ bos_token }}{{ m.role }} {{ m.content }}"
        "{% endfor %}"
    )
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    flags = (f"--tokenizer={tokenizer}", "--chat-template=")
    with open_door(start_server, tmp_path / "own", *flags) as door:
        reply = door.post(CHAT, chat("hi"))
        assert reply.json()["choices"][0]["message"]["content"] == "<s>user hi"
        reply = door.post(CHAT, chat("loop"))
        assert (reply.status, reply.json()["detail"]) == (
            400,
            "The chat template needs more work than is allowed for a request",
        )
        reply = door.post(CHAT, chat("refuse"))
        assert (reply.status, reply.json()) == (500, {"detail": "not this"})


# row: OAI-05
def test_a_tokenizer_in_the_cache_of_hugging_face(
    start_server: Start, program: Program, tmp_path: pathlib.Path
) -> None:
    """An identifier leads to the files of the main branch. Other identifiers are refused."""
    hub = tmp_path / "home" / "hub"
    repository = hub / "models--org--name"
    snapshot, blob = repository / "snapshots" / "0a1b2c", repository / "blobs" / "1"
    for folder in (snapshot, blob.parent, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0a1b2c")
    blob.write_text(json.dumps({"chat_template": "cached {{ messages[0].content }}"}))
    (snapshot / "tokenizer_config.json").symlink_to("../../blobs/1")
    flags = ("--tokenizer=org/name", "--chat-template=")
    for number, cache in enumerate(({"HF_HOME": str(hub.parent)}, {"HF_HUB_CACHE": str(hub)})):
        place = tmp_path / str(number)
        with open_door(start_server, place, *flags, environment=cache) as door:
            reply = door.post(CHAT, chat("hi")).json()
            assert reply["choices"][0]["message"]["content"] == "cached hi"
    empty = tmp_path / "empty"
    empty.mkdir()
    command = program.command(
        [f"--model-repository={empty}", "--openai-port=0", "--tokenizer=org/other"]
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(hub)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode != 0
    output = run.stdout + run.stderr
    assert "'org/other' is neither a directory nor in the cache of Hugging Face" in output
    assert f"there is no directory '{hub}/models--org--other/snapshots/main'" in output
    assert "Nothing is downloaded" in output


def test_a_server_without_a_template(start_server: Start, tmp_path: pathlib.Path) -> None:
    """Chats need a template, texts don't."""
    flags = ("--chat-template=", "--default-max-tokens=3")
    with open_door(start_server, tmp_path, *flags) as door:
        reply = door.post(CHAT, chat())
        assert (reply.status, reply.json()) == (500, {"detail": "Unknown tokenizer"})
        assert door.post(TEXT, {"model": "vllm_model", "prompt": "x"}).status == 200
        assert door.seen()[-1]["max_tokens"] == 3
        assert door.server.request("GET", "/v1/models").status == 404


# row: OAI-01
def test_the_paths_are_on_the_http_port(start_server: Start, tmp_path: pathlib.Path) -> None:
    """With a flag, and with the rules of the other port."""
    flags = ("--openai-on-http-port=true", "--openai-restricted-api=model-repository:key=value")
    with open_door(start_server, tmp_path, *flags) as door:
        request = door.server.request
        for body in (chat(), chat(stream=True)):
            reply = request("POST", CHAT, json.dumps(body).encode(), dict(JSON))
            expected = door.post(CHAT, body)
            assert (reply.status, without_times(reply.body.decode())) == (
                200,
                without_times(expected.body.decode()),
            )
        assert request("GET", "/v1/models").status == 401
        listed = request("GET", "/v1/models", None, {"key": "value"})
        assert [model["id"] for model in listed.json()["data"]] == ["python_model", "vllm_model"]
        assert request("GET", "/v1/other").json() == {"detail": "Not Found"}
        assert request("GET", "/v2/models/vllm_model/ready").status == 200
        assert request("GET", "/health/ready").body == b'{"error":"Not Found"}'


# row: OAI-07
def test_adapters_are_selected_by_name(start_server: Start, tmp_path: pathlib.Path) -> None:
    """The name of an adapter follows that of its model. vLLM's backend gets it as a parameter."""
    with open_door(start_server, tmp_path, "--lora-separator=_lora_") as door:
        folder = door.repository / "vllm_model" / "1"
        (folder / "model.json").write_text('{"enable_lora": "true"}')
        (folder / "multi_lora.json").write_text('{"alpaca": "x", "zoo": "y"}')
        names = [model.id for model in door.client().models.list()]
        adapters = ["vllm_model_lora_alpaca", "vllm_model_lora_zoo"]
        assert names == ["python_model", "vllm_model", *adapters]
        assert door.client().models.retrieve(adapters[1]).id == adapters[1]
        reply = door.post(CHAT, chat(model=adapters[1])).json()
        assert (reply["model"], door.seen()[-1]["lora_name"]) == (adapters[1], "zoo")
        assert door.post(TEXT, {"model": adapters[0], "prompt": "x"}).status == 200
        assert door.seen()[-1]["lora_name"] == "alpaca"
        assert door.post(CHAT, chat()).status == 200
        assert "lora_name" not in door.seen()[-1]
        for model in ("vllm_model_lora_no", "python_model_lora_no"):
            refused = door.post(CHAT, chat(model=model))
            detail = f"Unknown LoRA: no; for model: {model}"
            assert (refused.status, refused.json()) == (400, {"detail": detail})
        refused = door.post(CHAT, chat(model="other_lora_no"))
        assert refused.json() == {"detail": "Unknown model: other_lora_no"}


# row: OAI-01 OAI-05
def test_a_start_line_of_tritons_frontend(program: Program, tmp_path: pathlib.Path) -> None:
    """The program under another name has the frontend's flags and defaults: its port, and no other
    ports."""
    backends, repository = write_models(tmp_path)
    link = tmp_path / "tritonserver-openai"
    link.symlink_to(program.path)
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    http, openai_port = free_ports(2)
    line = f"""
        --model-repository {repository} --chat-template {tmp_path}/template.jinja --host 127.0.0.1
        --model-control-mode explicit --load-model vllm_model --openai-port {openai_port}
        --kserve-http-port {http} --backend vllm --default-max-tokens 5 --lora-separator _lora_
        --tritonserver-log-verbose-level 1 --uvicorn-log-level debug --tool-call-parser llama3
        --max-tool-call-parse-bytes 1000 --http-max-input-size 1000000
        --openai-restricted-api model-repository admin-key admin-value
        """.split()
    own = [f"--backend-directory={backends}", interpreter_flag()]
    with subprocess.Popen([link, *line, *own], stderr=subprocess.DEVNULL) as process:
        try:
            is_ready = lambda: reachable(openai_port, "/health/ready")  # noqa: E731
            wait_until(is_ready, START_SECONDS_MAX, "the endpoint is open")
            client = openai.OpenAI(
                base_url=f"http://127.0.0.1:{openai_port}/v1",
                api_key="none",
                default_headers={"admin-key": "admin-value"},
            )
            assert [model.id for model in client.models.list()] == ["vllm_model"]
            message: Any = {"role": "user", "content": "a b"}
            reply = client.chat.completions.create(model="vllm_model", messages=[message])
            assert reply.choices[0].message.content == "a b"
            assert reachable(openai_port, "/metrics")
            assert not reachable(http, "/v2/health/live")
        finally:
            process.terminate()
    assert process.returncode == 0
    seen = (repository / "vllm_model" / "seen.jsonl").read_text()
    assert json.loads(seen)["max_tokens"] == 5


def reachable(port: int, path: str) -> bool:
    """True if the path has status 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status == 200
    except urllib.error.URLError:
        return False


# row: OAI-05
def test_values_of_flags_that_are_refused(program: Program, tmp_path: pathlib.Path) -> None:
    """They are refused by name."""
    for flag, value in [
        ("tool-call-parser", "other"),
        ("max-tool-call-parse-bytes", "many"),
        ("backend", "other"),
    ]:
        command = program.command([f"--model-repository={tmp_path}", f"--{flag}={value}"])
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode != 0
        assert f'Bad option: "--{flag}"' in run.stdout + run.stderr
