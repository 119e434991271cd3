"""Models of a server."""

from __future__ import annotations

import asyncio
import json
import queue
from typing import TYPE_CHECKING, Any, Optional

from . import _galatea
from ._enums import ModelBatchFlag, ModelTxnPropertyFlag
from ._errors import InvalidArgumentError
from ._request import InferenceRequest
from ._response import AsyncResponseIterator, ResponseIterator

if TYPE_CHECKING:
    from ._server import Server


class Model:
    """A model of a server, to be queried and to be sent requests.

    Created by :meth:`Server.model`, :meth:`Server.models` and :meth:`Server.load`. A version of
    -1 means the newest. The model is looked up only when it is used.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        version: int = -1,
        state: Optional[str] = None,
        reason: Optional[str] = None,
    ) -> None:
        """Use the methods of :class:`Server`."""
        self._server: _galatea.Server = server._started()
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def _with(self, name: str, version: int) -> Model:
        """Another model of the same server."""
        model = Model.__new__(Model)
        model._server = self._server
        model.name, model.version = name, version
        model.state = model.reason = None
        return model

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """Creates a request to this model, with the attributes of :class:`InferenceRequest`."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self,
        inference_request: Optional[InferenceRequest] = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> ResponseIterator:
        """Sends a request and immediately returns an iterator over its responses.

        The request is given, or created from the keyword arguments of :class:`InferenceRequest`.
        With `raise_on_error`, the iterator raises errors; without it, responses carry them.
        """
        request = inference_request or InferenceRequest(model=self, **kwargs)
        _check_queue(request, queue.SimpleQueue, "queue.SimpleQueue", "response iterator")
        return ResponseIterator(self._server.infer(request._values()), request, raise_on_error)

    def async_infer(
        self,
        inference_request: Optional[InferenceRequest] = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> AsyncResponseIterator:
        """Like :meth:`infer`, with an iterator for ``async for``."""
        request = inference_request or InferenceRequest(model=self, **kwargs)
        _check_queue(request, asyncio.Queue, "asyncio.Queue", "async response iterator")
        sent = self._server.infer(request._values())
        return AsyncResponseIterator(sent, request, raise_on_error)

    def metadata(self) -> dict[str, Any]:
        """The model's inputs and outputs, platform and versions."""
        return _object(self._server.model_metadata(self.name, self.version))

    def ready(self) -> bool:
        """True if the model takes requests."""
        return self._server.model_is_ready(self.name, self.version)

    def batch_properties(self) -> ModelBatchFlag:
        """The flag for a batch as the first dimension of the model's tensors."""
        batches = self._server.model_batches(self.name, self.version)
        return ModelBatchFlag.FIRST_DIM if batches else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """The flag for one response to a request, or any number."""
        decoupled = self._server.model_is_decoupled(self.name, self.version)
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    def statistics(self) -> dict[str, Any]:
        """Counts and times of the model's requests."""
        return _object(self._server.model_statistics(self.name, self.version))

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The model's configuration, with what the server added to it."""
        return _object(self._server.model_config(self.name, self.version, config_version))

    def __repr__(self) -> str:
        """Name, version and state."""
        return str({"name": self.name, "version": self.version, "state": self.state})


def _object(document: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document)
    return parsed


def _check_queue(request: InferenceRequest, expected: type, name: str, whose: str) -> None:
    if request.response_queue is not None and not isinstance(request.response_queue, expected):
        raise InvalidArgumentError(f"{name} must be used for {whose}")
