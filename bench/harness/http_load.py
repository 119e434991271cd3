"""HTTP requests whose responses are kept, sent in a closed loop or at given times."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Coroutine

#: What the last responses may take.
SECONDS_MAX = 120.0


@dataclasses.dataclass(frozen=True)
class Done:
    """A request with its response. The times are in seconds."""

    due: float
    finished: float
    #: Among those given.
    number: int
    body: bytes


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a load that counts."""

    begin: float
    end: float
    #: CPU seconds of the server in that time.
    cpu: float
    done: list[Done]

    @property
    def finished(self) -> list[Done]:
        """The requests whose response came in that time."""
        return [each for each in self.done if self.begin <= each.finished < self.end]

    def rate(self) -> float:
        """Responses per second."""
        return len(self.finished) / (self.end - self.begin)

    def latency(self, share: float) -> float:
        """A quantile, in seconds, over the requests that were due in that time."""
        due = (each for each in self.done if self.begin <= each.due < self.end)
        ordered = sorted(each.finished - each.due for each in due)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A load. It runs for `warm` seconds before it counts."""

    address: str
    requests: list[bytes]
    warm: float
    seconds: float
    #: The CPU seconds that the server has used so far.
    cpu: Callable[[], float]
    seed: int


class _Load:
    """Sends the requests in turn, repeatedly."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._host, _, port = plan.address.rpartition(":")
        self._port = int(port)
        self._next = plan.seed * 37
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._done: list[Done] = []
        self.begin = time.monotonic() + plan.warm
        self.end = self.begin + plan.seconds

    async def one(self, due: float) -> None:
        """Sends the next request."""
        number = self._next % len(self._plan.requests)
        self._next += 1
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(self._plan.requests[number])
        head = await reader.readuntil(b"\r\n\r\n")
        lines = (line.partition(b":") for line in head.split(b"\r\n"))
        length = next(int(value) for name, _, value in lines if name.lower() == b"content-length")
        body = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r}: {body[:200]!r}")
        self._done.append(Done(due, time.monotonic(), number, body))
        self._idle.append((reader, writer))

    async def client(self) -> None:
        """Sends one request after the other."""
        while (now := time.monotonic()) < self.end:
            await self.one(now)

    async def arrivals(self, rate: float) -> None:
        """Sends requests as a Poisson process, even if earlier requests have no response yet."""
        drawn = random.Random(self._plan.seed)
        due, sending = time.monotonic(), []
        while (due := due + drawn.expovariate(rate)) < self.end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sending.append(asyncio.ensure_future(self.one(due)))
        await asyncio.gather(*sending)

    async def measure(self, sending: list[Coroutine[None, None, None]]) -> Window:
        """Runs these until they end."""

        async def cpu() -> float:
            await asyncio.sleep(self.begin - time.monotonic())
            before = self._plan.cpu()
            await asyncio.sleep(self.end - time.monotonic())
            return self._plan.cpu() - before

        async with asyncio.timeout(self.end - time.monotonic() + SECONDS_MAX):
            used, *_ = await asyncio.gather(cpu(), *sending)
        for _, writer in self._idle:
            writer.close()
        return Window(self.begin, self.end, used, self._done)


def closed(plan: Plan, clients: int) -> Window:
    """A closed loop, in which a fixed number of requests is always in flight."""

    async def run() -> Window:
        load = _Load(plan)
        return await load.measure([load.client() for _ in range(clients)])

    return asyncio.run(run())


def opened(plan: Plan, rate: float) -> Window:
    """An open loop with this rate of arrivals per second."""

    async def run() -> Window:
        load = _Load(plan)
        return await load.measure([load.arrivals(rate)])

    return asyncio.run(run())
