"""The traffic of steady.py in addition to galatea-load's: its models, clients and reloads.

Each request is entered in a ledger, with exactly one outcome.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import pathlib
import random
import struct
import time
from typing import Any

import grpc
import python_crowd
from example_models import iterative, sequences
from example_models.graph import GraphBuilder
from example_models.repository import Example, write_example
from onnx import TensorProto
from python_backend import tensors, write_model
from server import Server
from tritonclient.grpc import service_pb2, service_pb2_grpc

SEQUENCES, TOKENS = "sequences", "tokens"
PYTHON, RELOADED = "python", "reloaded"
#: What galatea-load asks: models that return an INT32 tensor of any length.
IDENTITIES = ("identity", "ensemble", RELOADED, PYTHON)
#: Of the clients of this module.
REQUESTS_PER_SECOND = 4
SEQUENCE_CLIENTS, SEQUENCE_LENGTH_MAX, TOKENS_MAX = 6, 12, 20
#: Between two reloads, and between two scrapes of the metrics.
RELOAD_SECONDS, SCRAPE_SECONDS = 15, 5
#: Every so manyth reload is of the Python model.
PYTHON_RELOADS = 4
ANSWER_SECONDS = 60

PLAIN = tensors("INPUT0:INT32", "OUTPUT0:INT32")
ENSEMBLE = """platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [ %s ] }
"""
STEP = """{ model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""
ECHO = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([copy(request)]) for request in requests]


def copy(request):
    given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
    return pb_utils.Tensor("OUTPUT0", given.as_numpy())
"""


def onnx_identity() -> Example:
    """An identity model in ONNX Runtime without batches."""
    graph = GraphBuilder("onnx")
    value = graph.input("INPUT0", TensorProto.INT32, ["length"])
    graph.node("Identity", value, output="OUTPUT0")
    graph.output("OUTPUT0", TensorProto.INT32, ["length"])
    return Example(f'backend: "onnxruntime"\n{PLAIN}', {1: graph.bytes()})


def write_models(repository: pathlib.Path) -> None:
    """Writes all models."""
    write_model(repository, "identity", PLAIN, None, "identity")
    write_example(repository, "onnx", onnx_identity())
    write_example(repository, RELOADED, onnx_identity())
    steps = [STEP % ("identity", "INPUT0", "middle"), STEP % ("onnx", "middle", "OUTPUT0")]
    write_example(repository, "ensemble", Example(ENSEMBLE % ", ".join(steps), {}))
    write_model(repository, PYTHON, PLAIN, None)
    (repository / PYTHON / "1" / "model.py").write_text(ECHO)
    write_example(repository, SEQUENCES, sequences.MODELS["accumulate_oldest_int32_zero"]())
    write_example(repository, TOKENS, iterative.MODELS["tokens_oldest_decoupled_state"]())
    python_crowd.write_models(repository)


class Ledger:
    """The requests that have no response yet, and the outcomes of the others."""

    def __init__(self) -> None:
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.failures: list[str] = []
        self._open: set[str] = set()
        self._numbers = itertools.count(1)

    def begin(self, model: str) -> str:
        """Adds a new request, and returns its ID."""
        identity = f"{model}-{next(self._numbers)}"
        self._open.add(identity)
        self.counts[model]["sent"] += 1
        return identity

    def end(self, model: str, identity: str, problem: str = "") -> None:
        """The request has its response, or a problem."""
        if identity not in self._open:
            problem = "answered twice, or never sent"
        self._open.discard(identity)
        self.counts[model]["failed" if problem else "answered"] += 1
        if problem and len(self.failures) < 100:
            self.failures.append(f"{identity}: {problem}")

    def unanswered(self) -> list[str]:
        """The requests without a response."""
        return sorted(self._open)


def message(model: str, identity: str, name: str, value: int) -> service_pb2.ModelInferRequest:
    """A request with one number."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype="INT32", shape=[1, 1]
    )
    return service_pb2.ModelInferRequest(
        model_name=model,
        id=identity,
        inputs=[tensor],
        raw_input_contents=[struct.pack("<i", value)],
    )


class Traffic:
    """Clients that share an event loop, until the end of the run."""

    def __init__(self, server: Server, seconds: float, seed: int) -> None:
        self.ledger = Ledger()
        self.crowd = python_crowd.Ledger()
        self.reloads: collections.Counter[str] = collections.Counter()
        self._server, self._seed = server, seed
        self._end = time.monotonic() + seconds

    def run(self) -> None:
        """Runs all clients. Problems are recorded in the ledger."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._server.grpc_url, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            clients = [self._sequences(stub, number) for number in range(SEQUENCE_CLIENTS)]
            clients += [self._tokens(stub), self._crowd(), self._reload(), self._scrape()]
            await asyncio.gather(*(self._guard(client) for client in clients))

    async def _guard(self, client: Any) -> None:
        """A client that fails doesn't end the others."""
        try:
            await client
        except Exception as error:  # pylint: disable=broad-except
            self.ledger.failures.append(f"{client.__name__}: {error!r}")

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end

    async def _sequences(self, stub: Any, number: int) -> None:
        """Sequences whose responses are running sums. Half of the clients use streams."""
        draw = random.Random(self._seed + number)
        for sequence in itertools.count(1):
            if not self._goes_on():
                return
            ask = Stream(stub) if number % 2 else Calls(stub)
            total, length = 0, draw.randint(1, SEQUENCE_LENGTH_MAX)
            for step in range(length):
                value = draw.randint(-1000, 1000)
                total += value
                identity = self.ledger.begin(SEQUENCES)
                request = message(SEQUENCES, identity, "INPUT", value)
                request.parameters["sequence_id"].int64_param = number + 1 + 100 * sequence
                request.parameters["sequence_start"].bool_param = step == 0
                request.parameters["sequence_end"].bool_param = step == length - 1
                self.ledger.end(SEQUENCES, identity, await ask(request, total))
                pause = SEQUENCE_CLIENTS / REQUESTS_PER_SECOND
                await asyncio.sleep(draw.uniform(0, 2 * pause))
            ask.close()

    async def _tokens(self, stub: Any) -> None:
        """Requests with many responses, over one long-lived stream."""
        draw = random.Random(self._seed)
        stream = stub.ModelStreamInfer()
        while self._goes_on():
            count = draw.randint(1, TOKENS_MAX)
            identity = self.ledger.begin(TOKENS)
            request = message(TOKENS, identity, "COUNT", count)
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            await stream.write(request)
            problem = await asyncio.wait_for(count_tokens(stream, identity, count), ANSWER_SECONDS)
            self.ledger.end(TOKENS, identity, problem)
            await asyncio.sleep(draw.uniform(0, 2 / REQUESTS_PER_SECOND))
        await stream.done_writing()
        if await stream.read() is not grpc.aio.EOF:
            self.ledger.failures.append(f"{TOKENS}: a response after the last")

    async def _crowd(self) -> None:
        """Clients of Python models, some of which cancel, fail, or kill the worker."""
        python_crowd.REQUESTS_PER_SECOND = REQUESTS_PER_SECOND
        plans = itertools.takewhile(
            lambda _: self._goes_on(), python_crowd.plans(10**9, self._seed)
        )
        await python_crowd.Crowd(self._server, self.crowd).run(plans, clients=8)

    async def _reload(self) -> None:
        """Reloads models while others use them."""
        for number in itertools.count(1):
            await asyncio.sleep(RELOAD_SECONDS)
            if not self._goes_on():
                return
            model = RELOADED if number % PYTHON_RELOADS else PYTHON
            await asyncio.to_thread(self._load, model, number)

    def _load(self, model: str, number: int) -> None:
        config = self._server_config(model)
        text = config.read_text().split("\nparameters")[0]
        more = f'\nparameters {{ key: "number" value {{ string_value: "{number}" }} }}\n'
        new = config.with_name("new")
        new.write_text(text + more)
        new.replace(config)
        reply = self._server.request("POST", f"/v2/repository/models/{model}/load", b"")
        self.reloads[model] += 1
        if reply.status != 200:
            self.ledger.failures.append(f"load of {model}: {reply.body!r}")

    def _server_config(self, model: str) -> pathlib.Path:
        return self._server.log_path.parent / "models" / model / "config.pbtxt"

    async def _scrape(self) -> None:
        """Reads the pages that monitoring systems read."""
        while self._goes_on():
            await asyncio.to_thread(self._read_pages)
            await asyncio.sleep(SCRAPE_SECONDS)

    def _read_pages(self) -> None:
        pages = [self._server.get("/v2/models/stats").status, len(self._server.metrics())]
        if pages[0] != 200 or pages[1] < 1000:
            self.ledger.failures.append(f"pages: {pages}")


class Calls:
    """Sends requests in separate calls, and returns what is wrong with the response."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def __call__(self, request: service_pb2.ModelInferRequest, expected: int) -> str:
        try:
            response = await self._stub.ModelInfer(request, timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.details() or "an error without text"
        return compare(response, request.id, expected)

    def close(self) -> None:
        """Nothing is open."""


class Stream:
    """Sends requests over one stream."""

    def __init__(self, stub: Any) -> None:
        self._stream = stub.ModelStreamInfer()

    async def __call__(self, request: service_pb2.ModelInferRequest, expected: int) -> str:
        await self._stream.write(request)
        answer = await asyncio.wait_for(self._stream.read(), ANSWER_SECONDS)
        return answer.error_message or compare(answer.infer_response, request.id, expected)

    def close(self) -> None:
        """Cancels the stream, as a client does once it has its responses."""
        self._stream.cancel()


def compare(response: service_pb2.ModelInferResponse, identity: str, expected: int) -> str:
    """Describes what is wrong with a response."""
    outputs = dict(
        zip((one.name for one in response.outputs), response.raw_output_contents, strict=True)
    )
    if response.id != identity or outputs.get("OUTPUT") != struct.pack("<i", expected):
        return f"another answer: {response.id} {outputs}, not {expected}"
    return ""


async def count_tokens(stream: Any, identity: str, count: int) -> str:
    """Reads the responses to a request, and returns what is wrong with them."""
    responses = 0
    while True:
        answer = await stream.read()
        if answer.error_message:
            return str(answer.error_message)
        response = answer.infer_response
        if response.id != identity:
            return f"a response of {response.id}"
        responses += bool(response.outputs)
        if response.parameters["triton_final_response"].bool_param:
            return "" if responses == count else f"{responses} responses, not {count}"
