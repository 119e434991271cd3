"""Clients that record their requests and the responses."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import tritonclient.grpc
import tritonclient.http
from proxies import Proxy

#: How long a client waits for a response.
SECONDS_MAX = 60.0

#: What makes gRPC's library repeat calls that a server refused.
REPEAT = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.01s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Client:
    """One client over one connection, HTTP or gRPC."""

    def __init__(self, protocol: str, proxy: Proxy, repeat: bool = False) -> None:
        """Connects to the proxy. A gRPC client may repeat calls that were refused."""
        self.is_http = protocol == "http"
        self.kit: Any = tritonclient.http if self.is_http else tritonclient.grpc
        port = proxy.http_port if self.is_http else proxy.grpc_port
        more: dict[str, Any] = {"network_timeout": SECONDS_MAX} if self.is_http else {}
        if repeat:
            more["channel_args"] = [("grpc.service_config", json.dumps(REPEAT))]
        self.client = self.kit.InferenceServerClient(f"127.0.0.1:{port}", **more)

    def ask(self, model: str, values: list[int], **options: Any) -> list[int]:
        """The response of a model that returns its input."""
        tensor = self.kit.InferInput("INPUT0", [1, len(values)], "INT32")
        tensor.set_data_from_numpy(numpy.array([values], numpy.int32))
        if not self.is_http:
            options["client_timeout"] = SECONDS_MAX
        result = self.client.infer(model, [tensor], **options)
        return result.as_numpy("OUTPUT0")[0].tolist()

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()


class Ledger:
    """Clients in threads that send requests without a pause; each value is sent once."""

    def __init__(
        self,
        protocol: str,
        proxy: Proxy,
        model: str,
        clients: int,
        size: int = 1,
        repeat: bool = False,
    ) -> None:
        """Starts them; each request contains its value `size` times."""
        self.model = model
        self.size = size
        self.answers: dict[int, list[int]] = {}
        self.failures: list[str] = []
        self._values = itertools.count(1)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=[protocol, proxy, repeat]) for _ in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, protocol: str, proxy: Proxy, repeat: bool) -> None:
        with contextlib.closing(Client(protocol, proxy, repeat)) as client:
            while not self._stop.is_set():
                self.one(client)

    def one(self, client: Client) -> None:
        """Sends one request with a unique value."""
        with self._lock:
            value = next(self._values)
            self.answers[value] = []
        try:
            answer = client.ask(self.model, [value] * self.size)
        except Exception as error:
            self.failures.append(f"{value}: {type(error).__name__}: {error}")
        else:
            assert len(answer) == self.size
            self.answers[value] += set(answer)

    def close(self) -> None:
        """Waits for the last responses, and checks that each value came back once."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.failures == [], self.failures[:5]
        wrong = {asked: came for asked, came in self.answers.items() if came != [asked]}
        assert wrong == {} and self.answers


@contextlib.contextmanager
def load(
    protocol: str, proxy: Proxy, model: str, clients: int = 4, **options: Any
) -> Iterator[Ledger]:
    """Sends requests all the time, none of which may be lost."""
    ledger = Ledger(protocol, proxy, model, clients, **options)
    try:
        yield ledger
    finally:
        ledger.close()
