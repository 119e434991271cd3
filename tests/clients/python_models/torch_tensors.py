"""Converts tensors between PyTorch and the server in both directions, as WAY selects."""

import numpy
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        self.kept = {}

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        way = pb_utils.get_input_tensor_by_name(request, "WAY").as_numpy()[0].decode()
        (tensor,) = [one for one in request.inputs() if one.name() != "WAY"]
        name = tensor.name().replace("IN", "OUT", 1)
        output = getattr(self, way)(name, tensor)
        return pb_utils.InferenceResponse([output])

    def by_protocol(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, torch.from_dlpack(tensor))

    def by_capsule(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, to_dlpack(from_dlpack(tensor.to_dlpack())))

    def computed(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, torch.from_dlpack(tensor) * 2)

    def in_place(self, name, tensor):
        """A change to one tensor is visible in the others, so there is no copy."""
        one = torch.from_dlpack(tensor)
        other = torch.from_dlpack(tensor.to_dlpack())
        assert one.data_ptr() == other.data_ptr() == tensor.as_numpy().ctypes.data
        one += 1
        back = pb_utils.Tensor.from_dlpack(name, other)
        assert torch.from_dlpack(back).data_ptr() == one.data_ptr()
        return back

    def from_numpy(self, name, tensor):
        array = numpy.from_dlpack(torch.from_dlpack(tensor))
        return pb_utils.Tensor(name, array)

    def bfloat16(self, name, tensor):
        half = torch.from_dlpack(tensor).to(torch.bfloat16)
        return pb_utils.Tensor.from_dlpack("OUT_BF16", half)

    def strided(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, torch.from_dlpack(tensor)[:, ::2])

    def with_gradient(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, torch.ones(2, requires_grad=True))

    def keep(self, name, tensor):
        """A tensor may outlive its request."""
        self.kept[name] = torch.from_dlpack(tensor)
        return self.show(name, tensor)

    def show(self, name, tensor):
        return pb_utils.Tensor.from_dlpack(name, self.kept[name])
