"""Tests of the rate limiter: models that share resources take turns."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Iterator

import numpy
import pytest
from example_models import iterative
from example_models.repository import Example, write_example

from conftest import StartServer
from latch import Latch
from server import Server, wait_until
from transports import GrpcCalls
from wire import Tap

pytestmark = pytest.mark.galatea_only  # They read the status page.

EXECUTION_COUNT = "--rate-limit=execution_count"
UNIT = "resources [ { name: 'R' count: 1 } ]"


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Clients that wait."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def limited(limiter: str) -> str:
    """An instance that needs this resource for its executions."""
    return f"kind: KIND_CPU rate_limiter {{ {limiter} }}"


def write(repository: pathlib.Path, name: str, limiter: str) -> None:
    """A model that produces a token in each execution, for one request after the other."""
    example = iterative.token_counter(False, max_batch_size=1)
    config = (example.config or "").replace("kind: KIND_CPU", limited(limiter))
    write_example(repository, name, Example(config, {}))


def write_latch(repository: pathlib.Path, name: str, limiter: str) -> Latch:
    """A model that holds its resources until the latch opens."""
    return Latch(repository, name, f"instance_group [ {{ {limited(limiter)} }} ]")


def infer(server: Server, model: str, tokens: int = 1) -> None:
    """One request, for this many executions."""
    name, shape = ("INPUT0", [1]) if model == "long" else ("COUNT", [1, 1])
    tensor = {"name": name, "shape": shape, "datatype": "INT32", "data": [tokens]}
    reply = server.infer(model, {"inputs": [tensor]})
    assert reply.status == 200, reply.error()


def reasons(server: Server, model: str) -> list[str]:
    """The reasons why the model's slots wait."""
    return [slot["waits_for"]["reason"] for slot in server.scheduler(model)["sequences"]["slots"]]


def executions(server: Server, model: str) -> int:
    """The number of executions of the model."""
    return server.statistics(model)["execution_count"]


# row: CLI-19 INST-10 RL-01
def test_models_wait_for_resources_in_use(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The status page shows the wait, and a model that needs other resources continues."""
    latch = write_latch(tmp_path, "long", UNIT)
    write(tmp_path, "short", UNIT)
    write(tmp_path, "other", "resources [ { name: 'S' count: 1 } ]")
    with start_server(tmp_path, EXECUTION_COUNT) as server, latch:
        server.wait_until_ready()
        pending = [pool.submit(infer, server, "long")]
        wait_until(lambda: server.is_executing("long"), 60, "the first is executed")
        pending.append(pool.submit(infer, server, "short"))
        wait_until(lambda: reasons(server, "short") == ["rate_limiter"], 60, "the second waits")
        infer(server, "other", 3)
        assert reasons(server, "short") == ["rate_limiter"]
        assert executions(server, "short") == 0
        latch.open()
        for one in pending:
            one.result()
        assert executions(server, "short") == 1


# row: RL-01
def test_without_the_rate_limiter_no_request_waits(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The rate limiter's settings are ignored, but shown."""
    latch = write_latch(tmp_path, "long", UNIT)
    write(tmp_path, "short", f"{UNIT} priority: 2")
    with start_server(tmp_path) as server, latch:
        server.wait_until_ready()
        pending = pool.submit(infer, server, "long")
        wait_until(lambda: server.is_executing("long"), 60, "the first is executed")
        infer(server, "short", 3)
        assert server.is_executing("long")
        latch.open()
        pending.result()
        (group,) = server.get("/v2/models/short/config").json()["instance_group"]
        resource = {"name": "R", "global": False, "count": 1}
        assert group["rate_limiter"] == {"resources": [resource], "priority": 2}


# row: RL-04
def test_a_model_of_priority_two_is_executed_half_as_often(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The order of responses shows this, as long as both have requests."""
    latch = write_latch(tmp_path, "long", UNIT)
    write(tmp_path, "first", UNIT)
    write(tmp_path, "second", f"{UNIT} priority: 2")
    with (
        start_server(tmp_path, EXECUTION_COUNT) as server,
        latch,
        contextlib.closing(Tap(server.wait_until_ready())) as tap,
        contextlib.closing(GrpcCalls(tap)) as calls,
    ):
        pending = pool.submit(infer, server, "long")
        wait_until(lambda: server.is_executing("long"), 60, "no other request can be executed")
        # There are five executions each.
        inputs = {"COUNT": numpy.array([[5]], numpy.int32)}
        for model in ("first", "second"):
            for _ in range(40):
                calls.send(model, inputs)
            server.wait_for_pending(model, 40)
        latch.open()
        pending.result()
        for number in range(80):
            calls.wait(number)
        # When the first model's fortieth response is sent, the other has sent the same number.
        last = max(map(tap.responses.index, tap.requests[:40]))
        assert 19 <= last - 39 <= 21


@pytest.mark.parametrize(
    ("limits", "needs", "reason"),
    [
        (["R:1"], "resources [ { name: 'R' count: 2 } ]", 'Resource count for "R" is limited to 1'),
        (["S:1"], UNIT, 'Resource count for "R" is limited to 0'),
        (["R:1:7"], UNIT, 'Resource count for "R" is limited to 0'),
        (
            [],
            "resources [ { name: 'R' count: 1 }, { name: 'R' global: true count: 1 } ]",
            'Resource "R" is present as both global and device-specific resource',
        ),
    ],
)
# row: RL-03
def test_a_model_that_could_never_execute_does_not_load(
    start_server: StartServer, tmp_path: pathlib.Path, limits: list[str], needs: str, reason: str
) -> None:
    """The log names the resource."""
    write(tmp_path, "model", needs)
    flags = [f"--rate-limit-resource={limit}" for limit in limits]
    with start_server(tmp_path, EXECUTION_COUNT, *flags) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()


def test_shutdown_waits_for_requests_without_a_permit(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Requests that have no permit when the server stops still get one."""
    latch = write_latch(tmp_path, "long", UNIT)
    write(tmp_path, "short", UNIT)
    with start_server(tmp_path, EXECUTION_COUNT) as server, latch:
        server.wait_until_ready()
        pending = [pool.submit(infer, server, "long")]
        wait_until(lambda: server.is_executing("long"), 60, "the first is executed")
        pending.append(pool.submit(infer, server, "short", 20))
        wait_until(lambda: reasons(server, "short") == ["rate_limiter"], 60, "the second waits")
        server.terminate()
        wait_until(lambda: "service connections" in server.log(), 60, "it stops")
        latch.open()
        for one in pending:
            one.result()
        assert server.wait_for_exit() == 0
