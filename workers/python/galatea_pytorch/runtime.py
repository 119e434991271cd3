"""Models for Triton's Python runtime: classes, exported programs and TorchScript models."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

from galatea_worker import helpers, logger
from galatea_worker.errors import TritonModelException
from galatea_worker.helpers import get_input_tensor_by_name
from galatea_worker.response import InferenceResponse
from galatea_worker.tensor import Tensor

from . import batches, classes, files, install
from .options import Options, compiler_problem


class NetworkModel:
    """A model, executed in the same way as by Triton's script for `runtime: "model.py"`."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Checks what can be checked without PyTorch. As in Triton, completes nothing."""
        install.check()
        files.is_exported(files.model_file(config._model_config, helpers.get_model_dir()))
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Loads the model on the instance's device."""
        self._torch = torch = install.load()
        self._name = args["model_name"]
        config = json.loads(args["model_config"])
        self._is_batched = config["max_batch_size"] > 0
        self._inputs = [one["name"] for one in config["input"]]
        self._outputs = [one["name"] for one in config["output"]]
        options = Options(config)
        options.set_threads(torch)
        arguments = options.compile_arguments()
        path = files.model_file(config, helpers.get_model_dir())
        is_exported = files.is_exported(path)
        is_script = not is_exported and not path.endswith(".py")
        for key in options.without_effect(is_script):
            self._log(logger.WARNING, f"parameter '{key}' has no effect in the Python runtime")
        load = self._load_script if is_script else self._load_class
        if is_exported:
            load = self._load_exported
        with torch.inference_mode():
            load(path, args["model_instance_kind"], args["model_instance_device_id"])
        if not is_script:
            self._compile(arguments)

    def _load_script(self, path: str, kind: str, number: str) -> None:
        self._model = self._torch.jit.load(path)
        self._device = self._device_of(kind, number, self._model)
        self._model.to(self._device)
        self._model.eval()

    def _load_exported(self, path: str, kind: str, number: str) -> None:
        """Loads a program, which stays on the device that it was exported for."""
        self._model = self._torch.export.load(path).module()
        tensors = [*self._model.parameters(), *self._model.buffers()]
        self._device = tensors[0].device if tensors else self._device_of(kind, number, self._model)

    def _load_class(self, path: str, kind: str, number: str) -> None:
        torch = self._torch
        found = classes.candidates(torch, classes.import_file(self._name, path))
        if len(found) > 1:
            others = ", ".join(one.__name__ for one in found[1:])
            self._log(logger.INFO, f"the class '{found[0].__name__}' of the file is served, which "
                      f"is before {others} in the alphabet")
        self._model = found[0]()
        self._device = self._device_of(kind, number, self._model)
        weights = files.weights_file(path)
        if weights:
            state = torch.load(weights, map_location=self._device)
            self._model.load_state_dict(state)
        else:
            self._log(logger.INFO, "there is no file of weights")
        self._model.to(self._device)
        self._model.eval()

    def _device_of(self, kind: str, number: str, model: Any) -> Any:
        """Returns the instance's device or, if the model chooses it, a parameter's device."""
        if kind == "GPU":
            return self._torch.device(f"cuda:{number}")
        if kind == "CPU":
            return self._torch.device("cpu")
        for parameter in model.parameters():
            return parameter.device
        raise TritonModelException("Cannot determine model device")

    def _compile(self, arguments: Dict[str, Any]) -> None:
        # The call checks the arguments; the model is compiled when it is first executed.
        compiled = self._torch.compile(self._model, **arguments)
        problem = compiler_problem(arguments, self._device.type)
        if problem:
            self._log(logger.WARNING, f"the model is executed without torch.compile: {problem}")
        else:
            self._model = compiled

    def execute(self, requests: Sequence[Any]) -> List[InferenceResponse]:
        """Executes a batch, or individual requests if the model doesn't support batching."""
        with self._torch.inference_mode():
            inputs = [self._tensors(request) for request in requests]
            if self._is_batched:
                joined, rows = batches.join(self._torch, inputs)
                outputs = batches.split(self._torch, self._run(joined), rows)
            else:
                outputs = [self._run(tensors) for tensors in inputs]
            return [self._response(tensors) for tensors in outputs]

    def _tensors(self, request: Any) -> List[Any]:
        tensors = []
        for name in self._inputs:
            tensor = get_input_tensor_by_name(request, name)
            if tensor is None:
                raise TritonModelException(
                    f"input '{name}' is missing: the Python runtime has no optional inputs")
            tensors.append(self._torch.from_dlpack(tensor.to_dlpack()).to(self._device))
        return tensors

    def _run(self, tensors: List[Any]) -> Sequence[Any]:
        result = self._model(*tensors)
        outputs = result if isinstance(result, (tuple, list)) else [result]
        if len(outputs) < len(self._outputs):
            kind = type(outputs).__name__
            raise IndexError(f"{kind} index out of range: the model returned {len(outputs)} "
                             f"outputs, and the configuration has {len(self._outputs)}")
        return outputs

    def _response(self, tensors: Sequence[Any]) -> InferenceResponse:
        return InferenceResponse([
            Tensor.from_dlpack(name, tensor.detach().contiguous())
            for name, tensor in zip(self._outputs, tensors)])

    def _log(self, level: int, message: str) -> None:
        logger.log_internal(level, f"model '{self._name}': {message}")
