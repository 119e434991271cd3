"""The private modules of Triton's package, for programs that name types by them."""

from . import (
    _allocators,
    _datautils,
    _dlpack,
    _logging,
    _memorybuffer,
    _model,
    _request,
    _response,
    _server,
    _tensor,
)

__all__ = [
    "_allocators",
    "_datautils",
    "_dlpack",
    "_logging",
    "_memorybuffer",
    "_model",
    "_request",
    "_response",
    "_server",
    "_tensor",
]
