"""Requests."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from ._enums import MemoryType
from ._errors import InvalidArgumentError, UnsupportedError
from ._memory import DeviceOrMemoryType, MemoryAllocator, parse_device_or_memory_type
from ._tensor import Tensor

if TYPE_CHECKING:
    from ._model import Model

_PARAMETERS = (str, int, float, bool)
_CORRELATION_ID_MAX = 128


@dataclass
class InferenceRequest:
    """A request to a model.

    `inputs` are tensors by name: arrays of numpy, lists, tensors of other libraries through
    DLPack, or :class:`Tensor`. Their memory is read in place, so it must not change until the
    last response. `requested_outputs` are the names of the outputs wanted; all if empty.
    `output_memory_allocator` allocates the memory that outputs are copied to; without one, and
    with the initial :data:`default_memory_allocators`, they are not copied.
    """

    model: Model
    request_id: Optional[str] = None
    flags: int = 0
    correlation_id: Optional[Union[int, str]] = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Union[str, int, bool, float]] = field(default_factory=dict)
    output_memory_type: Optional[DeviceOrMemoryType] = None
    response_queue: Optional[Union[queue.SimpleQueue[Any], asyncio.Queue[Any]]] = None
    requested_outputs: list[str] = field(default_factory=list)
    output_memory_allocator: Optional[MemoryAllocator] = None

    def _values(self) -> dict[str, Any]:
        """Returns the values for the server."""
        self._check_output_memory()
        if not isinstance(self.request_id, (str, type(None))):
            raise TypeError(f"request_id must be str, not {type(self.request_id).__name__}")
        return {
            "model_name": self.model.name,
            "model_version": self.model.version,
            "id": self.request_id or "",
            "flags": _unsigned("flags", int(self.flags), 32),
            "correlation_id": self._correlation_id(),
            "priority": _unsigned("priority", self.priority, 64),
            "timeout_microseconds": _unsigned("timeout", self.timeout, 64),
            "inputs": [self._input(name, value) for name, value in self.inputs.items()],
            "outputs": list(self.requested_outputs),
            "parameters": [_parameter(name, value) for name, value in self.parameters.items()],
        }

    def _output_place(self) -> tuple[MemoryType, int]:
        """The memory in which outputs are requested."""
        if self.output_memory_type is None:
            return MemoryType.CPU, 0
        return parse_device_or_memory_type(self.output_memory_type)

    def _check_output_memory(self) -> None:
        kind, _ = self._output_place()
        if kind == MemoryType.GPU and self.output_memory_allocator is None:
            raise InvalidArgumentError(
                f"Memory type {self.output_memory_type} not supported: outputs are in the CPU's "
                "memory"
            )

    def _correlation_id(self) -> Optional[Union[int, str]]:
        if isinstance(self.correlation_id, str):
            length = len(self.correlation_id.encode())
            if length > _CORRELATION_ID_MAX:
                raise UnsupportedError(
                    f"string correlation ID cannot be longer than {_CORRELATION_ID_MAX} "
                    f"characters, got {length}"
                )
            return self.correlation_id
        if self.correlation_id is None:
            return None
        return _unsigned("correlation_id", self.correlation_id, 64)

    @staticmethod
    def _input(name: str, value: Any) -> tuple[str, int, list[int], int, int, Any]:
        tensor = value if isinstance(value, Tensor) else Tensor._from_object(value)
        memory = tensor.memory_buffer
        if memory.memory_type == MemoryType.GPU:
            raise UnsupportedError(f"input '{name}' is not in the CPU's memory")
        shape = [int(dim) for dim in tensor.shape]
        return name, int(tensor.data_type), shape, memory.data_ptr, memory.size, memory.owner


def _unsigned(name: str, value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    if not 0 <= value < 1 << bits:
        raise InvalidArgumentError(f"{name} must be between 0 and {(1 << bits) - 1}, not {value}")
    return value


def _parameter(name: str, value: Any) -> tuple[str, Union[str, int, bool, float]]:
    if type(value) not in _PARAMETERS:
        raise InvalidArgumentError(
            f"Unsupported Value. Can't convert {type(value)} to Request Parameter"
        )
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgumentError(f"parameter '{name}' is no number of 64 bits: {value}")
    return name, value
