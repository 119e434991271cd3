"""A crowd of clients of Python models: many cancel, and some requests kill their worker.

Each request is entered in a ledger with its result, which is exactly one of a response, an error or
the client's own cancellation.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import pathlib
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from python_backend import tensors, write_model
from server import Server

#: How long an answer may take, however busy the machine is.
ANSWER_SECONDS = 300
#: How many responses the models send that send several.
RESPONSES = 3
#: Texts of the errors that requests may meet: what they asked for, and a dead worker.
EXPECTED_ERRORS = ("asked to fail", "is not healthy")
#: The crowd sends no faster, so that most workers are back before the next request kills them.
REQUESTS_PER_SECOND = 100
#: How long a client waits after an error, as clients do.
ERROR_SECONDS = 0.25
RESPONSE, ERROR, CANCELLED = "response", "error", "cancelled"
SHARE_CANCELLED, SHARE_KILLING, SHARE_FAILING, SHARE_SLOW = 0.30, 0.05, 0.05, 0.20

INT32 = tensors("IN:INT32:1", "OUT:INT32:1")
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
BATCHED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"
#: Configurations by model; `mode` is what the model does.
MODELS = {
    "plain": ("plain", TWO),
    "batched": ("plain", BATCHED),
    "waiting": ("waiting", BATCHED),
    "calls": ("calls", ""),
    "decoupled": ("decoupled", DECOUPLED),
    "background": ("background", DECOUPLED),
    "callee": ("plain", ""),
}
SEVERAL = {"decoupled", "background"}
BATCHES = {"batched", "waiting"}


def write_models(repository: pathlib.Path) -> None:
    """Writes the models of the crowd."""
    for name, (mode, more) in MODELS.items():
        parameter = f'parameters {{ key: "mode" value {{ string_value: "{mode}" }} }}\n'
        write_model(repository, name, INT32 + parameter + more, "crowd")


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of the crowd."""

    number: int
    model: str
    protocol: str
    way: str
    #: After how many seconds the client cancels, or None.
    patience: float | None

    @property
    def shape(self) -> list[int]:
        """The shape of its input."""
        return [1, 1] if self.model in BATCHES else [1]


class Ledger:
    """The results of all requests."""

    def __init__(self) -> None:
        self.outcomes: dict[int, str] = {}
        self.by_model: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )

    def enter(self, request: Request, outcome: str) -> None:
        """Enters a result; each request has exactly one."""
        assert request.number not in self.outcomes, f"{request} is answered twice"
        self.outcomes[request.number] = outcome
        self.by_model[request.model][outcome] += 1

    def count(self, outcome: str) -> int:
        """The number of requests with this result."""
        return sum(counts[outcome] for counts in self.by_model.values())


def plans(count: int, seed: int) -> Iterator[Request]:
    """The requests for a seed."""
    draw = random.Random(seed)
    models = [name for name in MODELS if name != "callee"]
    for number in range(count):
        model = draw.choice(models)
        protocol = "stream" if model in SEVERAL else draw.choice(["http", "grpc", "stream"])
        chance = draw.random()
        way = "good"
        for name, share in (("kill", SHARE_KILLING), ("fail", SHARE_FAILING), ("slow", SHARE_SLOW)):
            if chance < share:
                way = name
                break
            chance -= share
        patience = None
        if draw.random() < SHARE_CANCELLED:
            patience = draw.choice([0.0, 0.0, draw.uniform(0, 0.005), draw.uniform(0, 0.1)])
        yield Request(number, model, protocol, way, patience)


class Crowd:
    """Clients that share an event loop."""

    def __init__(self, server: Server, ledger: Ledger) -> None:
        self.server, self.ledger = server, ledger
        #: When the next request may be sent.
        self._next = 0.0

    async def run(self, requests: Iterator[Request], clients: int) -> None:
        """Sends all requests, with this many at a time."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.server.grpc_url, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            async with asyncio.TaskGroup() as group:
                for _ in range(clients):
                    group.create_task(self._client(requests, stub))

    async def _client(self, requests: Iterator[Request], stub: Any) -> None:
        connection = HttpConnection(self.server)
        try:
            for request in requests:
                await self._take_turn()
                sent = {
                    "http": lambda: connection.send(request),
                    "grpc": lambda: unary(stub, request),
                    "stream": lambda: stream(stub, request),
                }[request.protocol]()
                outcome = await asyncio.wait_for(sent, ANSWER_SECONDS)
                self.ledger.enter(request, outcome)
                if outcome == ERROR:
                    # sleep: clients in use back off, which limits the restarts of workers
                    await asyncio.sleep(ERROR_SECONDS)
        finally:
            connection.close()

    async def _take_turn(self) -> None:
        """Waits until the next request may be sent."""
        now = time.monotonic()
        turn = max(now, self._next)
        self._next = turn + 1 / REQUESTS_PER_SECOND
        # sleep: the rate of the requests
        await asyncio.sleep(turn - now)


def check_error(request: Request, text: str) -> str:
    """An error that the request may receive."""
    assert any(expected in text for expected in EXPECTED_ERRORS), f"{request}: {text}"
    return ERROR


class HttpConnection:
    """A connection that is kept until its client cancels a request by closing it."""

    def __init__(self, server: Server) -> None:
        self._port = server.http_port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Ends the connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def send(self, request: Request) -> str:
        """Sends a request, and returns its result."""
        if self._writer is None:
            opened = await asyncio.open_connection("127.0.0.1", self._port)
            self._reader, self._writer = opened
        document = json.dumps(
            {
                "parameters": {"way": request.way},
                "inputs": [
                    {
                        "name": "IN",
                        "datatype": "INT32",
                        "shape": request.shape,
                        "data": [request.number],
                    }
                ],
            }
        ).encode()
        head = (
            f"POST /v2/models/{request.model}/infer HTTP/1.1\r\nHost: x\r\n"
            f"Content-Length: {len(document)}\r\n\r\n"
        ).encode()
        message = head + document
        if request.patience == 0 and request.number % 2:
            # The client disconnects before the request is complete.
            self._writer.write(message[: request.number % len(message)])
            await self._writer.drain()
            self.close()
            return CANCELLED
        self._writer.write(message)
        try:
            async with asyncio.timeout(request.patience):
                return await self._answer(request)
        except TimeoutError:
            self.close()
            return CANCELLED

    async def _answer(self, request: Request) -> str:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        (length,) = (
            int(line.split(":")[1])
            for line in lines
            if line.lower().startswith("content-length:")
        )
        body = json.loads(await self._reader.readexactly(length))
        if " 200 " not in lines[0]:
            return check_error(request, body["error"])
        assert body["outputs"][0]["data"] == [request.number], body
        return RESPONSE


def message_of(request: Request) -> service_pb2.ModelInferRequest:
    """The request as a message."""
    message = service_pb2.ModelInferRequest(
        model_name=request.model,
        inputs=[
            service_pb2.ModelInferRequest.InferInputTensor(
                name="IN", datatype="INT32", shape=request.shape
            )
        ],
        raw_input_contents=[struct.pack("<i", request.number)],
    )
    message.parameters["way"].string_param = request.way
    return message


def check_response(request: Request, response: service_pb2.ModelInferResponse) -> None:
    """Checks that the response belongs to the request."""
    assert response.raw_output_contents[0] == struct.pack("<i", request.number), response


async def unary(stub: Any, request: Request) -> str:
    """Uses a separate call for the request."""
    call = stub.ModelInfer(message_of(request))
    try:
        async with asyncio.timeout(request.patience):
            response = await call
    except TimeoutError:
        call.cancel()
        return CANCELLED
    except grpc.aio.AioRpcError as error:
        return check_error(request, error.details() or "")
    check_response(request, response)
    return RESPONSE


async def stream(stub: Any, request: Request) -> str:
    """Uses a separate stream for the request."""
    message = message_of(request)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    call = stub.ModelStreamInfer()
    try:
        async with asyncio.timeout(request.patience):
            await call.write(message)
            await call.done_writing()
            answers = [answer async for answer in call]
    except TimeoutError:
        call.cancel()
        return CANCELLED
    return check_stream(request, answers)


def check_stream(request: Request, answers: list[service_pb2.ModelStreamInferResponse]) -> str:
    """The stream receives responses and then the end, or an error."""
    assert answers, f"{request} is not answered"
    *before, last = answers
    assert not any(answer.error_message for answer in before), answers
    responses = [one.infer_response for one in answers if one.infer_response.raw_output_contents]
    for response in responses:
        check_response(request, response)
    if last.error_message:
        assert request.model in SEVERAL or not before, answers
        return check_error(request, last.error_message)
    ends = [one.infer_response.parameters["triton_final_response"].bool_param for one in answers]
    assert ends == [False] * len(before) + [True], answers
    assert len(responses) == (RESPONSES if request.model in SEVERAL else 1), answers
    return RESPONSE


@dataclasses.dataclass(frozen=True)
class Belongings:
    """The resources that a server uses while idle."""

    descriptors: collections.Counter[str]
    children: int
    mappings: collections.Counter[str]

    @classmethod
    def of(cls, server: Server) -> Belongings:
        """The resources that it uses now."""
        folder = pathlib.Path(f"/proc/{server.process.pid}")
        descriptors: collections.Counter[str] = collections.Counter()
        for one in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                descriptors[str(one.readlink()).split(":[")[0]] += 1
        mappings: collections.Counter[str] = collections.Counter()
        for line in (folder / "maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and not fields[5].startswith("["):
                mappings[fields[5]] += 1
        return cls(descriptors, count_children(server.process.pid), mappings)

    def more_than(self, before: Belongings) -> dict[str, int]:
        """The resources that it uses in addition to the earlier ones."""
        more = dict(self.descriptors - before.descriptors)
        more.update(self.mappings - before.mappings)
        if self.children != before.children:
            more["children"] = self.children - before.children
        return more


def count_children(parent: int) -> int:
    """The processes that another process has started, including those that have ended but still
    exist."""
    found = 0
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            found += int(fields[1]) == parent
    return found


def send_crowd(server: Server, count: int, seed: int, clients: int) -> tuple[Ledger, float]:
    """Sends a crowd's requests, and returns their results and the duration."""
    ledger = Ledger()
    begun = time.monotonic()
    # All clients share one iterator, from which each takes the next request.
    asyncio.run(Crowd(server, ledger).run(plans(count, seed), clients))
    return ledger, time.monotonic() - begun
