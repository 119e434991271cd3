"""Tests of models whose equal requests in flight share one execution."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc

from conftest import StartServer
from latch import Latch
from server import REQUEST_SECONDS_MAX, Program, Server, wait_until
from shm_clients import register, shared_object
from test_check import errors, write
from transports import make_inputs

pytestmark = pytest.mark.galatea_only  # Triton ignores the parameter.

COALESCE = 'parameters { key: "coalesce" value { string_value: "true" } }\n'
ONE_INSTANCE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
ENSEMBLE = """\
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step [ {
  model_name: "step" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" }
} ] }
"""
IDENTITY = """\
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
REQUESTS = 100


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Clients that wait."""
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as threads:
        yield threads


@pytest.fixture
def latch(tmp_path: pathlib.Path) -> Iterator[Latch]:
    """A model whose equal requests share executions, in a closed latch."""
    with Latch(tmp_path, "slow", COALESCE + ONE_INSTANCE) as one:
        yield one


def coalesced(server: Server, model: str = "slow") -> int:
    """The number of requests that shared the execution of an earlier one."""
    labels = f'{{model="{model}",version="1"}}'
    name = "galatea_inference_coalesced_total"
    found = re.search(rf"^{re.escape(name + labels)} (\S+)$", server.metrics(), re.MULTILINE)
    assert found, "the model has no such counter"
    return int(float(found[1]))


def wait_for_followers(server: Server, count: int, model: str = "slow") -> None:
    """Waits until that many requests follow others."""
    wait_until(lambda: coalesced(server, model) == count, 60, f"{count} requests follow")


def wait_for_failures(server: Server, count: int) -> None:
    """Waits until that many requests have failed."""

    def failures() -> int:
        return int(server.statistics("slow")["inference_stats"]["fail"]["count"])

    wait_until(lambda: failures() == count, 60, f"{count} requests have failed")


def counts(server: Server, model: str = "slow") -> tuple[int, int, int]:
    """Successes, inferences and executions."""
    statistics = server.statistics(model)
    successes = statistics["inference_stats"]["success"]["count"]
    return successes, statistics["inference_count"], statistics["execution_count"]


def ask(server: Server, document: dict[str, Any], model: str = "slow") -> Any:
    """Sends a request over HTTP, and returns its JSON response."""
    reply = server.infer(model, document)
    assert reply.status == 200, reply
    return reply.json()


def test_a_hundred_equal_requests_are_executed_once(
    start_server: StartServer,
    latch: Latch,
    tmp_path: pathlib.Path,
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    """Requests of both protocols share an execution, and each gets the response with its ID."""
    http_requests = range(REQUESTS // 2)
    with start_server(tmp_path) as server, server_client(server) as client:
        server.wait_until_ready()
        asked = [
            pool.submit(ask, server, {"id": str(number), **latch.request(7)})
            for number in http_requests
        ]
        inputs = make_inputs(tritonclient.grpc, {"INPUT0": numpy.array([7], numpy.int32)})
        called = [
            pool.submit(client.infer, "slow", inputs, request_id=str(number))
            for number in range(len(asked), REQUESTS)
        ]
        wait_for_followers(server, REQUESTS - 1)
        latch.open()
        for number, future in enumerate(asked):
            response = future.result(REQUEST_SECONDS_MAX)
            assert (response["id"], response["outputs"][0]["data"]) == (str(number), [7])
        for number, future in enumerate(called, len(asked)):
            result = future.result(REQUEST_SECONDS_MAX)
            assert result.get_response().id == str(number)
            assert result.as_numpy("OUTPUT0").tolist() == [7]
        assert counts(server) == (REQUESTS, REQUESTS, 1)
        # A later request finds no execution to share.
        assert ask(server, latch.request(7))["outputs"][0]["data"] == [7]
        assert counts(server) == (REQUESTS + 1, REQUESTS + 1, 2)
        assert coalesced(server) == REQUESTS - 1


def server_client(server: Server) -> tritonclient.grpc.InferenceServerClient:
    """A client over gRPC."""
    return tritonclient.grpc.InferenceServerClient(server.grpc_url)


def test_each_request_gets_its_own_form_of_the_response(
    start_server: StartServer,
    latch: Latch,
    tmp_path: pathlib.Path,
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    """The forms are JSON, bytes, a class, a region, and an explained response."""
    request = latch.request(7)
    region = {"shared_memory_region": "out", "shared_memory_byte_size": 4}
    output = {"name": "OUTPUT0"}
    with shared_object(4) as out, start_server(tmp_path, "--allow-client-shm=true") as server:
        server.wait_until_ready()
        register(server, "out", out.key, 4)
        asked = [
            pool.submit(server.infer, "slow", {**request, **more}, headers=headers)
            for more, headers in [
                ({}, None),
                ({"parameters": {"binary_data_output": True}}, None),
                ({"outputs": [{**output, "parameters": {"classification": 1}}]}, None),
                ({"outputs": [{**output, "parameters": region}]}, None),
                ({}, {"triton-explain": "1"}),
            ]
        ]
        wait_for_followers(server, len(asked) - 1)
        latch.open()
        replies = [one.result(REQUEST_SECONDS_MAX) for one in asked]
        assert [reply.status for reply in replies] == [200] * len(asked)
        plain, binary, classes, in_region, explained = replies
        for reply in (plain, explained):
            assert reply.json()["outputs"][0]["data"] == [7]
        assert binary.tensors()[1] == numpy.array([7], numpy.int32).tobytes()
        assert classes.json()["outputs"][0]["data"] == ["7:0"]
        assert "data" not in in_region.json()["outputs"][0]
        assert out.get(4) == numpy.array([7], numpy.int32).tobytes()
        assert counts(server) == (len(asked), len(asked), 1)


def test_memory_that_a_client_changes_is_read_on_arrival(
    start_server: StartServer,
    latch: Latch,
    tmp_path: pathlib.Path,
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    """Requests that name the same region are equal only if its contents were equal when they
    arrived."""
    parameters = {"shared_memory_region": "in", "shared_memory_byte_size": 4}
    (tensor,) = latch.request(0)["inputs"]
    del tensor["data"]
    document = {"inputs": [{**tensor, "parameters": parameters}]}
    with shared_object(4) as region, start_server(tmp_path, "--allow-client-shm=true") as server:
        server.wait_until_ready()
        register(server, "in", region.key, 4)
        region.put(numpy.array([5], numpy.int32).tobytes())
        first = pool.submit(ask, server, document)
        wait_until(lambda: server.is_executing("slow"), 60, "the first is executed")
        region.put(numpy.array([6], numpy.int32).tobytes())
        second = pool.submit(ask, server, document)
        server.wait_for_pending("slow", 1)
        third = pool.submit(ask, server, document)
        wait_for_followers(server, 1)
        region.put(numpy.array([9], numpy.int32).tobytes())
        latch.open()
        responses = [one.result(REQUEST_SECONDS_MAX) for one in (first, second, third)]
        assert [one["outputs"][0]["data"] for one in responses] == [[5], [6], [6]]
        assert counts(server) == (3, 3, 2)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_leader_that_leaves_takes_no_follower_along(
    start_server: StartServer,
    latch: Latch,
    tmp_path: pathlib.Path,
    pool: concurrent.futures.ThreadPoolExecutor,
    protocol: str,
) -> None:
    """The client of the first request disconnects or cancels it during the execution."""
    with start_server(tmp_path) as server, server_client(server) as client:
        server.wait_until_ready()
        if protocol == "grpc":
            inputs = make_inputs(tritonclient.grpc, {"INPUT0": numpy.array([7], numpy.int32)})
            leave = client.async_infer("slow", inputs, lambda **_: None).cancel
        else:
            leader = http.client.HTTPConnection(server.http_url)
            leader.request("POST", "/v2/models/slow/infer", json.dumps(latch.request(7)))
            leave = leader.close
        wait_until(lambda: server.is_executing("slow"), 60, "the first is executed")
        followers = [pool.submit(ask, server, latch.request(7)) for _ in range(3)]
        wait_for_followers(server, 3)
        leave()
        wait_for_failures(server, 1)
        assert not any(one.done() for one in followers)
        latch.open()
        for one in followers:
            assert one.result(REQUEST_SECONDS_MAX)["outputs"][0]["data"] == [7]
        assert counts(server) == (3, 3, 1)


def test_an_ensemble_runs_its_steps_once(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The step's model doesn't know of the requests that follow."""
    write(tmp_path, "chain", ENSEMBLE + COALESCE)
    with Latch(tmp_path, "step") as latch, start_server(tmp_path) as server:
        server.wait_until_ready()
        tensor = {"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}
        asked = [pool.submit(ask, server, {"inputs": [tensor]}, "chain") for _ in range(5)]
        wait_for_followers(server, 4, "chain")
        latch.open()
        for one in asked:
            assert one.result(REQUEST_SECONDS_MAX)["outputs"][0]["data"] == [7]
        assert counts(server, "chain")[:2] == (5, 5)
        assert counts(server, "step") == (1, 1, 1)


def test_contradicting_settings(program: Program, tmp_path: pathlib.Path) -> None:
    """A model with such a configuration doesn't load, and the error names the setting."""
    write(tmp_path, "good", IDENTITY + COALESCE)
    write(tmp_path, "bad", IDENTITY + COALESCE.replace("true", "sometimes"))
    settings = {
        "decoupled": "model_transaction_policy { decoupled: true }",
        "sequences": "sequence_batching { }",
        "ordered": "dynamic_batching { preserve_ordering: true }",
        "timed": "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    }
    for name, setting in settings.items():
        write(tmp_path, name, IDENTITY + COALESCE + setting)
    write(tmp_path, "step", IDENTITY + "model_transaction_policy { decoupled: true }")
    batches = "max_batch_size: 4\n"
    write(tmp_path, "chain", ENSEMBLE + batches + COALESCE)
    found = errors(program, tmp_path)
    assert found.pop("step") == []
    (chain,) = found.pop("chain")
    assert "'coalesce' contradicts ensemble chain" in chain["message"]
    texts = {model: [one["message"] for one in all_of] for model, all_of in found.items()}
    assert texts.pop("good") == []
    (bad,) = texts.pop("bad")
    assert "'coalesce'" in bad and "'sometimes'" in bad
    for model, named in {
        "decoupled": "'model_transaction_policy.decoupled'",
        "sequences": "'sequence_batching'",
        "ordered": "'dynamic_batching.preserve_ordering'",
        "timed": "'dynamic_batching.default_queue_policy.allow_timeout_override'",
    }.items():
        assert any(named in text and "'coalesce'" in text for text in texts[model]), texts


def test_a_server_does_not_load_a_decoupled_model(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The reason in the repository's index names the setting."""
    write(tmp_path, "good", IDENTITY + COALESCE)
    write(tmp_path, "bad", IDENTITY + COALESCE + "model_transaction_policy { decoupled: true }")
    with start_server(tmp_path, "--exit-on-error=false") as server:
        server.wait_until_live()
        models = server.request("POST", "/v2/repository/index").json()
        (bad,) = (one for one in models if one["name"] == "bad")
        assert "contradicts parameter 'coalesce'" in bad["reason"]
