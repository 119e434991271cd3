"""`InferenceResponse` and `TritonError`."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Union

from .enums import NamedEnum, as_text, demand
from .errors import TritonModelException
from .tensor import Tensor, check_tensors


class ErrorCode(NamedEnum):
    """Codes of `TritonError`, as of TRITONSERVER_Error_Code."""

    __module__ = "c_python_backend_utils"

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = "__ErrorCode"


class TritonError:
    """An error that a response carries instead of tensors."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_message", "_code")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        demand("code of a TritonError", code, ErrorCode)
        self._message = as_text("message of a TritonError", message)
        self._code = code

    def message(self) -> str:
        """Text of the error."""
        return self._message

    def code(self) -> ErrorCode:
        """Code of the error."""
        return self._code


Parameters = Dict[str, Union[str, int, bool, float]]


class UnsupportedParameters(str):
    """JSON of parameters that the server doesn't take; it is refused where it is sent."""

    __slots__ = ()
    WHY = "Unsupported value type on parameters"


def parameters_to_json(parameters: Optional[Parameters]) -> str:
    """Parameters as JSON; raises TritonModelException for other types."""
    if parameters is None:
        return "{}"
    if not isinstance(parameters, dict):
        raise TritonModelException(
            f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                "Expect parameters values to have type bool/int/str, found type "
                f"{type(value)}")
    text = json.dumps(parameters)
    if any(isinstance(value, int) and not -1 << 63 <= value < 1 << 63
           for value in parameters.values()):
        return UnsupportedParameters(text)
    return text


class InferenceResponse:
    """Answer to a request: output tensors, or an error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_tensors", "_error", "_parameters")

    def __init__(self, output_tensors: Sequence[Tensor] = (),
                 error: Optional[TritonError] = None,
                 parameters: Optional[Parameters] = None) -> None:
        tensors = list(output_tensors)
        for tensor in tensors:
            if type(tensor) is not Tensor:
                check_tensors(
                    tensors, "Output tensor for inference response should not be empty.")
        if error is not None and not isinstance(error, TritonError):
            demand("error", error, TritonError)
        self._tensors: List[Tensor] = tensors
        self._error = error
        self._parameters = "{}" if parameters is None else parameters_to_json(parameters)

    def output_tensors(self) -> List[Tensor]:
        """Output tensors of the response."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether the response carries an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Error of the response, or None."""
        return self._error

    def parameters(self) -> str:
        """Parameters of the response as a JSON object."""
        return self._parameters


def response_with(tensors: List[Tensor]) -> InferenceResponse:
    """Response that a called model gave, with nothing but tensors."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._tensors = tensors
    response._parameters = "{}"
    response._error = None
    return response


def response_of(decoded: Any) -> InferenceResponse:
    """Response that a called model gave, from what `wire.get_response` read."""
    tensors, parameters, error = decoded
    response = response_with(tensors or [])
    if parameters:
        response._parameters = parameters
    if error is not None:
        response._error = failure(*error)
    return response


def failure(code: int, text: str) -> TritonError:
    """Error that the server sent; an unknown code is UNKNOWN."""
    return TritonError(text, ErrorCode(code if 0 <= code < 8 else 0))
