"""Calls of the module that Python models import, with valid and invalid arguments.

    python module_cases.py FILE COMMAND...

records Triton's reactions in FILE. COMMAND starts Triton; the ports and the repository are added to
it. Some calls end the process of Triton's stub or damage the memory that it shares with Triton,
which may then end too. Triton is therefore restarted after each failure, and a call that fails on
its own is left out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable

from python_backend import tensors, write_model
from server import free_ports, wait_until

FLAGS = ("--model-control-mode=explicit", "--load-model=probe")
CONFIG = tensors("IN:STRING", "OUT:STRING") + "instance_group { kind: KIND_CPU count: 1 }"

#: Arguments of many types, none of which fits everywhere.
ODD = ("None", "'text'", "b'text'", "bytearray(b'text')", "'\\ud800'", "5", "-1",
       "2**32", "2**64", "2.5", "True", "np.int8(3)", "np.float32(2.5)",
       "Number(index=4)", "Number(int=4)", "Number(float=1.5)", "Number(bool=True)", "[]",
       "()", "{}", "set()", "[None]", "['a']", "(b'a',)", "[5]", "{'a': 1}", "iter([])",
       "np.zeros(2)", "np.float32", "object()", "Failing()", "tensor", "[tensor]", "(tensor,)",
       "[tensor, None]", "request", "pb.TritonError('text')",
       "pb.InferenceResponse([])", "pb.TritonError.INTERNAL", "c.MetricKind.GAUGE",
       "pb.Logger.INFO", "c.MemoryType.TRITONSERVER_MEMORY_CPU",
       "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU)", "request.trace()")
#: Calls of the form NAME(ARGUMENTS) whose arguments all fit; names of arguments behind `*` can
#: be given.
CALLS = {
    "pb.TritonError": ["message='text'", "code=pb.TritonError.NOT_FOUND"],
    "pb.PreferredMemory": ["preferred_memory_type=pb.TRITONSERVER_MEMORY_CPU",
                           "preferred_device_id=0"],
    "pb.InferenceRequest": [
        "request_id='1'", "correlation_id=0", "inputs=[tensor]",
        "requested_output_names=['OUT']", "model_name='absent'", "model_version=-1", "flags=0",
        "timeout=0", "preferred_memory=pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU)",
        "trace=request.trace()", "parameters={}"],
    "pb.InferenceResponse": ["output_tensors=[tensor]", "error=None"],
    "pb.Tensor": ["'T'", "np.zeros(1)"],
    "pb.Tensor.from_dlpack": ["'T'", "tensor"],
    "own.set_flags": ["1"],
    "own.exec": ["decoupled=False"],
    "own.get_response_sender().send": ["response=pb.InferenceResponse([tensor])", "flags=0"],
    "tensor.__dlpack__": ["stream=None"],
    "pb.Logger.log": ["message='text'", "level=pb.Logger.INFO"],
    "pb.Logger.log_info": ["message='text'"],
    "pb.Logger.log_warn": ["message='text'"],
    "pb.Logger.log_error": ["message='text'"],
    "pb.Logger.log_verbose": ["message='text'"],
    "pb.MetricFamily": ["name='probe_family'", "description='text'",
                        "kind=pb.MetricFamily.COUNTER"],
    "pb.MetricFamily('probe_gauges', 'text', pb.MetricFamily.GAUGE).Metric": [
        "labels={'a': 'b'}", "buckets=None"],
    "pb.MetricFamily('probe_times', 'text', pb.MetricFamily.HISTOGRAM).Metric": [
        "labels=None", "buckets=[1.0]"],
    "pb.load_model": ["model_name='absent'", "config=''", "files=None"],
    "pb.unload_model": ["model_name='absent'", "unload_dependents=False"],
    "pb.is_model_ready": ["model_name='absent'", "model_version=''"],
    "pb.Logger.LogLevel": ["value=0"],
}
for _name, _kind in (("increment", "GAUGE"), ("set", "GAUGE"), ("observe", "HISTOGRAM")):
    _buckets = ", buckets=[1.0]" if _name == "observe" else ""
    CALLS[f"[(f := pb.MetricFamily('probe_{_name}', 'text', c.MetricKind.{_kind})), "
          f"f.Metric(labels={{'a': 'b'}}{_buckets})][1].{_name}"] = ["1.0"]
#: Calls that later versions take and Triton 2.51 refuses, and what depends on those before it.
LEFT_OUT = (
    "pb.InferenceResponse([tensor], None, None)",
    "pb.MetricFamily(name='probe_family', description='text', kind=c.MetricKind.GAUGE)",
)
#: Methods that take nothing.
BARE = ("pb.TritonError('text').code", "pb.TritonError('text').message", "request.inputs",
        "request.request_id", "request.correlation_id", "request.flags", "request.timeout",
        "request.parameters", "request.trace", "request.requested_output_names",
        "request.is_cancelled", "request.get_response_sender", "request.trace().get_context",
        "own.inputs", "own.request_id", "own.correlation_id", "own.flags", "own.timeout",
        "own.parameters", "own.trace", "own.requested_output_names", "own.get_response_sender",
        "tensor.name", "tensor.as_numpy", "tensor.triton_dtype", "tensor.is_cpu", "tensor.shape",
        "tensor.to_dlpack", "tensor.__dlpack_device__", "words.as_numpy", "words.to_dlpack",
        "pb.InferenceResponse([tensor]).output_tensors",
        "pb.InferenceResponse([tensor]).has_error", "pb.InferenceResponse([tensor]).error",
        "pb.InferenceResponse([], pb.TritonError('text')).has_error",
        "pb.InferenceResponse([], pb.TritonError('text')).error",
        "request.get_response_sender().is_cancelled",
        "[(f := pb.MetricFamily('probe_value', 'text', c.MetricKind.GAUGE)), f.Metric()][1].value",
        "c.InferenceTrace", "c.InferenceResponseSender", "c.Metric", "pb.Logger")
#: What was not made by the parts above.
SINGLE = (
    "hasattr(own, 'model_name')", "hasattr(own, 'model_version')",
    "hasattr(own, 'preferred_memory')",
    "pb.absent",
    "pb.Tensor.name(5)", "pb.InferenceRequest.exec(5)",
    "pb.TritonError.message('text')",
    "pb.Tensor('', np.zeros(1))", "pb.Tensor('T', np.zeros(1, np.complex64))",
    "pb.Tensor('T', np.zeros(1, 'M8[s]'))", "pb.Tensor('T', np.array(['a']))",
    "pb.Tensor('T', np.array([b'a'])).as_numpy()", "pb.Tensor('T', np.zeros((2, 2)).T).as_numpy()",
    "pb.Tensor('T', np.array(5)).shape()", "pb.Tensor('T', np.zeros((0, 2))).shape()",
    "pb.Tensor(b'T', np.zeros(1)).name()",
    "pb.Tensor('T', np.array([], np.object_))", "pb.Tensor('T', np.array([None, 5], object)).as_numpy()",
    "pb.InferenceRequest()", "pb.InferenceRequest(inputs=[])",
    "pb.InferenceRequest(inputs=[], requested_output_names=[''], model_name='m')",
    "pb.InferenceRequest(inputs=[None], requested_output_names=[''], model_name='m', "
    "correlation_id=2.5, parameters=5)",
    "pb.InferenceRequest(inputs=[None], requested_output_names=[''], model_name='m', "
    "correlation_id=2.5)",
    *(f"pb.InferenceRequest(inputs=[], requested_output_names=[], model_name='m', "
      f"parameters={value}).parameters()" for value in (
          "{5: 1}", "{'a': None}", "{'a': 2.5}", "{'a': b'b'}", "{'a': True}", "{'a': 'é'}",
          "{'a': [1]}", "{'a': 2**70}", "{b'a': 1}", "{'b': 1, 'a': 2}", "[('a', 1)]")),
    *(f"pb.InferenceRequest(inputs=[], requested_output_names=[], model_name='m', "
      f"correlation_id={value}).correlation_id()" for value in (
          "2**64 - 1", "2**64", "-1", "True", "'id'", "''", "np.int64(3)")),
    "repr(pb.TritonError.INTERNAL)", "str(pb.TritonError.INTERNAL)", "int(pb.TritonError.INTERNAL)",
    "f'{pb.Logger.INFO}'", "'%d' % pb.Logger.INFO", "hash(pb.Logger.INFO)",
    "pb.Logger.INFO == 0", "pb.Logger.INFO != 0", "pb.Logger.INFO == pb.Logger.INFO",
    "pb.Logger.INFO == c.MetricKind.COUNTER", "pb.TritonError.INTERNAL == 1",
    "pb.TritonError.INTERNAL == None", "pb.TritonError.INTERNAL != 1",
    "c.MemoryType.TRITONSERVER_MEMORY_CPU == 1", "c.MetricKind.GAUGE == 1",
    "isinstance(pb.Logger.INFO, int)", "pb.Logger.INFO.name", "pb.Logger.INFO.value",
    "pb.Logger.LogLevel(1)", "pb.Logger.LogLevel(7)", "pb.Logger.LogLevel(7).name",
    "pb.Logger.LogLevel(pb.Logger.INFO)", "pb.Logger.LogLevel.__members__",
    "c.MetricKind.__members__", "c.MetricKind.__name__", "c.MetricKind.__qualname__",
    "type(pb.TritonError.INTERNAL)", "type(pb.Logger.INFO)", "[1, 2, 3][c.MetricKind.GAUGE]",
    "pb.Logger.INFO.name == 'INFO'",
    "pb.TritonModelException('text')", "pb.TritonModelException.__mro__",
    "pb.TritonError(message='text').code()", "pb.TritonError('text', code=pb.TritonError.CANCELLED).code()",
    "pb.TritonError(b'text').message()",
    "own.set_flags(3) or own.flags()", "own.set_flags(np.float32(2.5)) or own.flags()",
    "own.get_response_sender().send(flags=2)", "own.get_response_sender().send()",
    "request.get_response_sender().send()", "request.get_response_sender().send(flags=1)",
    "request.get_response_sender().send(None, 2)",
    "tensor.is_cpu()", "tensor.__dlpack_device__()", "type(request)", "type(tensor.shape())",
    "pb.Tensor.from_dlpack('', tensor)",
    "pb.Tensor.from_dlpack('T', tensor).name()", "pb.Tensor.from_dlpack('T', words)",
    "pb.Tensor.from_dlpack('T', tensor.to_dlpack()).as_numpy()",
    *(f"pb.MetricFamily('probe_odd', 'text', c.MetricKind.GAUGE).Metric({value})" for value in (
        "5", "[]", "{'a': 5}", "{5: 'a'}", "{'a': None}", "{}, []", "{}, [1.0]", "{}, ()")),
    *(f"pb.MetricFamily('probe_hist', 'text', c.MetricKind.HISTOGRAM).Metric({value})" for value in (
        "{}", "{}, []", "{}, [2.0, 1.0]", "{}, ['a']", "{}, [None]", "{}, (1.0,)", "{}, [1]")),
    "pb.MetricFamily('', '', c.MetricKind.GAUGE)",
    "pb.MetricFamily('a b', 'text', c.MetricKind.GAUGE)",
    *(f"[(f := pb.MetricFamily('probe_each', 'text', c.MetricKind.{kind})), "
      f"f.Metric({buckets})][1].{call}" for kind, buckets in (
          ("COUNTER", ""), ("GAUGE", ""), ("HISTOGRAM", "buckets=[1.0]"))
      for call in ("increment(1)", "increment(-1)", "set(1)", "observe(1)", "value()",
                   "increment(float('nan'))")),
    *(f"pb.load_model('absent', files={value})" for value in ("[]", "{5: b''}", "{'file:a': 'text'}",
                                                             "{'file:a': 5}")),
    *(f"pb.load_model('absent', {value})" for value in ("'{'", "b'{}'")),
    "pb.is_model_ready('absent', 'x')", "pb.is_model_ready('absent', '1')", "pb.is_model_ready('probe')",
    "pb.is_model_ready('probe', '1')", "pb.is_model_ready('probe', '2')",
    "pb.is_model_ready('probe', '-1')", "pb.is_model_ready('')", "pb.unload_model('absent')",
    "pb.get_input_tensor_by_name(request, 'IN').name()", "pb.get_input_tensor_by_name(request, None)",
    "pb.get_input_tensor_by_name(None, 'IN')", "pb.get_input_tensor_by_name(request)",
    "pb.get_output_tensor_by_name(pb.InferenceResponse([tensor]), 'T').name()",
    "pb.get_output_tensor_by_name()",
    "pb.get_input_config_by_name({}, 'IN')", "pb.get_input_config_by_name({'input': [{'name': 'IN'}]}, 'IN')",
    "pb.get_input_config_by_name({'input': [{}]}, 'IN')", "pb.get_input_config_by_name(None, 'IN')",
    "pb.get_output_config_by_name({'output': [{'name': 'O'}]}, 'O')", "pb.get_output_config_by_name('text', 'O')",
    "pb.using_decoupled_model_transaction_policy({})",
    "pb.using_decoupled_model_transaction_policy({'model_transaction_policy': {}})",
    "pb.using_decoupled_model_transaction_policy(5)",
    "pb.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': 1}})",
    *(f"pb.triton_to_numpy_type({value})" for value in ("0", "1", "13", "14", "None", "'1'", "2.0", "-1", "True")),
    *(f"pb.numpy_to_triton_type({value})" for value in (
        "np.float32", "np.dtype('f4')", "np.bytes_", "np.object_", "np.complex64", "None", "5",
        "'f4'", "bool", "float", "np.str_")),
    *(f"pb.triton_string_to_numpy({value})" for value in ("'TYPE_FP32'", "'FP32'", "None", "[]")),
    "pb.TRITON_STRING_TO_NUMPY['TYPE_BOOL']", "sorted(pb.TRITON_STRING_TO_NUMPY)",
    *(f"pb.serialize_byte_tensor({value})" for value in (
        "np.array([], object)", "np.array([b'a', 'b', 5, None], object)", "np.array([b'ab', b'c'])",
        "np.zeros(2)", "None", "np.array([['a'], ['b']], object)", "np.array(['a'])")),
    *(f"pb.deserialize_bytes_tensor({value})" for value in (
        "b''", "b'\\x01\\0\\0\\0a'", "b'\\x02\\0\\0\\0a'", "b'\\x01'", "None", "'text'")),
    *(f"pb.ModelConfig({value})" for value in ("None", "'{'", "{}")),
)


def _given(arguments: list[str], changed: int, value: str) -> list[str]:
    """The arguments, with a different value for one of them."""
    result = list(arguments)
    name, _, _ = arguments[changed].rpartition("=")
    result[changed] = f"{name}={value}" if name.isidentifier() else value
    return result


def _positional(argument: str) -> str:
    """The arguments without the name of one of them."""
    name, _, value = argument.partition("=")
    return value if name.isidentifier() else argument


def _counts(name: str, arguments: list[str]) -> list[str]:
    """Calls with too few and too many arguments, and with nonexistent names."""
    positional = [_positional(one) for one in arguments]
    return [
        f"{name}()",
        *(f"{name}({', '.join(positional[:count])})" for count in range(1, len(positional) + 1)),
        f"{name}({', '.join([*positional, 'None'])})",
        f"{name}({', '.join([*arguments, 'odd=5'])})",
        f"{name}({', '.join([positional[0], *arguments])})",
        f"{name}(*[{', '.join(positional)}], **{{'odd': Failing()}})",
    ]


def expressions() -> list[str]:
    """All expressions, in a fixed order."""
    found: list[str] = []
    for name, arguments in CALLS.items():
        found += _counts(name, arguments)
        for place in range(len(arguments)):
            for value in ODD:
                found.append(f"{name}({', '.join(_given(arguments, place, value))})")
    for name in BARE:
        found += [f"{name}()", f"{name}(None)", f"{name}(odd=5)", f"{name}('a', 2, odd=5)"]
    return [one for one in dict.fromkeys([*found, *SINGLE]) if one not in LEFT_OUT]


#: Expressions that one request carries.
REQUEST_EXPRESSIONS = 100
#: What refusals begin with: many share it.
HEAD = re.compile(r"builtins\.TypeError: .*?\n\nInvoked with: ", re.DOTALL)


def ask(
    url: str, model: str, renew: Callable[[], None] | None = None
) -> dict[str, str | None]:
    """A model's reactions to all expressions; `renew` restores the server after a failure."""
    if renew is None:
        renew = functools.partial(_load_again, url, model)
    every = expressions()
    found: dict[str, str | None] = {}
    for start in range(0, len(every), REQUEST_EXPRESSIONS):
        some = every[start : start + REQUEST_EXPRESSIONS]
        found.update(_ask_some(url, model, some, renew))
    return found


def _post(url: str, document: object) -> bytes:
    with urllib.request.urlopen(url, json.dumps(document).encode(), 60) as reply:
        return reply.read()


def _load_again(url: str, model: str) -> None:
    for action in ("unload", "load"):
        _post(f"{url}/v2/repository/models/{model}/{action}", {})


def _ask_some(
    url: str, model: str, some: list[str], renew: Callable[[], None]
) -> dict[str, str | None]:
    """A model's reaction; None for an expression that ends its process."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [json.dumps(some)]}
    try:
        reply = _post(f"{url}/v2/models/{model}/infer", {"inputs": [tensor]})
    except OSError:
        renew()
        if len(some) == 1:
            return {some[0]: None}
        middle = len(some) // 2
        return _ask_some(url, model, some[:middle], renew) | _ask_some(
            url, model, some[middle:], renew
        )
    texts = json.loads(json.loads(reply)["outputs"][0]["data"][0])
    return dict(zip(some, texts, strict=True))


def pack(results: dict[str, str | None]) -> dict[str, object]:
    """The results, in which each beginning of a refusal occurs once."""
    heads: list[str] = []
    packed: dict[str, object] = {}
    for expression, text in results.items():
        if text is None:
            continue
        head = HEAD.match(text)
        if head is None:
            packed[expression] = text
            continue
        if head[0] not in heads:
            heads.append(head[0])
        packed[expression] = [heads.index(head[0]), text[head.end() :]]
    return {"heads": heads, "results": packed}


def to_lines(packed: dict[str, object]) -> str:
    """A golden file with a line for each expression."""
    show = functools.partial(json.dumps, ensure_ascii=False)
    heads = ",\n".join(map(show, packed["heads"]))
    results = ",\n".join(f"{show(one)}: {show(text)}" for one, text in packed["results"].items())
    return f'{{"heads": [\n{heads}\n], "results": {{\n{results}\n}}}}\n'


def unpack(golden: dict[str, object]) -> dict[str, str]:
    """The results that were packed."""
    heads, results = golden["heads"], golden["results"]
    return {
        expression: text if isinstance(text, str) else heads[text[0]] + text[1]
        for expression, text in results.items()
    }


class _Triton:
    """A server with the model `probe`, always on the same ports."""

    def __init__(self, command: list[str], repository: pathlib.Path) -> None:
        write_model(repository, "probe", CONFIG, "probe")
        ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
        self.command = [
            *command, f"--model-repository={repository}", *FLAGS,
            *(f"--{name}-port={port}" for name, port in ports.items()),
        ]
        self.url = f"http://127.0.0.1:{ports['http']}"
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command, stdout=quiet, stderr=quiet, start_new_session=True
        )
        wait_until(self.is_ready, 60, "Triton is ready")

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/v2/health/ready"):
            return True
        return False

    def end(self) -> None:
        """Ends it, including the model processes that it leaves behind when it crashes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def renew(self) -> None:
        self.end()
        self.start()


def record(file: pathlib.Path, command: list[str]) -> None:
    """Writes Triton's reactions to all expressions."""
    with tempfile.TemporaryDirectory() as folder:
        triton = _Triton(command, pathlib.Path(folder))
        try:
            packed = pack(ask(triton.url, "probe", triton.renew))
        finally:
            triton.end()
    file.write_text(to_lines(packed))


if __name__ == "__main__":
    record(pathlib.Path(sys.argv[1]), sys.argv[2:])
