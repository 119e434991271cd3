"""Compiled models (`model.pt2`) with operations or weights that need Python."""

from __future__ import annotations

import io
import json
import zipfile
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
            model = aoti_load_package(job["path"])
            if job["has_pickled_weights"]:
                # The model refers to these tensors. If it copied them, it would mistake the
                # places of weights that share memory.
                self._weights = read_weights(torch, job["path"])
                model.load_constants(self._weights, check_full_update=True, user_managed=True)
            self._loader = model.loader
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


def read_weights(torch: Any, path: str) -> Dict[str, Any]:
    """Returns a package's pickled weights by name."""
    with zipfile.ZipFile(path) as archive:
        (config,) = [
            name for name in archive.namelist()
            if name.endswith("data/aotinductor/model/weights_config.json")]
        root = config[:-len("aotinductor/model/weights_config.json")]
        # Weights that share memory are in the same file.
        files: Dict[str, Any] = {}
        weights = {}
        for weight, (file, shape, stride, offset) in json.loads(archive.read(config)).items():
            if file not in files:
                content = io.BytesIO(archive.read(f"{root}weights/{file}"))
                files[file] = torch.load(content, weights_only=True).detach()
            weights[weight] = files[file].as_strided(shape, stride, offset)
    return weights
