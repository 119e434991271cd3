"""Models whose tensors the server has arranged in the model's order, and their errors."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

from galatea_worker import arrays
from galatea_worker.errors import TritonModelException
from galatea_worker.helpers import get_input_tensor_by_name
from galatea_worker.response import InferenceResponse, TritonError
from galatea_worker.tensor import Tensor

from . import batches, install


class Refusal(Exception):
    """An error with a status code. Clients receive the message unchanged."""

    def __init__(self, text: str, code: Any = TritonError.INVALID_ARG) -> None:
        super().__init__(text)
        self.code = code


class OrderedModel:
    """A model with the tensor names from its job. Subclasses load and run it."""

    def __init__(self, job: Dict[str, Any]) -> None:
        self._job = job
        self._torch: Any = None
        self._model = ""
        self._is_batched = False

    def initialize(self, args: Dict[str, str]) -> None:
        """Loads the model."""
        self._torch = install.load()
        self._torch.set_num_threads(self._job["threads"])
        self._model = args["model_name"]
        self._is_batched = json.loads(args["model_config"])["max_batch_size"] > 0
        self.load(self._torch, self._job)

    def execute(self, requests: Sequence[Any]) -> List[InferenceResponse]:
        """Executes a batch, or individual requests if the model doesn't support batching."""
        if self._is_batched:
            return self._answer(requests)
        return [response for request in requests for response in self._answer([request])]

    def _answer(self, requests: Sequence[Any]) -> List[InferenceResponse]:
        try:
            inputs = [self._inputs(request) for request in requests]
            return self._responses(inputs)
        except Refusal as refusal:
            error = TritonError(str(refusal), refusal.code)
        return [InferenceResponse(error=error) for _ in requests]

    def _responses(self, inputs: List[List[Any]]) -> List[InferenceResponse]:
        joined, rows = inputs[0], [0]
        if self._is_batched:
            joined, rows = self.join(inputs)
        outputs = self.run(joined)
        columns = []
        for output in self._job["outputs"]:
            value = self.output(outputs, output)
            columns.append(self._split(output["name"], value, rows) if self._is_batched else [value])
        names = [output["name"] for output in self._job["outputs"]]
        return [
            InferenceResponse([make_tensor(name, value) for name, value in zip(names, values)])
            for values in zip(*columns)]

    def _inputs(self, request: Any) -> List[Any]:
        values = []
        for name in self._job["inputs"]:
            tensor = get_input_tensor_by_name(request, name)
            if tensor is None:
                raise Refusal(f"input '{name}' is not given")
            values.append(self.value(tensor))
        return values

    def value(self, tensor: Any) -> Any:
        """Converts an input to the form that the model receives."""
        return self._torch.from_dlpack(tensor.to_dlpack())

    def join(self, inputs: List[List[Any]]) -> Any:
        """Returns the batch inputs and each request's number of rows."""
        return batches.join(self._torch, inputs)

    def _split(self, name: str, value: Any, rows: List[int]) -> Sequence[Any]:
        """Splits an output of the batch into one part per request."""
        is_list = isinstance(value, list)
        shape = [len(value)] if is_list else list(value.shape)
        if not shape or shape[0] != sum(rows):
            sizes = ",".join(map(str, shape))
            raise Refusal(
                f"failed to split the output tensor '{name}' in responses: expected batch size of "
                f"{sum(rows)} in model output, got shape [{sizes}]", TritonError.UNSUPPORTED)
        if is_list:
            ends = [sum(rows[:index + 1]) for index in range(len(rows))]
            return [value[end - count:end] for end, count in zip(ends, rows)]
        return self._torch.split(value, rows)

    def load(self, torch: Any, job: Dict[str, Any]) -> None:
        """Loads the job's model."""
        raise NotImplementedError

    def run(self, values: List[Any]) -> Sequence[Any]:
        """Computes all outputs. May raise `Refusal`."""
        raise NotImplementedError

    def output(self, outputs: Sequence[Any], output: Dict[str, Any]) -> Any:
        """Returns an output listed in the configuration. May raise `Refusal`."""
        raise NotImplementedError


def datatype_of(tensor: Any) -> str:
    """Returns the protocol's data type name for a PyTorch tensor, or an empty string."""
    return _DATATYPES.get(str(tensor.dtype), "")


_DATATYPES = {
    "torch.bool": "BOOL", "torch.uint8": "UINT8", "torch.uint16": "UINT16",
    "torch.uint32": "UINT32", "torch.uint64": "UINT64", "torch.int8": "INT8",
    "torch.int16": "INT16", "torch.int32": "INT32", "torch.int64": "INT64",
    "torch.float16": "FP16", "torch.float32": "FP32", "torch.float64": "FP64",
    "torch.bfloat16": "BF16"}


def make_tensor(name: str, value: Any) -> Tensor:
    """Returns a response tensor made from a PyTorch tensor or a list of strings."""
    if not isinstance(value, list):
        return Tensor.from_dlpack(name, value.detach().contiguous())
    from galatea_worker.tensor import from_bytes
    texts = [text.encode() for text in value]
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return from_bytes(name, arrays.BYTES, (len(texts),), data)


def texts_of(tensor: Any) -> List[bytes]:
    """Returns the elements of a string tensor."""
    if tensor._dtype != arrays.BYTES:
        raise TritonModelException("the tensor has no strings")
    data = bytes(tensor._data if tensor._block is None else tensor._block.view())
    texts, position = [], 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position:position + 4], "little")
        texts.append(data[position + 4:end])
        position = end
    return texts
