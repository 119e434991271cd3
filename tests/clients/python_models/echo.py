"""Returns each input through numpy or DLPack."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([*map(copy, request.inputs())]) for request in requests]


def copy(tensor):
    name = tensor.name().replace("IN", "OUT", 1)
    if tensor.name().startswith("DLPACK"):
        assert tensor.is_cpu()
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    assert list(tensor.shape()) == list(tensor.as_numpy().shape)
    return pb_utils.Tensor(name, tensor.as_numpy())
