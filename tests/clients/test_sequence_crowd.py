"""Tests a thousand clients at once that behave as real clients do: they pause, forget to end
their sequences, reuse other clients' IDs, and disconnect. Every response has to be correct.

The state of a sequence is the concatenation of its inputs, so a trace of another
sequence, or of an earlier one with the same ID, would show.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import pathlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from example_models import sequences
from example_models.repository import write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server, wait_until
from transports import make_inputs

CLIENT_COUNT = 1000
SEQUENCES_EACH = 2
LENGTH_MAX = 6
PAUSE_SECONDS_MAX = 0.1
IDLE_SECONDS = 1.5
CHANNEL_COUNT = 8
RESPONSE_SECONDS_MAX = 300.0
#: Fewer slots than clients, so that many wait in the backlog.
STRATEGIES = {
    "direct": sequences.Batching(
        "direct { }", 128, instance_count=2, idle_microseconds=int(IDLE_SECONDS * 1e6)
    ),
    "oldest": sequences.Batching(
        "oldest { max_candidate_sequences: 150 max_queue_delay_microseconds: 500 }",
        64,
        instance_count=2,
        idle_microseconds=int(IDLE_SECONDS * 1e6),
    ),
}

Identity = int | str


@dataclasses.dataclass(frozen=True)
class Id:
    """A correlation ID, and the last input of a user that disconnected, if any.

    Such a request may arrive late, and later ones are cancelled with it.
    """

    identity: Identity
    lost: str = ""


@dataclasses.dataclass
class Ids:
    """A pool of correlation IDs: clients reuse the IDs that others returned."""

    free: list[Id] = dataclasses.field(default_factory=list)
    numbers: itertools.count = dataclasses.field(default_factory=lambda: itertools.count(1))

    def take(self, chance: random.Random) -> Id:
        """An unused ID, often one that was used a moment ago."""
        if self.free and chance.random() < 0.7:
            return self.free.pop(chance.randrange(len(self.free)))
        number = next(self.numbers)
        return Id(number if number % 2 else f"client {number}")


class Unary:
    """Single calls over a shared connection."""

    library = tritonclient.grpc.aio

    def __init__(self, client: Any) -> None:
        self._client = client

    async def infer(self, **request: Any) -> str:
        """Sends a request and returns its output."""
        result = await self._client.infer(**request)
        return result.as_numpy("OUTPUT")[0, 0].decode()

    async def disconnect(self) -> None:
        """Nothing remains to be closed after the cancelled call."""


class Http(Unary):
    """The same over HTTP; a cancelled request closes its connection."""

    library = tritonclient.http.aio


class Stream:
    """A separate stream for one client."""

    library = tritonclient.grpc.aio

    def __init__(self, client: Any) -> None:
        self._client = client
        self._open()

    def _open(self) -> None:
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._responses = self._client.stream_infer(self._next_requests())

    async def _next_requests(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self._requests.get()

    async def infer(self, **request: Any) -> str:
        """Writes a request and waits for its response."""
        self._requests.put_nowait(request)
        result, error = await anext(self._responses)
        if error is not None:
            raise error
        return result.as_numpy("OUTPUT")[0, 0].decode()

    async def disconnect(self) -> None:
        """Cancels the stream; the next request opens another."""
        self._responses.cancel()
        self._open()


class UnknownSequence(Exception):
    """The sequence no longer exists, which is allowed."""


@dataclasses.dataclass
class Client:
    """Sends sequences one after the other and checks every response."""

    number: int
    connection: Any
    ids: Ids
    chance: random.Random
    model: str
    counts: Counter[str]
    last_sent: float = 0.0

    async def send(self, one: Id, text: str, **flags: bool) -> str:
        """Sends one request. The sequence may be unknown only if it was idle for long enough."""
        sent_before, self.last_sent = self.last_sent, time.monotonic()
        tensor = {"INPUT": numpy.array([[text.encode()]], numpy.object_)}
        request = {
            "model_name": self.model,
            "inputs": make_inputs(self.connection.library, tensor),
            "sequence_id": one.identity,
            **flags,
        }
        self.counts["requests"] += 1
        try:
            async with asyncio.timeout(RESPONSE_SECONDS_MAX):
                response = await self.connection.infer(**request)
        except InferenceServerException as error:
            if one.lost and is_cancellation(error):
                self.counts["cancelled with a lost one"] += 1
                raise UnknownSequence from error
            if "START" not in error.message() or flags.get("sequence_start"):
                raise
            idle = time.monotonic() - sent_before
            assert idle >= IDLE_SECONDS or one.lost, f"gone after {idle} s"
            self.counts["idled out"] += 1
            raise UnknownSequence from error
        return response.replace(one.lost, "")

    async def disconnect(self, one: Id, text: str) -> None:
        """Sends a request and disconnects, before the response if possible."""
        call = asyncio.ensure_future(self.send(one, text))
        # sleep: a random time at which the client disconnects
        await asyncio.sleep(self.chance.random() * 0.01)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError, UnknownSequence):
            await call
        await self.connection.disconnect()

    async def sequence(self, one: Id, name: str) -> Id:
        """Runs one sequence, which may restart, lack its end, or be abandoned.

        Returns the ID for its next user.
        """
        length = self.chance.randint(1, LENGTH_MAX)
        fate = self.chance.choices(["end", "no end", "vanish"], [70, 20, 10])[0]
        begins = {0} | {step for step in range(length) if self.chance.random() < 0.05}
        seen = ""
        for step in range(length):
            text = f"{name}.{step};"
            starts, is_last = step in begins, step == length - 1
            seen = text if starts else seen + text
            flags = {"sequence_start": starts, "sequence_end": is_last and fate == "end"}
            assert await self.send(one, text, **flags) == seen
            # sleep: some sequences idle out
            await asyncio.sleep(self.chance.random() * PAUSE_SECONDS_MAX)
        self.counts[fate] += 1
        if fate != "vanish":
            return Id(one.identity)
        lost = f"{name}.lost;"
        await self.disconnect(one, lost)
        return Id(one.identity, lost)

    async def run(self) -> None:
        """All sequences of this client."""
        done = 0
        while done < SEQUENCES_EACH:
            one = self.ids.take(self.chance)
            try:
                one = await self.sequence(one, f"{self.number}.{done}")
            except UnknownSequence:
                continue
            finally:
                self.ids.free.append(one)
            done += 1


def is_cancellation(error: InferenceServerException) -> bool:
    """Returns true if a request was cancelled, on any connection."""
    return "cancel" in f"{error.status()} {error.message()}".lower()


async def run_clients(server: Server, model: str, seed: int) -> Counter[str]:
    """Runs all clients at once."""
    counts: Counter[str] = Counter()
    ids = Ids()
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                tritonclient.grpc.aio.InferenceServerClient(server.grpc_url)
            )
            for _ in range(CHANNEL_COUNT)
        ]
        http = await stack.enter_async_context(
            tritonclient.http.aio.InferenceServerClient(
                server.http_url, conn_limit=CLIENT_COUNT, conn_timeout=RESPONSE_SECONDS_MAX
            )
        )
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENT_COUNT):
                channel = channels[number % CHANNEL_COUNT]
                connection = [Unary(channel), Stream(channel), Http(http)][number % 3]
                chance = random.Random(f"{seed} {number}")
                client = Client(number, connection, ids, chance, model, counts)
                group.create_task(client.run())
    return counts


@pytest.mark.parametrize("strategy", list(STRATEGIES))
# row: SEQ-26
def test_a_thousand_clients(
    start_server: StartServer, tmp_path: pathlib.Path, strategy: str
) -> None:
    """Every partial result is correct, and no sequence remains at the end."""
    example = sequences.accumulator("bytes", "zero", STRATEGIES[strategy])
    write_example(tmp_path, "model", example)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        counts = asyncio.run(run_clients(server, "model", seed))
        print(dict(counts))
        assert counts["requests"] > CLIENT_COUNT * SEQUENCES_EACH
        wait_until(lambda: server.pending("model") == 0, 60, "nothing is queued")
        statistics = server.statistics("model")
        assert statistics["execution_count"] < statistics["inference_count"]
        if not server.is_triton:
            sequences_left = server.scheduler("model")["sequences"]
            assert sequences_left["backlog"] == []
            wait_until(
                lambda: not server.scheduler("model")["sequences"]["slots"], 60, "all idle out"
            )
