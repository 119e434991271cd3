"""`InferenceResponse` and `TritonError`."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Union

from .enums import NamedEnum, enumeration
from .errors import TritonModelException
from .native import Parameter, Signature, anything, bare, declared, instance, native, \
    sequence, text
from .tensor import Tensor, check_tensors


@enumeration
class ErrorCode(NamedEnum):
    """Codes of `TritonError`, as of TRITONSERVER_Error_Code."""

    __module__ = "c_python_backend_utils"
    __qualname__ = "TritonError.__ErrorCode"
    __slots__ = ()
    _names = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
              "ALREADY_EXISTS", "CANCELLED")


ErrorCode.__name__ = "__ErrorCode"
_CODE = "c_python_backend_utils.TritonError.__ErrorCode"


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

    @native("__init__(self: c_python_backend_utils.TritonError, message: str, code: "
            f"{_CODE} = <__ErrorCode.INTERNAL: 1>) -> None",
            Parameter("message", text),
            Parameter("code", instance(ErrorCode), ErrorCode.INTERNAL),
            owner=lambda: TritonError)
    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        self._message = message
        self._code = code

    @native("message(self: c_python_backend_utils.TritonError) -> str",
            owner=lambda: TritonError)
    def message(self) -> str:
        """Text of the error."""
        return self._message

    @native(f"code(self: c_python_backend_utils.TritonError) -> {_CODE}",
            owner=lambda: TritonError)
    def code(self) -> ErrorCode:
        """Code of the error."""
        return self._code


Parameters = Dict[str, Union[str, int, bool, float]]


class UnsupportedParameters(str):
    """JSON of parameters that the server doesn't accept; refused when it is sent."""

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


def _response(self: Any, output_tensors: Sequence[Tensor] = (),
              error: Optional[TritonError] = None,
              parameters: Optional[Parameters] = None) -> None:
    """Makes a response."""


_response.__name__ = _response.__qualname__ = "__init__"
_RESPONSE = Signature(
    "__init__(self: c_python_backend_utils.InferenceResponse, output_tensors: "
    "list[c_python_backend_utils.Tensor] = [], error: c_python_backend_utils.TritonError = "
    "None, parameters: object = None) -> None",
    Parameter("", anything),
    Parameter("output_tensors", sequence(instance(Tensor)), []),
    Parameter("error", instance(TritonError), None, may_be_none=True),
    Parameter("parameters", anything, None, may_be_none=True))
_OUTPUT_TENSORS = Signature("output_tensors(self: c_python_backend_utils.InferenceResponse) -> "
                            "list[c_python_backend_utils.Tensor]")


class InferenceResponse:
    """The answer to a request: output tensors or an error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_tensors", "_error", "_parameters")

    @declared(_response)
    def __init__(self, *args: Any, **named: Any) -> None:
        self._error: Optional[TritonError] = None
        self._parameters = "{}"
        # The two most common calls come first, then all others.
        if len(args) == 1 and not named:
            tensors = args[0]
        elif not args and len(named) == 1:
            tensors = named.get("output_tensors")
        else:
            tensors = None
        if type(tensors) is list:
            for tensor in tensors:
                if type(tensor) is not Tensor:
                    break
            else:
                self._tensors: List[Tensor] = list(tensors)
                return
        _, tensors, self._error, parameters = _RESPONSE.bind((self, *args), named)
        text = "{}" if parameters is None else parameters_to_json(parameters)
        self._tensors = check_tensors(
            tensors, "Output tensor for inference response should not be empty.")
        self._parameters = text

    @bare
    def output_tensors(self, *rest: Any, **more: Any) -> List[Tensor]:
        """Output tensors of the response."""
        if rest or more:
            raise _OUTPUT_TENSORS.refusal((self, *rest), more)
        return list(self._tensors)

    @native("has_error(self: c_python_backend_utils.InferenceResponse) -> bool",
            owner=lambda: InferenceResponse)
    def has_error(self) -> bool:
        """True if the response carries an error."""
        return self._error is not None

    @native("error(self: c_python_backend_utils.InferenceResponse) -> "
            "c_python_backend_utils.TritonError", owner=lambda: InferenceResponse)
    def error(self) -> Optional[TritonError]:
        """Error of the response, or None."""
        return self._error

    @native("parameters(self: c_python_backend_utils.InferenceResponse) -> str",
            owner=lambda: InferenceResponse)
    def parameters(self) -> str:
        """Parameters of the response as a JSON object."""
        return self._parameters


def response_with(tensors: List[Tensor]) -> InferenceResponse:
    """Creates the response of a called model that has nothing but tensors."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._tensors = tensors
    response._parameters = "{}"
    response._error = None
    return response


def response_of(decoded: Any) -> InferenceResponse:
    """Creates the response of a called model from the result of `wire.get_response`."""
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
