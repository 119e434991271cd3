"""Orders in which Python models send and return responses.

    python order_cases.py FILE COMMAND...

records Triton's behaviour for each order that FILE doesn't contain. COMMAND starts Triton; the
ports and the repository are added to it. Some orders make Triton end only occasionally. In this
case, the recorded behaviour is from an attempt that Triton survives, if there is one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from python_backend import tensors, write_model
from server import free_ports, wait_until

CONFIG = tensors("ORDER:STRING:1", "OUT:INT32:1") + "instance_group { kind: KIND_CPU count: 1 }\n"
KINDS = {"decoupled": "model_transaction_policy { decoupled: true }", "plain": ""}
LETTERS = "sSeEf"
RETURNS = ["none", "empty", "nothing", "one", "error", "two", "text", "number", "raise"]
#: How often an order is tried that ends Triton.
ATTEMPTS = 5
#: A request without a response in this time gets none.
SECONDS_MAX = 1.5
#: The answers that stand for a server that crashes and for a request without an end.
CRASH, HANG = "crash", "hang"


def orders() -> Iterator[str]:
    """Every order of up to two sends before the return, and some other orders of each kind."""
    for count in range(3):
        for letters in itertools.product(LETTERS, repeat=count):
            for returned in RETURNS if count < 2 else ["none", "one", "raise"]:
                yield f"{''.join(letters)}///{returned}"
    for before in ("sss", "ssf", "sfS", "ffs", "Sfs", "ees", "eEs"):
        yield f"{before}///none"
    for letters in (*LETTERS, "sf", "ss"):
        for returned in ("none", "one", "empty", "raise"):
            yield f"//{letters}/{returned}"
            yield f"/{letters}//{returned}"
    for before, letter in itertools.product("sSfE", LETTERS):
        yield f"{before}/{letter}//none"
        yield f"{before}//{letter}/none"


def _request(model: str, text: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="ORDER", datatype="BYTES", shape=[1])
    assert tensor.name
    data = text.encode()
    request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def responses(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, text: str, seconds_max: float
) -> list[list[object]] | None:
    """The values, the marker of the last one and the error of each response; None if the
    responses don't end."""
    found: list[list[object]] = []
    requests = iter([_request(model, text)])
    try:
        for reply in stub.ModelStreamInfer(requests, timeout=seconds_max):
            response = reply.infer_response
            values = [int.from_bytes(raw, "little") for raw in response.raw_output_contents]
            is_last = response.parameters["triton_final_response"].bool_param
            error = re.sub(r"\S+/model\.py\(\d+\)", "FILE", reply.error_message)
            found.append([values, is_last, error.replace(f"{model}_0_0", "MODEL")])
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        raise
    return found


def ask(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, order: str,
    seconds_max: float = SECONDS_MAX,
) -> object:
    """The responses for an order, or the fact that they don't end, and the exceptions that the
    sends raised."""
    found = responses(stub, model, order, seconds_max)
    raised = responses(stub, model, "?", seconds_max)
    return [HANG if found is None else found, HANG if raised is None else raised[0][2]]


class _Triton:
    """A server that is restarted after a crash."""

    def __init__(self, command: list[str], repository: pathlib.Path) -> None:
        self.command = [*command, f"--model-repository={repository}", "--model-control-mode=explicit"]
        self.repository = repository
        self.start()

    def start(self) -> None:
        http, grpc_port, metrics = free_ports(3)
        ports = [f"--http-port={http}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*self.command, *ports], stdout=quiet, stderr=quiet, start_new_session=True
        )
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        wait_until(self.is_live, 60, "Triton is live")

    def end(self) -> None:
        """Ends it, including the model processes that it leaves behind when it crashes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def is_live(self) -> bool:
        with contextlib.suppress(grpc.RpcError):
            return bool(self.stub.ServerLive(service_pb2.ServerLiveRequest()).live)
        return False

    def is_absent(self, model: str) -> bool:
        """Returns true if the model is unloaded."""
        index = self.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
        return all(one.state != "READY" and "UNLOADING" not in one.state
                   for one in index.models if one.name == model)

    def has_crashed(self) -> bool:
        """Returns true if it no longer responds; it is then restarted."""
        if self.is_live():
            return False
        self.process.wait(20)
        self.end()
        self.start()
        return True

    def ask(self, model: str, config: str, order: str) -> object:
        """The behaviour in an attempt that Triton survives, or the fact that it crashes."""
        for attempt in range(ATTEMPTS):
            answer = self.ask_once(f"{model}_{attempt}", config, order)
            if answer != CRASH:
                break
        return answer

    def ask_once(self, model: str, config: str, order: str) -> object:
        """The behaviour of a separate model, because an order may block a model permanently."""
        write_model(self.repository, model, config, "orders")
        load = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self.stub.RepositoryModelLoad(load, timeout=60)
        try:
            answer = ask(self.stub, model, order)
            unload = service_pb2.RepositoryModelUnloadRequest(model_name=model)
            self.stub.RepositoryModelUnload(unload, timeout=60)
            # The crash may come after the response, and some models are never unloaded.
            with contextlib.suppress(AssertionError):
                wait_until(functools.partial(self.is_absent, model), 3, "it is unloaded")
            is_stuck = not self.is_absent(model)
        except grpc.RpcError:
            answer, is_stuck = CRASH, False
        if self.has_crashed():
            return CRASH
        if is_stuck:
            self.end()
            self.start()
        return answer


def record(file: pathlib.Path, command: list[str]) -> None:
    """Writes the behaviour for all orders."""
    answers: dict[str, dict[str, object]] = {kind: {} for kind in KINDS}
    if file.exists():
        answers |= json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        triton = _Triton(command, pathlib.Path(folder))
        for kind, policy in KINDS.items():
            missing = (order for order in orders() if order not in answers[kind])
            for number, order in enumerate(missing):
                answers[kind][order] = triton.ask(f"{kind}{number}", CONFIG + policy, order)
                file.write_text(json.dumps(answers, indent=0) + "\n")
        triton.end()


if __name__ == "__main__":
    record(pathlib.Path(sys.argv[1]), sys.argv[2:])
