"""Language models in GGUF files, with a stand-in for llama.cpp's package.

tests/clients/test_llamacpp.py has the tests with the package itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from tritonclient.utils import InferenceServerException

import gguf_files
from openai_door import CHAT, EMBEDDING, TEXT, Door, chat, events
from python_backend import interpreter_flag, workers
from server import REQUEST_SECONDS_MAX, START_SECONDS_MAX, Reply, Server, free_ports, wait_until
from transports import GrpcStream

pytestmark = pytest.mark.galatea_only

STAND_IN = pathlib.Path(__file__).parent / "llamacpp_stand_in"
EMBED = 'parameters { key: "task" value { string_value: "embed" } }\n'
#: A model that batches by deadlines has a dynamic batcher.
DEADLINES = (
    'dynamic_batching { }\nparameters { key: "latency_objective_us" value { string_value: "0" } }\n'
)
#: The number of slots of a model whose configuration doesn't state it.
SLOTS = 4
#: The number of clients that leave.
CROWD = 200


def environment(folder: pathlib.Path) -> dict[str, str]:
    """The variables with which the workers find the stand-in."""
    return {"PYTHONPATH": str(STAND_IN), "GALATEA_TEST_LLAMACPP": str(folder / "seen.jsonl")}


@contextlib.contextmanager
def open_server(
    start_server: Callable[..., Any], repository: pathlib.Path, *flags: str
) -> Iterator[Door]:
    """Starts a server with the OpenAI endpoint and without a tokenizer."""
    [port] = free_ports(1)
    common = (interpreter_flag(), f"--openai-port={port}")
    variables = environment(repository.parent)
    with start_server(repository, *common, *flags, environment=variables) as server:
        door = Door(server.wait_until_live(), port, repository)
        wait_until(door.is_open, START_SECONDS_MAX, "the endpoint is open")
        yield door
    assert server.process.returncode == 0


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """A server with models that generate and one that embeds."""
    repository = tmp_path_factory.mktemp("generation") / "models"
    gguf_files.write(repository, "words", None)
    gguf_files.write(repository, "other", None)
    gguf_files.write(repository, "single", DEADLINES + "instance_group { count: 1 }\n")
    gguf_files.write(repository, "vectors", EMBED)
    with open_server(start_server, repository) as running:
        running.server.wait_until_ready()
        yield running


def seen(door: Door) -> list[dict[str, Any]]:
    """The calls of the engines."""
    lines = (door.repository.parent / "seen.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def body_of(door: Door, prompt: str) -> dict[str, Any]:
    """The last request with this prompt that an engine got."""
    bodies = [one["body"] for one in seen(door) if "body" in one]
    return next(one for one in reversed(bodies) if one["prompt"] == prompt)


def generate(door: Door, text: str, endpoint: str = "generate", **more: Any) -> Reply:
    """Sends a prompt to one of the two endpoints."""
    document = json.dumps({"text_input": text, **more}).encode()
    return door.server.request("POST", f"/v2/models/words/{endpoint}", document)


def metric(server: Server, name: str, model: str = "words") -> float:
    """A metric of a model."""
    begin = f'galatea_llamacpp_{name}{{model="{model}",version="1"}}'
    [line] = [one for one in server.metrics().splitlines() if one.startswith(begin)]
    return float(line.split()[-1])


def wait_until_idle(server: Server, model: str = "words") -> None:
    """Waits until no slot is busy."""
    is_idle = lambda: metric(server, "slots_busy", model) == 0  # noqa: E731
    wait_until(is_idle, REQUEST_SECONDS_MAX, "no slot is busy")


def test_the_completed_configuration(door: Door) -> None:
    """A file is enough: it has inputs, outputs, slots and a chat template."""
    config = door.server.get("/v2/models/words/config").json()
    assert (config["backend"], config["max_batch_size"]) == ("llamacpp", 0)
    assert config["model_transaction_policy"] == {"decoupled": True}
    optional = {one["name"]: one.get("optional", False) for one in config["input"]}
    assert optional.pop("text_input") is False and set(optional.values()) == {True}
    [group] = config["instance_group"]
    assert (group["count"], group["kind"]) == (SLOTS, "KIND_CPU")
    tokenizer = json.loads(config["parameters"]["openai_tokenizer_config"]["string_value"])
    assert tokenizer == {
        "chat_template": gguf_files.TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"
    }
    loaded = [one["loaded"] for one in seen(door) if "loaded" in one]
    assert {one["n_parallel"]: one["n_ctx"] for one in loaded} == {4: 16384, 1: 4096}
    # The instances share a worker.
    assert sorted(workers(door.server).values()) == ["other", "single", "vectors", "words"]


# row: OAI-01
def test_a_chat_without_a_tokenizer(door: Door) -> None:
    """The file's own template writes the prompt; llama.cpp adds the first token itself."""
    prompt = "<|user|>a b c <|assistant|>"
    client = door.client()
    reply = client.chat.completions.create(
        model="words", messages=[{"role": "user", "content": "a b c"}]
    )
    [choice] = reply.choices
    assert choice.message.content == " <|user|>a b c <|assistant|>"
    assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 4)
    body = body_of(door, prompt)
    assert body["max_tokens"] == -1
    stream = events(door.post(CHAT, chat("a b c", "words", stream=True, max_tokens=2)).body)
    texts = [one["choices"][0]["delta"]["content"] for one in stream[:-1]]
    assert "".join(texts) == " <|user|>a b"
    assert stream[-2]["choices"][0]["finish_reason"] == "length"


# row: OAI-01 OAI-02 OAI-03
def test_a_completion_of_a_client_of_openai(door: Door) -> None:
    """Parameters reach llama.cpp, and the usage is right whether the client streams or not."""
    parameters = {"temperature": 0.5, "top_p": 0.25, "seed": 7, "stop": "stop", "max_tokens": 50}
    asked = {"model": "words", "prompt": "x y stop", **parameters}
    reply = door.post(TEXT, asked).json()
    assert reply["choices"][0]["text"] == " x y"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = body_of(door, "x y stop")
    assert {name: body[name] for name in parameters} == {**parameters, "stop": ["stop"]}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    stream = events(door.post(TEXT, asked).body)
    assert [one["choices"][0]["text"] for one in stream[:-2]] == [" x", " y", ""]
    assert stream[-2]["usage"] == reply["usage"]


def test_generate_and_its_stream(door: Door) -> None:
    """One response with the whole text, or one for each token."""
    reply = generate(door, "a b", max_tokens=3, return_num_output_tokens=True).json()
    assert (reply["text_output"], reply["finish_reason"]) == (" a b a", "length")
    assert reply["num_output_tokens"] == 3
    whole = generate(door, "a b", max_tokens=1, exclude_input_in_output=False).json()
    assert whole["text_output"] == "a b a"
    stream = generate(door, "a b", "generate_stream", stream=True, parameters={"max_tokens": 3})
    texts = [json.loads(line[6:])["text_output"] for line in stream.body.decode().split("\n\n")[:-1]]
    assert texts == [" a", " b", " a", ""]


def test_parameters_of_vllm_and_of_llama_cpp(door: Door) -> None:
    """They may be JSON, request parameters or inputs. An input wins."""
    sampling = {
        "repetition_penalty": 1.5, "min_p": 0.125, "logit_bias": {"5": -1.0}, "max_tokens": 9,
        "structured_outputs": '{"json": {"type": "object"}}', "ignore_eos": False, "n": 1,
    }
    given = {"sampling_parameters": json.dumps(sampling), "parameters": {"top_k": 3, "cause": "x"}}
    assert generate(door, "p q", max_tokens=1, **given).status == 200
    body = body_of(door, "p q")
    assert (body["repeat_penalty"], body["min_p"], body["top_k"]) == (1.5, 0.125, 3)
    assert (body["logit_bias"], body["max_tokens"]) == ({"5": -1.0}, 1)
    assert body["json_schema"] == {"type": "object"}
    assert not {"cause", "n", "structured_outputs", "repetition_penalty"} & set(body)
    choice = json.dumps({"structured_outputs": {"choice": ["yes", 'n"o']}})
    assert generate(door, "p r", sampling_parameters=choice).status == 200
    assert body_of(door, "p r")["grammar"] == r'root ::= "yes" | "n\"o"'


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"sampling_parameters": "nonsense"}, "'sampling_parameters' is no JSON object"),
        ({"sampling_parameters": "[" * 100_000}, "'sampling_parameters' is no JSON object"),
        ({"sampling_parameters": '{"temprature": 1}'}, "there is no parameter 'temprature'"),
        ({"sampling_parameters": '{"top_p": "1"}'}, "the parameter 'top_p' must be a number"),
        ({"sampling_parameters": '{"top_p": NaN}'}, "the parameter 'top_p' must be a number"),
        ({"sampling_parameters": '{"top_k": 1.5}'}, "the parameter 'top_k' must be an integer"),
        ({"sampling_parameters": '{"n": 2}'}, "the parameter 'n' isn't supported"),
        # llama.cpp would allocate 8 GB.
        (
            {"sampling_parameters": '{"repeat_last_n": 2147483647, "repeat_penalty": 1.1}'},
            "the parameter 'repeat_last_n' must be an integer from -1 to 4096",
        ),
        ({"max_tokens": -7}, "the parameter 'max_tokens' must be an integer from -1 to"),
        ({"sampling_parameters": '{"lora_name": "a"}'}, "the parameter 'lora_name' isn't"),
        ({"sampling_parameters": '{"logit_bias": [1]}'}, "must be an object of numbers"),
        ({"sampling_parameters": '{"stop": [1]}'}, "the parameter 'stop' must be a list"),
        ({"json_schema": "[]"}, "'json_schema' is no JSON object"),
        ({"json_schema": '{"a":' * 200 + "1" + "}" * 200}, "a JSON schema has at most 128 levels"),
        ({"json_schema": "{}", "grammar": "root ::= a"}, "either a grammar or a JSON schema"),
        ({"grammar": "x" * 300_000}, "a grammar must be a string of at most"),
        ({"grammar": "nonsense"}, "Failed to parse grammar"),
        (
            {"sampling_parameters": '{"structured_outputs": {"regex": "a"}}'},
            "the structured output 'regex' isn't supported",
        ),
        ({"text_input": "a " * 5000}, "the request exceeds the available context size"),
    ],
)  # fmt: skip
def test_refused_requests(door: Door, given: dict[str, Any], expected: str) -> None:
    """The client learns the name of what is wrong, and the slot is free again."""
    reply = generate(door, **{"text": given.pop("text_input", "a"), **given})
    assert (reply.status, expected in reply.error()) == (400, True), reply


def test_a_stream_of_grpc(door: Door) -> None:
    """Each response has a token; many requests are generated at once."""
    with GrpcStream(door.server) as stream:
        for name in "abc":
            inputs = {
                "text_input": numpy.array([f"crowded {name}".encode()], numpy.object_),
                "stream": numpy.array([True]),
                "max_tokens": numpy.array([4], numpy.int32),
            }
            stream.send("words", inputs, request_id=name)
        texts: dict[str, str] = {}
        for _ in range(3 * 5):
            name, outputs = stream.receive()
            texts[name] = texts.get(name, "") + outputs["text_output"][0].decode()
    assert texts == {name: f" crowded {name} crowded {name}" for name in "abc"}


# row: OAI-07
def test_embeddings(door: Door) -> None:
    """A model that embeds has another output, and the endpoint finds it."""
    asked = {"model": "vectors", "input": "a bb ccc", "encoding_format": "float"}
    reply = door.post(EMBEDDING, asked).json()
    assert reply["data"][0]["embedding"] == [1.0, 2.0, 3.0]
    assert reply["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["aa b"]}
    outputs = door.server.infer("vectors", {"inputs": [tensor]}).json()["outputs"]
    assert outputs[0]["data"] == [2.0, 1.0]
    refused = door.server.infer("vectors", {"inputs": [{**tensor, "data": [""]}]})
    assert (refused.status, refused.error()) == (400, "an empty text")


class Client:
    """A client that streams a text without end."""

    def __init__(self, door: Door, model: str = "words", words: str = "endless crowded") -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", door.port, timeout=REQUEST_SECONDS_MAX
        )
        body = json.dumps({"model": model, "prompt": words, "stream": True})
        self._connection.request("POST", TEXT, body, {"Content-Type": "application/json"})
        self._response: http.client.HTTPResponse | None = None

    def read_token(self) -> str:
        """Waits for an event."""
        if self._response is None:
            self._response = self._connection.getresponse()
        line = self._response.readline().decode().strip()
        assert self._response.readline() == b"\n", line
        return line

    def leave(self) -> None:
        """Closes the connection in the middle."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


def test_clients_that_leave_free_their_slots(door: Door) -> None:
    """The engine never gets more requests than it has slots, and is idle in the end."""
    clients = [Client(door) for _ in range(CROWD)]

    def stay(client: Client) -> str:
        token = client.read_token()
        client.leave()
        return token

    with concurrent.futures.ThreadPoolExecutor(CROWD) as threads:
        tokens = list(threads.map(stay, clients, timeout=REQUEST_SECONDS_MAX))
    # The events of a client that is refused have no text.
    assert [token for token in tokens if "endless" not in token] == []
    wait_until_idle(door.server)
    ends = [one["end"] for one in seen(door) if one.get("body", {}).get("prompt", "").startswith("endless c")]
    assert len(ends) >= CROWD and set(ends[-CROWD:]) == {"stopped"}
    assert generate(door, "a").json()["text_output"] == " a"


def test_requests_wait_in_the_scheduler(door: Door) -> None:
    """A busy slot is a busy instance: what waits is in the queue, and its deadline counts."""
    first = Client(door, "single")
    assert "endless" in first.read_token()
    assert door.server.is_executing("single")
    second = Client(door, "single")
    door.server.wait_for_pending("single", 1)
    assert metric(door.server, "slots_busy", "single") == 1
    late = door.post(TEXT, {"model": "single", "prompt": "a"}, request_timeout="0.05")
    assert (late.status, list(late.json())) == (503, ["detail"])
    first.leave()
    assert "endless" in second.read_token()
    second.leave()
    wait_until_idle(door.server, "single")


def test_a_client_that_leaves_the_queue(door: Door) -> None:
    """Its request never reaches llama.cpp."""
    first = Client(door, "single")
    assert "endless" in first.read_token()
    second = Client(door, "single", "never seen")
    door.server.wait_for_pending("single", 1)
    second.leave()
    door.server.wait_for_pending("single", 0)
    first.leave()
    wait_until_idle(door.server, "single")
    assert not any(one.get("body", {}).get("prompt") == "never seen" for one in seen(door))


def test_metrics(door: Door) -> None:
    """Tokens are counted at the end of a request."""
    assert metric(door.server, "slots") == SLOTS
    names = ("prompt_tokens_total", "generated_tokens_total")
    before = [metric(door.server, name) for name in names]
    generate(door, "a b c", max_tokens=7)
    changed = lambda: [metric(door.server, name) for name in names] == [  # noqa: E731
        before[0] + 3, before[1] + 7
    ]
    wait_until(changed, REQUEST_SECONDS_MAX, "the tokens are counted")


def test_a_killed_worker(door: Door) -> None:
    """It fails its own requests only, and is started again."""
    lost, kept = Client(door), Client(door, "other")
    for client in (lost, kept):
        assert "endless" in client.read_token()
    [number] = [one for one, name in workers(door.server).items() if name == "words"]
    os.kill(number, signal.SIGKILL)
    error = next(line for line in iter(lost.read_token, "") if "error" in line)
    assert "is not healthy" in error
    assert {kept.read_token()[-1:] for _ in range(10)} == {"}"}
    assert "error" not in kept.read_token()
    kept.leave()
    lost.leave()

    def serves_again() -> bool:
        reply = generate(door, "a")
        return reply.status == 200 and reply.json()["text_output"] == " a"

    wait_until(serves_again, START_SECONDS_MAX, "the model serves again")
    # A request that kills the worker is no different.
    assert "is not healthy" in generate(door, "die").error()
    wait_until(serves_again, START_SECONDS_MAX, "the model serves again")


DAMAGED = {
    "empty": (b"", "it is empty"),
    "nonsense": (b"nonsense" * 10, "it isn't a GGUF file"),
    "version": (b"GGUF\x09\0\0\0" + bytes(16), "it has version 9 of the format"),
    "huge": (b"GGUF\3\0\0\0" + b"\xff" * 16, "its header has"),
    "cut": (gguf_files.content()[:200], "it ends in the middle of its header"),
    "long": (
        gguf_files.content()[:24] + b"\xff" * 8 + bytes(100), "a string of its header has"
    ),
    "tensors": (gguf_files.content(tensors=3), "it ends in the middle of its header"),
    "unknown": (
        gguf_files.content(general__name="unknown to llama.cpp"),
        "llama.cpp can't load '{}': error loading model: unknown model architecture",
    ),
    "crash": (gguf_files.content(general__name="die when loaded"), "worker"),
}  # fmt: skip


def test_damaged_files(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """Each is an error of its load, and the server goes on."""
    repository = tmp_path / "models"
    for name, (data, _) in DAMAGED.items():
        gguf_files.write(repository, name, None, data)
    gguf_files.write(repository, "words", None)
    flags = ("--model-control-mode=explicit", "--load-model=words")
    with open_server(start_server, repository, *flags) as door:
        for name, (_, expected) in DAMAGED.items():
            path = f"/v2/repository/models/{name}/load"
            error = door.server.request("POST", path, b"{}").error()
            file = repository / name / "1" / "model.gguf"
            assert expected.replace("{}", str(file)) in error, (name, error)
        assert generate(door, "a").json()["text_output"] == " a"


def parameter(name: str, text: str) -> str:
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}\n'


WRONG = {
    "batch": ("max_batch_size: 4", "max_batch_size must be 0"),
    "sequence": ("sequence_batching { }", "sequence_batching isn't supported"),
    "cache": ("response_cache { enable: true }", "response_cache isn't supported"),
    "number": (parameter("n_ctx", "many"), "parameter 'n_ctx' is 'many', but it is a number"),
    "least": (parameter("threads", "0"), "parameter 'threads' is '0', but it is a number from 1"),
    "name": (parameter("n_ctxx", "1"), "there is no parameter 'n_ctxx': did you mean 'n_ctx'?"),
    "choice": (parameter("flash_attn", "yes"), "parameter 'flash_attn' is 'yes', but it is one"),
    "pooling": (parameter("pooling", "mean"), "parameter 'pooling' needs the parameter 'task'"),
    "input": (
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }',
        "the configuration has the input 'x', which models of the backend llamacpp lack",
    ),
    "type": (
        'input { name: "stream" data_type: TYPE_FP32 dims: [ 1 ] }',
        "configuration expects datatype TYPE_FP32 for input 'stream', model provides TYPE_BOOL",
    ),
    "embed": (EMBED + parameter("n_batch", "8"), "parameter 'n_batch' has no meaning for a model"),
    "context": (
        parameter("n_ctx", "2147483647") + "instance_group { count: 2 }",
        "parameter 'n_ctx' gives each of 2 slots 2147483647 tokens",
    ),
    "gpu": ("instance_group { kind: KIND_GPU }", "instance_group: KIND_GPU isn't supported"),
    "slots": ("instance_group { count: 300 kind: KIND_CPU }", "more than 256 slots"),
}  # fmt: skip


def test_wrong_configurations(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """The error names the field."""
    repository = tmp_path / "models"
    for name, (config, _) in WRONG.items():
        gguf_files.write(repository, name, config + "\n")
    with open_server(start_server, repository, "--model-control-mode=explicit") as door:
        for name, (_, expected) in WRONG.items():
            path = f"/v2/repository/models/{name}/load"
            error = door.server.request("POST", path, b"{}").error()
            assert expected in error, (name, error)


def test_a_file_outside_of_the_model(
    start_server: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """A load can't name one, and doesn't reveal which files exist."""
    repository = tmp_path / "models"
    model = gguf_files.write(repository, "words", None)
    (tmp_path / "known.gguf").write_bytes(gguf_files.content())
    model.rename(model.with_name("other.gguf"))
    with open_server(start_server, repository, "--model-control-mode=explicit") as door:

        def load(name: str) -> Reply:
            config = json.dumps({"backend": "llamacpp", "default_model_filename": name})
            document = json.dumps({"parameters": {"config": config}}).encode()
            return door.server.request("POST", "/v2/repository/models/words/load", document)

        for file in ("known.gguf", "missing.gguf"):
            for name in (f"../../../{file}", str(tmp_path / file)):
                expected = f"file name '{name}' must stay inside the model's directory"
                assert expected in load(name).error()
        assert "can't read" in load("missing.gguf").error()
        assert load("other.gguf").status == 200
        assert generate(door, "a").json()["text_output"] == " a"


def test_the_time_limit_of_an_execution(
    start_server: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """It includes the text: the worker of an endless one is ended, and the slots are free again."""
    repository = tmp_path / "models"
    gguf_files.write(repository, "words", None)
    flag = "--backend-config=llamacpp,execute-timeout-seconds=1"
    with open_server(start_server, repository, flag) as door:
        door.server.wait_until_ready()
        assert "took longer than 1 seconds" in generate(door, "endless").error()
        serves = lambda: generate(door, "a").status == 200  # noqa: E731
        wait_until(serves, START_SECONDS_MAX, "the model serves again")


def test_a_missing_package(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """The error has the command that installs it."""
    repository = tmp_path / "models"
    gguf_files.write(repository, "words", None)
    blocked = tmp_path / "blocked" / "xllamacpp"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('blocked')\n")
    variables = {"PYTHONPATH": str(blocked.parent)}
    flags = (interpreter_flag(), "--model-control-mode=explicit")
    with start_server(repository, *flags, environment=variables) as server:
        server.wait_until_live()
        error = server.request("POST", "/v2/repository/models/words/load", b"{}").error()
    assert "can't import xllamacpp (ImportError: blocked)" in error
    assert "-m pip install xllamacpp" in error


def test_the_sandbox(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """It forbids sockets, without which llama.cpp can't start."""
    repository = tmp_path / "models"
    gguf_files.write(repository, "words", None)
    flags = ("--model-control-mode=explicit", "--backend-config=llamacpp,sandbox=true")
    with open_server(start_server, repository, *flags) as door:
        path = "/v2/repository/models/words/load"
        error = door.server.request("POST", path, b"{}").error()
    assert "the setting 'sandbox' must be false" in error


def test_settings(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """Each parameter reaches llama.cpp, and the number of instances is that of slots."""
    repository = tmp_path / "models"
    config = "instance_group { count: 3 }\n" + "".join(
        parameter(name, text)
        for name, text in {
            "n_ctx": "100", "threads": "3", "n_batch": "64", "cache_prompt": "false",
            "cache_ram_mib": "5", "flash_attn": "off", "load_mode": "mlock", "max_tokens": "2",
            "n_gpu_layers": "7", "openai_default_max_tokens": "5",
        }.items()
    )  # fmt: skip
    gguf_files.write(repository, "words", config)
    with open_server(start_server, repository) as door:
        door.server.wait_until_ready()
        [loaded] = [one["loaded"] for one in seen(door)]
        expected = {
            "n_parallel": 3, "n_ctx": 300, "n_threads": 3, "n_batch": 64, "n_ubatch": 64,
            "cache_prompt": False, "cache_ram_mib": 5, "flash_attn_type": 0, "load_mode": 2,
            "n_predict": 2, "n_gpu_layers": 7, "kv_unified": False,
        }  # fmt: skip
        assert {name: loaded[name] for name in expected} == expected
        assert door.post(TEXT, {"model": "words", "prompt": "a b"}).status == 200
        assert body_of(door, "a b")["max_tokens"] == 5


def test_generation_as_a_stream_is_refused_over_plain_http(door: Door) -> None:
    """As in Triton, a decoupled model needs a stream."""
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    reply = door.server.infer("words", {"inputs": [tensor]})
    assert "decoupled" in reply.error()


def test_a_client_library_sees_the_error(door: Door) -> None:
    """The stream of gRPC goes on after a refused request."""
    inputs = {"text_input": numpy.array([b"a"], numpy.object_), "top_p": numpy.array([2], "f4")}
    with GrpcStream(door.server) as stream:
        bad = {**inputs, "sampling_parameters": numpy.array([b"no"], numpy.object_)}
        stream.send("words", bad)
        with pytest.raises(InferenceServerException, match="is no JSON object"):
            stream.receive()
        assert stream.infer("words", inputs)["text_output"].tolist() == [b" a"]
