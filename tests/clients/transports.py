"""A common interface for all protocols, which sends a request and waits for its response."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from server import Server
from wire import Tap

RESPONSE_SECONDS_MAX = 60.0

Tensors = Mapping[str, numpy.ndarray]


class Transport(Protocol):
    """A connection that sends one request after the other."""

    def infer(self, model: str, tensors: Tensors, **options: Any) -> dict[str, numpy.ndarray]:
        """Sends a request with the client library's options, and waits for its outputs."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


def make_inputs(library: Any, tensors: Tensors) -> list[Any]:
    """The tensors in the form that the client library expects."""
    inputs = []
    for name, array in tensors.items():
        one = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array)
        inputs.append(one)
    return inputs


def requested(library: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with output names converted to objects; a mapping of names specifies the
    number of classes for each."""
    names: Sequence[str] | Mapping[str, int] | None = options.pop("outputs", None)
    if names is not None:
        counts = names if isinstance(names, Mapping) else dict.fromkeys(names, 0)
        make = library.InferRequestedOutput
        options["outputs"] = [make(name, class_count=counts[name]) for name in names]
    return options


def grpc_outputs(result: tritonclient.grpc.InferResult) -> dict[str, numpy.ndarray]:
    """All outputs of a gRPC response."""
    names = [output.name for output in result.get_response().outputs]
    return {name: result.as_numpy(name) for name in names}


class Http:
    """Requests over HTTP/REST."""

    def __init__(self, server: Server) -> None:
        self._client = tritonclient.http.InferenceServerClient(server.http_url)

    def infer(self, model: str, tensors: Tensors, **options: Any) -> dict[str, numpy.ndarray]:
        """Sends a POST request to the model's infer endpoint."""
        library = tritonclient.http
        options = requested(library, options)
        result = self._client.infer(model, make_inputs(library, tensors), **options)
        names = [output["name"] for output in result.get_response().get("outputs", [])]
        return {name: result.as_numpy(name) for name in names}

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class Grpc:
    """Single calls over gRPC."""

    def __init__(self, server: Server) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    def infer(self, model: str, tensors: Tensors, **options: Any) -> dict[str, numpy.ndarray]:
        """Calls ModelInfer."""
        library = tritonclient.grpc
        options = requested(library, options)
        return grpc_outputs(self._client.infer(model, make_inputs(library, tensors), **options))

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class GrpcStream:
    """A gRPC stream, on which several requests may be in flight."""

    def __init__(self, server: Server) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._responses.put((result, error)))

    def send(self, model: str, tensors: Tensors, **options: Any) -> None:
        """Writes a request."""
        library = tritonclient.grpc
        options = requested(library, options)
        self._client.async_stream_infer(model, make_inputs(library, tensors), **options)

    def receive(self) -> tuple[str, dict[str, numpy.ndarray]]:
        """Waits for a response; returns the request's ID and the outputs."""
        result, error = self._responses.get(timeout=RESPONSE_SECONDS_MAX)
        if error is not None:
            raise error
        return result.get_response().id, grpc_outputs(result)

    def receive_all(self, count: int) -> dict[str, dict[str, numpy.ndarray]]:
        """Waits for this number of responses; returns the outputs by the requests' IDs."""
        return dict(self.receive() for _ in range(count))

    def infer(self, model: str, tensors: Tensors, **options: Any) -> dict[str, numpy.ndarray]:
        """Writes a request, and waits for its response."""
        self.send(model, tensors, **options)
        return self.receive()[1]

    def close(self, cancel: bool = False) -> None:
        """Ends the stream and its connection."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def __enter__(self) -> GrpcStream:
        """The stream itself."""
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """After a failure, the client doesn't wait for responses that may never come."""
        self.close(cancel=failure is not None)


class GrpcCalls:
    """Overlapping gRPC calls, each of which can be cancelled."""

    def __init__(self, server: Server | Tap) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._calls: list[Any] = []
        self._outcomes: list[queue.Queue[Any]] = []
        self._finished: set[int] = set()

    def send(self, model: str, tensors: Tensors, **options: Any) -> int:
        """Starts a call, and returns its number, starting at 0."""
        number = len(self._calls)
        outcome: queue.Queue[Any] = queue.Queue()
        self._outcomes.append(outcome)

        def callback(result: Any, error: Any) -> None:
            self._finished.add(number)
            outcome.put(error or grpc_outputs(result))

        library = tritonclient.grpc
        inputs = make_inputs(library, tensors)
        options = requested(library, options)
        self._calls.append(self._client.async_infer(model, inputs, callback, **options))
        return number

    def cancel(self, number: int) -> None:
        """Cancels a request."""
        self._calls[number].cancel()

    def wait(self, number: int) -> dict[str, numpy.ndarray]:
        """The outputs of a call, returned once."""
        outcome = self._outcomes[number].get(timeout=RESPONSE_SECONDS_MAX)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_finished(self, number: int) -> bool:
        """Returns true if a call has ended."""
        return number in self._finished

    def is_cancelled(self, number: int) -> bool:
        """Waits for a call's end; returns true if it was cancelled."""
        try:
            self.wait(number)
        except InferenceServerException as error:
            return error.status() == "StatusCode.CANCELLED"
        return False

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class AioStream:
    """A gRPC stream of the asyncio client."""

    def __init__(self, server: Server) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(server))

    async def _open(self, server: Server) -> None:
        self._client = tritonclient.grpc.aio.InferenceServerClient(server.grpc_url)
        self._requests: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._responses = self._client.stream_infer(self._next_requests())

    async def _next_requests(self) -> AsyncIterator[dict[str, Any]]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _infer(self, request: dict[str, Any]) -> dict[str, numpy.ndarray]:
        self._requests.put_nowait(request)
        result, error = await asyncio.wait_for(anext(self._responses), RESPONSE_SECONDS_MAX)
        if error is not None:
            raise error
        return grpc_outputs(result)

    def infer(self, model: str, tensors: Tensors, **options: Any) -> dict[str, numpy.ndarray]:
        """Writes a request and waits for its response."""
        library = tritonclient.grpc.aio
        request = {"model_name": model, "inputs": make_inputs(library, tensors)}
        return self._runner.run(self._infer({**request, **requested(library, options)}))

    async def _close(self) -> None:
        self._requests.put_nowait(None)
        async for _ in self._responses:
            raise AssertionError("a response without a request")
        await self._client.close()

    def close(self) -> None:
        """Ends the stream and its connection."""
        self._runner.run(self._close())
        self._runner.close()


TRANSPORTS = {"http": Http, "grpc": Grpc, "stream": GrpcStream, "aio-stream": AioStream}
