"""Servers."""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from galatea import TritonError

from . import _calls
from ._calls import INT64, TEXT, UNSIGNED, Handle, check, function, handle_of, handles, method
from ._inference import TRITONSERVER_InferenceRequest
from ._options import TRITONSERVER_ServerOptions
from ._trace import TRITONSERVER_InferenceTrace
from ._values import TRITONSERVER_Message, TRITONSERVER_Metrics, TRITONSERVER_Parameter

_MODEL = (TEXT, INT64)
_MESSAGE = (_calls.owned_result(TRITONSERVER_Message),)
_PROPERTIES = (_calls.UNSIGNED_RESULT, _calls.ADDRESS_RESULT)


class TRITONSERVER_Server(Handle):
    """A server in the program's own process."""

    _delete = "ServerDelete"

    def __init__(self, options: TRITONSERVER_ServerOptions) -> None:
        """Creates a server and waits until its models are loaded."""
        self._make("ServerNew", handle_of(TRITONSERVER_ServerOptions).convert(options))
        _running.add(self)

    def __del__(self) -> None:
        """Deletes the server, which waits for its requests.

        Releasing the last request may drop it on a thread of the server, which must not wait for
        itself.
        """
        if self._owned and isinstance(threading.current_thread(), threading._DummyThread):
            successor = Handle._of(self.handle.value or 0, owned=True)
            successor._delete, self._owned = self._delete, False
            threading.Thread(target=Handle.__del__, args=(successor,)).start()
        else:
            super().__del__()

    def _ptr(self) -> int:
        """The address for functions of the C interface."""
        return self.handle.value or 0

    stop = method("ServerStop")
    unregister_model_repository = method("ServerUnregisterModelRepository", TEXT)
    poll_model_repository = method("ServerPollModelRepository")
    is_live = method("ServerIsLive", results=(_calls.BOOL_RESULT,))
    is_ready = method("ServerIsReady", results=(_calls.BOOL_RESULT,))
    model_is_ready = method("ServerModelIsReady", *_MODEL, results=(_calls.BOOL_RESULT,))
    model_batch_properties = method("ServerModelBatchProperties", *_MODEL, results=_PROPERTIES)
    model_transaction_properties = method(
        "ServerModelTransactionProperties", *_MODEL, results=_PROPERTIES
    )
    metadata = method("ServerMetadata", results=_MESSAGE)
    model_metadata = method("ServerModelMetadata", *_MODEL, results=_MESSAGE)
    model_statistics = method("ServerModelStatistics", *_MODEL, results=_MESSAGE)
    model_config = method("ServerModelConfig", *_MODEL, UNSIGNED, results=_MESSAGE)
    model_index = method("ServerModelIndex", UNSIGNED, results=_MESSAGE)
    load_model = method("ServerLoadModel", TEXT)
    unload_model = method("ServerUnloadModel", TEXT)
    unload_model_and_dependents = method("ServerUnloadModelAndDependents", TEXT)
    metrics = method("ServerMetrics", results=(_calls.owned_result(TRITONSERVER_Metrics),))

    def register_model_repository(
        self, repository_path: str, name_mapping: Sequence[TRITONSERVER_Parameter]
    ) -> None:
        """Adds a repository. A parameter is a directory with the name of its model."""
        array, count = handles(TRITONSERVER_Parameter, name_mapping)
        call = function("ServerRegisterModelRepository")
        check(call(self.handle, TEXT.convert(repository_path), array, ctypes.c_uint32(count)))

    def load_model_with_parameters(
        self, model_name: str, parameters: Sequence[TRITONSERVER_Parameter]
    ) -> None:
        """Loads a model with a configuration or files, and waits until it is loaded."""
        array, count = handles(TRITONSERVER_Parameter, parameters)
        call = function("ServerLoadModelWithParameters")
        check(call(self.handle, TEXT.convert(model_name), array, ctypes.c_uint64(count)))

    def infer_async(self, request: TRITONSERVER_InferenceRequest, *traces: Any) -> None:
        """Sends a request, optionally with a trace, which the server then owns."""
        handle_of(TRITONSERVER_InferenceRequest).convert(request)
        for trace in traces:
            handle_of(TRITONSERVER_InferenceTrace).convert(trace)
        if len(traces) > 1:
            raise TypeError("a request has one trace")
        request.send(self, traces[0] if traces else None)
        for trace in traces:
            trace.hand_over()


#: Servers that have not been deleted. A program that ends leaves them to us: their threads call
#: Python functions, which must not happen while the interpreter is ending.
_running: weakref.WeakSet[TRITONSERVER_Server] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        with suppress(TritonError):
            server.stop()
