"""A model that is one function, `predict`, whose type hints are its configuration."""

from __future__ import annotations

import copy
import os
import threading
from typing import Any, Dict, List, Tuple

from . import coroutines, state, values
from .arrays import CONFIG_NAMES
from .errors import BackendError, forget
from .execute import failure_text
from .hints import ARRAY, HintError, Place, Signature, TensorHint, read
from .response import ErrorCode, InferenceResponse, TritonError
from .sender import RESPONSE_COMPLETE_FINAL

#: The maximum number of concurrent coroutines of an instance; further requests wait.
COROUTINES_MAX = 1024
#: Schedulers, of which a configuration has exactly one.
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def batch_size(module: Any, file: str) -> int:
    """Returns the batch size that the module sets; 0 means none."""
    size = getattr(module, "MAX_BATCH_SIZE", 0)
    if type(size) is not int or size < 0:
        raise HintError(f"{os.path.basename(file)}: MAX_BATCH_SIZE is {size!r}, but it is a "
                        "number of rows, or 0 for no batches")
    return size


def merge(config: Dict[str, Any], signature: Signature, size: int, place: str) -> None:
    """Completes a configuration; raises HintError if it contradicts the signature."""
    for part, hints in (("input", signature.inputs), ("output", signature.outputs)):
        present = config.setdefault(part, [])
        names = [hint.name for hint in hints]
        for one in present:
            if one.get("name") not in names:
                raise HintError(f"{place}: the configuration has the {part} "
                                f"'{one.get('name')}', which predict lacks")
        for hint in hints:
            _merge_tensor(present, hint, part, size > 0, place)
    given = config.get("max_batch_size", 0)
    if given not in (0, size):
        raise HintError(f"{place}: the configuration has max_batch_size {given}, but "
                        f"MAX_BATCH_SIZE in the file is {size}")
    config["max_batch_size"] = size
    policy = config.get("model_transaction_policy", {})
    if policy.get("decoupled", False) and not signature.is_stream:
        raise HintError(f"{place}: the configuration is decoupled, but predict doesn't yield")
    if signature.is_stream:
        config["model_transaction_policy"] = dict(policy, decoupled=True)


def _merge_tensor(present: List[Dict[str, Any]], hint: TensorHint, part: str,
                  batching: bool, place: str) -> None:
    """Adds an input or output to a configuration, or compares it with the one of that name."""
    datatype = "TYPE_" + CONFIG_NAMES[hint.datatype]
    dims = hint.dims(batching)
    named = [one for one in present if one.get("name") == hint.name]
    if not named:
        new = {"name": hint.name, "data_type": datatype, "dims": dims}
        present.append(dict(new, optional=True) if hint.optional else new)
        return
    one = named[0]
    begin = f"{place}: the configuration has {part} '{hint.name}' with"
    if one.get("data_type") not in (None, "TYPE_INVALID", datatype):
        raise HintError(f"{begin} data_type {one['data_type']}, but its hint says {datatype}")
    given = one.get("dims") or dims
    fits = len(given) == len(dims) and all(
        wanted in (-1, length) for wanted, length in zip(dims, given))
    if not fits:
        raise HintError(f"{begin} dims {given}, but its hint says {dims}")
    if one.get("optional") and not hint.optional:
        raise HintError(f"{begin} optional: true, but the parameter has no default")
    one.update(data_type=datatype, dims=given)


def model_class(module: Any) -> Any:
    """A class for the module's function, as `TritonPythonModel` would be."""
    file = state.model_path or getattr(module, "__file__", "model.py")
    size = batch_size(module, file)
    function = module.predict
    signature = read(function, size > 0, file)

    def complete(config: Any) -> Any:
        merge(config._model_config, signature, size, Place(function, file).of())
        if size and not any(one in config._model_config for one in _SCHEDULERS):
            config.set_dynamic_batching()
        return config

    members = {"auto_complete_config": staticmethod(complete), "signature": signature,
               "size": size, "module": module}
    return type("TritonPythonModel", (FunctionModel,), members)


class FunctionModel:
    """The model of a module's function."""

    signature: Signature
    size: int
    module: Any

    def __init__(self) -> None:
        self._predict = self.module.predict
        self._free = threading.BoundedSemaphore(COROUTINES_MAX)
        signature = self.signature
        if self.size:
            self.execute = self._execute_batches
        elif signature.is_async:
            self.execute = self._execute_later
        elif signature.is_stream:
            self.execute = self._execute_streams
        else:
            self.execute = self._execute_each
        for name in ("finalize", "is_ready"):
            if hasattr(self.module, name):
                setattr(self, name, getattr(self.module, name))

    def initialize(self, args: Dict[str, str]) -> None:
        """Checks the configuration, which may be incomplete."""
        import json
        config = json.loads(args.get("model_config") or "{}")
        complete = copy.deepcopy(config)
        place = Place(self._predict, state.model_path).of()
        merge(complete, self.signature, self.size, place)
        for part in complete:
            if complete[part] != config.get(part, 0 if part == "max_batch_size" else None):
                raise HintError(f"{place}: the configuration has no such {part} as the "
                                "hints say, and the server doesn't complete it")
        if hasattr(self.module, "initialize"):
            self.module.initialize(args)

    def _arguments(self, request: Any) -> Dict[str, Any]:
        """Returns the arguments for the function."""
        given = {tensor._name: tensor for tensor in request._inputs}
        return {hint.name: values.decode(hint, given[hint.name])
                for hint in self.signature.inputs if hint.name in given}

    def _encode(self, value: Any, rows: Any = None) -> List[Any]:
        """Encodes the function's return value as tensors."""
        if not self.signature.has_fields:
            return [values.encode(self.signature.outputs[0], value, rows)]
        found = []
        for hint in self.signature.outputs:
            try:
                field = value[hint.name] if isinstance(value, dict) \
                    else getattr(value, hint.name)
            except (KeyError, AttributeError):
                raise BackendError(f"predict gave no output '{hint.name}'") from None
            found.append(values.encode(hint, field, rows))
        return found

    def _respond(self, value: Any) -> InferenceResponse:
        return InferenceResponse(self._encode(value))

    def _execute_each(self, requests: List[Any]) -> List[InferenceResponse]:
        """Calls the function once per request."""
        responses = []
        for request in requests:
            try:
                responses.append(self._respond(self._predict(**self._arguments(request))))
            except BaseException as error:
                responses.append(_failed(error))
        return responses

    # Batches.

    def _execute_batches(self, requests: List[Any]) -> List[InferenceResponse]:
        """Calls the function once for all requests with compatible inputs."""
        responses: Dict[int, InferenceResponse] = {}
        groups: Dict[Any, List[Tuple[Any, Dict[str, Any]]]] = {}
        for request in requests:
            try:
                given = self._arguments(request)
            except BaseException as error:
                responses[request._key] = _failed(error)
                continue
            groups.setdefault(self._shape_of(given), []).append((request, given))
        for members in groups.values():
            try:
                found = self._call_batch(members)
            except BaseException as error:
                found = [_failed(error)] * len(members)
            for (request, _), response in zip(members, found):
                responses[request._key] = response
        return [responses[request._key] for request in requests]

    def _shape_of(self, given: Dict[str, Any]) -> Any:
        """Returns the properties that the values of two requests must share to share a call."""
        return tuple((name, getattr(value, "shape", (0,))[1:])
                     for name, value in given.items())

    def _call_batch(self, members: List[Tuple[Any, Dict[str, Any]]]) -> List[Any]:
        """Calls the function once and gives each request its rows."""
        name = next(iter(members[0][1]))
        sizes = [len(given[name]) for _, given in members]
        result = self._predict(**self._joined([given for _, given in members]))
        if coroutines.is_coroutine(result):
            result = coroutines.run(result)
        parts = [values.split(hint, tensor, sizes) for hint, tensor in
                 zip(self.signature.outputs, self._encode(result, sum(sizes)))]
        return [InferenceResponse(tensors) for tensors in zip(*parts)]

    def _joined(self, given: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Concatenates the values of all requests."""
        if len(given) == 1:
            return given[0]
        joined: Dict[str, Any] = {}
        for hint in self.signature.inputs:
            if hint.name not in given[0]:
                continue
            parts = [one[hint.name] for one in given]
            if hint.form == ARRAY:
                from . import arrays
                joined[hint.name] = arrays.np.concatenate(parts)
            else:
                joined[hint.name] = [value for part in parts for value in part]
        return joined

    # Streams.

    def _execute_streams(self, requests: List[Any]) -> None:
        """Sends each value that the function yields as a response."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                stream = self._predict(**self._arguments(request))
                try:
                    for value in stream:
                        if sender.is_cancelled():
                            break
                        sender.send(self._respond(value))
                finally:
                    if hasattr(stream, "close"):
                        stream.close()
            except BaseException as error:
                sender.send(_failed(error), RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(flags=RESPONSE_COMPLETE_FINAL)

    # Coroutines.

    def _execute_later(self, requests: List[Any]) -> None:
        """Starts a coroutine for each request; the request's sender answers."""
        for request in requests:
            self._free.acquire()
            coroutines.run_in_background(self._answer(request, request.get_response_sender()))

    async def _answer(self, request: Any, sender: Any) -> None:
        """Answers a request once the function has returned."""
        try:
            if self.signature.is_stream:
                last = await self._stream(request, sender)
            else:
                last = self._respond(await self._predict(**self._arguments(request)))
        except BaseException as error:
            last = _failed(error)
        finally:
            self._free.release()
        sender.send(last, RESPONSE_COMPLETE_FINAL)

    async def _stream(self, request: Any, sender: Any) -> None:
        stream = self._predict(**self._arguments(request))
        try:
            async for value in stream:
                if sender.is_cancelled():
                    break
                sender.send(self._respond(value))
        finally:
            await stream.aclose()


def _failed(error: BaseException) -> InferenceResponse:
    """Returns the response for an exception; an exception about an input blames the client."""
    if isinstance(error, values.InputError):
        return InferenceResponse(error=TritonError(str(error), ErrorCode.INVALID_ARG))
    text = failure_text(error)
    forget(error)
    return InferenceResponse(error=TritonError(text))
