"""Tests of the orders in which Python models send and return responses: clients get the same
as in Triton."""

from __future__ import annotations

import json
import pathlib

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

import order_cases
from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    write_model,
)
from server import REQUEST_SECONDS_MAX

#: Recorded from Triton 2.51.
GOLDEN = (
    pathlib.Path(__file__).resolve().parents[1]
    / "differential" / "goldens" / "triton-2.51-python-orders.json"
)


@pytest.mark.parametrize("kind", order_cases.KINDS)
# row: DEC-01 DEC-04
def test_orders_of_responses(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
    kind: str,
) -> None:
    """Where Triton crashes or leaves requests without an end, here they end and the model
    continues."""
    if not start_python.is_own:
        pytest.skip("some orders end the server's process; order_cases.py records them")
    write_model(tmp_path, kind, order_cases.CONFIG + order_cases.KINDS[kind], "orders")
    golden = json.loads(GOLDEN.read_text())[kind]
    assert list(golden) == list(order_cases.orders())
    with start_python(tmp_path) as server:
        server.wait_until_ready()
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for order, expected in golden.items():
                given = order_cases.ask(stub, kind, order, REQUEST_SECONDS_MAX)
                assert order_cases.HANG not in given, (order, given)
                if expected != order_cases.CRASH and order_cases.HANG not in expected:
                    assert given == expected, order
