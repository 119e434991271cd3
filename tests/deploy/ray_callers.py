"""Callers of the application that record their requests and the responses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import tritonclient.http
from ray.serve.handle import DeploymentHandle
from tritonclient.utils import InferenceServerException

#: How long a caller waits for a response.
SECONDS_MAX = 120.0


def inputs(value: int, size: int = 1) -> dict[str, numpy.ndarray]:
    """A row of numbers."""
    return {"INPUT0": numpy.full((1, size), value, numpy.int32)}


class Ledger:
    """The requests, how often each was sent, and the responses."""

    def __init__(self) -> None:
        """There is nothing yet."""
        self.answers: dict[int, list[int]] = {}
        self.failures: list[str] = []
        self.sent = 0
        self.stop = threading.Event()
        self._values = itertools.count(1)
        self._lock = threading.Lock()

    def ask(self) -> int:
        """A unique value for a request."""
        with self._lock:
            value = next(self._values)
            self.answers[value] = []
        return value

    def answered(self, value: int, answer: numpy.ndarray) -> None:
        """A response to this request."""
        self.answers[value] += set(answer.flatten().tolist())

    def failed(self, value: int, error: Exception) -> None:
        """An error instead of the response."""
        self.failures.append(f"{value}: {type(error).__name__}: {error}")

    def retried(self) -> int:
        """The number of requests that were sent a second time."""
        return self.sent - len(self.answers)

    def check(self) -> None:
        """Checks that each value came back exactly once."""
        assert self.failures == [], self.failures[:5]
        wrong = {asked: came for asked, came in self.answers.items() if came != [asked]}
        assert wrong == {} and self.answers, wrong


class Counted:
    """A handle that counts the requests sent over it."""

    def __init__(self, handle: DeploymentHandle, ledger: Ledger) -> None:
        """Behaves like the handle, to the extent that callers use it."""
        self.handle = handle
        self.ledger = ledger
        self.infer = self

    def remote(self, *arguments: Any, **options: Any) -> Any:
        """Sends it."""
        self.ledger.sent += 1
        return self.handle.infer.remote(*arguments, **options)


async def call(handle: DeploymentHandle, ledger: Ledger, model: str, size: int) -> None:
    """Sends requests over a handle, as programs in the cluster do."""
    from galatea_serve import infer_with_one_retry

    while not ledger.stop.is_set():
        value = ledger.ask()
        try:
            one = infer_with_one_retry(Counted(handle, ledger), model, inputs(value, size))
            answer = await asyncio.wait_for(one, SECONDS_MAX)
        except Exception as error:
            ledger.failed(value, error)
        else:
            ledger.answered(value, answer["OUTPUT0"])


async def call_all(handle: DeploymentHandle, ledger: Ledger, model: str, callers: int) -> None:
    """Callers in one loop. Large arrays are passed through the stores of the nodes."""
    sizes = [100_000 if number % 8 == 7 else 1 for number in range(callers)]
    await asyncio.gather(*(call(handle, ledger, model, size) for size in sizes))


def ask_over_http(port: int, ledger: Ledger, model: str) -> None:
    """Sends requests with Triton's client, and repeats failed ones once."""
    client = tritonclient.http.InferenceServerClient(
        f"127.0.0.1:{port}", network_timeout=SECONDS_MAX
    )

    def send(value: int) -> numpy.ndarray:
        tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(inputs(value)["INPUT0"])
        ledger.sent += 1
        return client.infer(model, [tensor]).as_numpy("OUTPUT0")

    with contextlib.closing(client):
        while not ledger.stop.is_set():
            value = ledger.ask()
            try:
                try:
                    ledger.answered(value, send(value))
                except InferenceServerException as error:
                    # Serve's response for a replica that has died.
                    assert error.status() == "500", error
                    ledger.answered(value, send(value))
            except Exception as error:
                ledger.failed(value, error)


@contextlib.contextmanager
def calls(handle: DeploymentHandle, model: str, callers: int) -> Iterator[Ledger]:
    """Makes calls over the handle all the time; none may be lost."""
    ledger = Ledger()

    def run() -> None:
        asyncio.run(call_all(handle, ledger, model, callers))

    with running([threading.Thread(target=run)], ledger):
        yield ledger


@contextlib.contextmanager
def http_requests(port: int, model: str, clients: int) -> Iterator[Ledger]:
    """Sends requests over HTTP all the time; none may be lost."""
    ledger = Ledger()
    threads = [
        threading.Thread(target=ask_over_http, args=[port, ledger, model]) for _ in range(clients)
    ]
    with running(threads, ledger):
        yield ledger


@contextlib.contextmanager
def running(threads: list[threading.Thread], ledger: Ledger) -> Iterator[None]:
    """Runs the threads, and checks the ledger once they have ended."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ledger.stop.set()
        for thread in threads:
            thread.join()
    ledger.check()
