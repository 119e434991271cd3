"""TorchScript models (`model.pt`) on machines without a C++ compiler."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from galatea_worker import arrays
from galatea_worker.errors import BackendError
from galatea_worker.response import TritonError

from . import install
from .ordered import OrderedModel, Refusal, datatype_of, texts_of


def describe(job: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the arguments of the model's `forward`."""
    module = _load(install.load(), job["path"], inference_mode=True)
    arguments = module.forward.schema.arguments
    if arguments and arguments[0].type.kind() == "ClassType":
        arguments = arguments[1:]
    return {"arguments": [
        {"name": one.name, "type": one.type.str(), "kind": one.type.kind()} for one in arguments]}


def _load(torch: Any, path: str, inference_mode: bool) -> Any:
    try:
        with torch.inference_mode(inference_mode):
            return torch.jit.load(path, map_location="cpu")
    except Exception as error:
        raise BackendError(f"failed to load model '{path}': {error}") from None


class ScriptModel(OrderedModel):
    """A TorchScript model. The server has compared its arguments with the configuration."""

    def load(self, torch: Any, job: Dict[str, Any]) -> None:
        """Loads the model and configures its execution."""
        if job["inter_op_threads"] is not None:
            torch.set_num_interop_threads(job["inter_op_threads"])
        switches = (
            ("jit_profiling", torch._C._jit_set_profiling_mode),
            ("jit_executor", torch._C._jit_set_profiling_executor),
            ("tensor_fuser", torch._C._jit_set_texpr_fuser_enabled))
        for name, switch in switches:
            if job[name] is not None:
                switch(job[name])
        torch._C._set_graph_executor_optimize(job["optimized"])
        self._module = _load(torch, job["path"], job["inference_mode"])

    def value(self, tensor: Any) -> Any:
        """Returns an input as a tensor or a list of strings."""
        if tensor._dtype != arrays.BYTES:
            return super().value(tensor)
        try:
            return [text.decode() for text in texts_of(tensor)]
        except UnicodeDecodeError:
            raise Refusal(f"input '{tensor.name()}' has strings that are not UTF-8, which a model "
                          "in a worker does not take") from None

    def join(self, inputs: List[List[Any]]) -> Any:
        """Returns the batch inputs and each request's number of rows."""
        rows = [_length(values[0]) for values in inputs]
        if len(inputs) == 1:
            return inputs[0], rows
        return [_joined(self._torch, parts) for parts in zip(*inputs)], rows

    def run(self, values: List[Any]) -> Sequence[Any]:
        """Computes all outputs."""
        torch = self._torch
        arguments = values
        if self._job["takes_dictionary"]:
            arguments = [dict(zip(self._job["inputs"], values))]
        try:
            with torch.inference_mode(self._job["inference_mode"]), torch.no_grad():
                return self._outputs(self._module(*arguments))
        except Exception as error:
            code = TritonError.INVALID_ARG if isinstance(error, Refusal) else TritonError.INTERNAL
            raise Refusal(f"PyTorch execute failure: {error}", code) from None

    def _outputs(self, result: Any) -> Sequence[Any]:
        """Returns the outputs in a result. Invalid results raise errors with Triton's messages."""
        tensor = self._torch.Tensor
        if isinstance(result, tensor):
            return [result]
        if isinstance(result, list):
            _check_strings(result, "output")
            return [result]
        if not isinstance(result, tuple):
            raise Refusal(
                "output must be of type Tensor, List[str] or Tuple containing one of these two "
                "types. It should not be a List / Dictionary of Tensors or a Scalar")
        for index, element in enumerate(result):
            if isinstance(element, list):
                _check_strings(element, f"output at index {index}")
            elif not isinstance(element, tensor):
                raise Refusal(f"output at index {index} is no Tensor: {type(element).__name__}")
        return result

    def output(self, outputs: Sequence[Any], output: Dict[str, Any]) -> Any:
        """Returns an output. Its data type must match the configuration."""
        name, index = output["name"], output["index"]
        if index >= len(outputs):
            raise Refusal(
                f"The output {name} in the model configuration refers to an output index which "
                f"doesn't exist. This model has {len(outputs)} outputs")
        value = outputs[index]
        provided = "BYTES" if isinstance(value, list) else datatype_of(value)
        if provided != output["datatype"]:
            raise Refusal(f"configuration expects datatype TYPE_{output['datatype']} for output "
                          f"'{name}', model provides TYPE_{provided or 'INVALID'}")
        if not isinstance(value, list) and value.dim() == 0:
            raise Refusal(f"output '{name}' is a scalar which is not supported.")
        return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else value.shape[0]


def _joined(torch: Any, parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], list):
        return [text for part in parts for text in part]
    return torch.cat(parts, 0)


def _check_strings(values: List[Any], place: str) -> None:
    if not all(isinstance(value, str) for value in values):
        kind = type(values[0]).__name__
        raise Refusal(f"{place} must be of type Tensor or List[str], received List[{kind}]")
