"""Compiled models (`model.pt2`) with operations that only Python can execute."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from galatea_worker.errors import BackendError
from galatea_worker.response import TritonError

from .ordered import OrderedModel, Refusal, datatype_of


class PackageModel(OrderedModel):
    """A compiled model. The server has checked the shapes of the requests."""

    def load(self, torch: Any, job: Dict[str, Any]) -> None:
        """Loads the model's library."""
        from torch._inductor import aoti_load_package
        try:
            self._loader = aoti_load_package(job["path"]).loader
        except Exception as error:
            raise BackendError(f"failed to load '{job['path']}': can't load the model: {error}") \
                from None

    def run(self, values: List[Any]) -> Sequence[Any]:
        """Computes all outputs."""
        try:
            with self._torch.inference_mode():
                return self._loader.run(values)
        except Exception as error:
            text = f"Inductor model instance \"{self._model}\" execution failure: {error}"
            raise Refusal(text, TritonError.INTERNAL) from None

    def output(self, outputs: Sequence[Any], output: Dict[str, Any]) -> Any:
        """Returns an output. Its data type must match the configuration."""
        name, value = output["name"], outputs[output["index"]]
        if not isinstance(value, self._torch.Tensor):
            raise Refusal(f"output tensor '{name}' is not found", TritonError.INTERNAL)
        if value.dim() == 0:
            raise Refusal(
                f"Inductor model instance \"{self._model}\" output tensor \"{name}\" is a scalar "
                "which is not supported.", TritonError.INTERNAL)
        provided = datatype_of(value)
        if provided != output["datatype"]:
            raise Refusal(
                f"output tensor '{name}' has datatype {provided or value.dtype}, expected "
                f"{output['datatype']}", TritonError.INTERNAL)
        return value
