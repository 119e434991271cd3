"""Responses, and the iterators over them."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _galatea
from ._enums import DataType, MemoryType
from ._errors import InternalError, TritonError
from ._memory import MemoryBuffer, place_output
from ._request import InferenceRequest
from ._tensor import Tensor

if TYPE_CHECKING:
    from ._model import Model

#: A response or an error of the server, and true if it is the last.
_Part = tuple[Optional[_galatea.Response], Optional[Exception], bool]


@dataclass
class InferenceResponse:
    """A response to a request, or an error instead.

    A decoupled model ends its responses with one that has no outputs and is `final`.
    """

    model: Model
    request_id: Optional[str] = None
    parameters: dict[str, Union[str, int, bool, float]] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: Optional[TritonError] = None
    classification_label: Optional[str] = None
    final: bool = False

    @staticmethod
    def _of(request: InferenceRequest, part: _Part) -> InferenceResponse:
        response, error, final = part
        result = InferenceResponse(request.model, request.request_id or "", final=final)
        if isinstance(error, TritonError):
            error.args += (result,)
            result.error = error
        if response is None:
            return result
        result.model = request.model._with(response.model_name, response.model_version)
        result.request_id = response.id
        result.parameters = dict(response.parameters)
        allocator = request.output_memory_allocator
        try:
            for data_type, name, shape, memory in response.outputs:
                made = MemoryBuffer(memory.address, MemoryType.CPU, 0, memory.byte_size, memory)
                place = place_output(made, allocator, request._output_place())
                result.outputs[name] = Tensor(DataType(data_type), shape, place)
        except InternalError as failure:
            result.outputs = {}
            failure.args += (result,)
            result.error = failure
        return result


class _Responses:
    """Base of both iterators."""

    def __init__(
        self, request: _galatea.Request, inference_request: InferenceRequest, raise_on_error: bool
    ) -> None:
        self._request = request
        self._inference_request = inference_request
        self._raise_on_error = raise_on_error
        self._complete = False

    def cancel(self) -> None:
        """Cancels the request. Its last response still arrives, usually as an error."""
        self._request.cancel()

    def _seen(self, response: InferenceResponse) -> InferenceResponse:
        self._complete = response.final
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response


class ResponseIterator(_Responses, Iterator[InferenceResponse]):
    """The responses to a request. Waiting for one doesn't block other threads."""

    def __init__(
        self, request: _galatea.Request, inference_request: InferenceRequest, raise_on_error: bool
    ) -> None:
        """Created by :meth:`Model.infer`."""
        super().__init__(request, inference_request, raise_on_error)
        self._own: Optional[queue.SimpleQueue[InferenceResponse]] = None
        if inference_request.response_queue is not None:
            self._own = queue.SimpleQueue()
            thread = threading.Thread(target=self._copy, args=(inference_request.response_queue,))
            thread.start()

    def __next__(self) -> InferenceResponse:
        """Waits for the next response."""
        if self._complete:
            raise StopIteration
        return self._seen(self._wait() if self._own is None else self._own.get())

    def _wait(self) -> InferenceResponse:
        return InferenceResponse._of(self._inference_request, self._request.next())

    def _copy(self, other: Any) -> None:
        """Puts each response into the iterator's queue and the program's."""
        response = None
        while response is None or not response.final:
            response = self._wait()
            if self._own is not None:
                self._own.put(response)
            other.put(response)


class AsyncResponseIterator(_Responses, AsyncIterator[InferenceResponse]):
    """The responses to a request, for an asyncio loop."""

    def __init__(
        self, request: _galatea.Request, inference_request: InferenceRequest, raise_on_error: bool
    ) -> None:
        """Created by :meth:`Model.async_infer`."""
        super().__init__(request, inference_request, raise_on_error)
        self._own: Optional[asyncio.Queue[InferenceResponse]] = None
        if inference_request.response_queue is not None:
            self._own = asyncio.Queue()
            copying = self._copy(inference_request.response_queue)
            self._copying = asyncio.get_running_loop().create_task(copying)

    async def __anext__(self) -> InferenceResponse:
        """Waits for the next response."""
        if self._complete:
            raise StopAsyncIteration
        return self._seen(await (self._wait() if self._own is None else self._own.get()))

    async def _wait(self) -> InferenceResponse:
        part = self._request.take()
        while part is None:
            await _LoopResponses.of_running_loop().arrival(self._request)
            part = self._request.take()
        return InferenceResponse._of(self._inference_request, part)

    async def _copy(self, other: Any) -> None:
        """Puts each response into the iterator's queue and the program's."""
        response = None
        while response is None or not response.final:
            response = await self._wait()
            if self._own is not None:
                self._own.put_nowait(response)
            other.put_nowait(response)


class _LoopResponses:
    """The requests whose responses a loop awaits.

    The server's threads write to a descriptor that the loop watches; they never run Python.
    """

    _of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopResponses] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waker = _galatea.EventLoopWaker()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._numbers = count()
        loop.add_reader(self._waker.fileno(), self._arrived)

    @classmethod
    def of_running_loop(cls) -> _LoopResponses:
        """The instance for the loop that runs in this thread."""
        loop = asyncio.get_running_loop()
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def arrival(self, request: _galatea.Request) -> asyncio.Future[None]:
        """Resolves when a response is available, or another task has taken it."""
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        request.tell(self._waker, number)
        return future

    def _arrived(self) -> None:
        for number in self._waker.take():
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)
