"""The rate limiter: models that share resources take turns."""

from __future__ import annotations

import concurrent.futures
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from example_models import iterative
from example_models.repository import Example, write_example

from conftest import StartServer
from server import Server, wait_until

pytestmark = pytest.mark.galatea_only  # They read the status page.

EXECUTION_COUNT = "--rate-limit=execution_count"
UNIT = "resources [ { name: 'R' count: 1 } ]"


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Clients that wait."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def write(
    repository: pathlib.Path, name: str, limiter: str, delay_microseconds: int = 5000
) -> None:
    """A model that makes a token in each execution, and needs this for it."""
    example = iterative.token_counter(False, delay_microseconds=delay_microseconds)
    config = (example.config or "").replace(
        "kind: KIND_CPU", f"kind: KIND_CPU rate_limiter {{ {limiter} }}"
    )
    write_example(repository, name, Example(config, {}))


def ask(server: Server, model: str, tokens: int) -> None:
    """One request, for so many executions."""
    tensor = {"name": "COUNT", "shape": [1, 1], "datatype": "INT32", "data": [tokens]}
    reply = server.infer(model, {"inputs": [tensor]})
    assert reply.status == 200, reply.error()


def reasons(server: Server, model: str) -> list[str]:
    """What the model's slots wait for."""
    return [slot["waits_for"]["reason"] for slot in server.scheduler(model)["sequences"]["slots"]]


def executions(server: Server, model: str) -> int:
    """How many times the model was executed."""
    return server.statistics(model)["execution_count"]


def test_who_needs_what_another_has_waits(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The status page says so; a model that needs something else goes on."""
    write(tmp_path, "long", UNIT, 3_000_000)
    write(tmp_path, "short", UNIT, 0)
    write(tmp_path, "other", "resources [ { name: 'S' count: 1 } ]", 0)
    with start_server(tmp_path, EXECUTION_COUNT) as server:
        server.wait_until_ready()
        asked = [pool.submit(ask, server, "long", 1)]
        wait_until(lambda: reasons(server, "long") == ["execution"], 20, "the first is executed")
        asked.append(pool.submit(ask, server, "short", 1))
        wait_until(lambda: reasons(server, "short") == ["rate_limiter"], 20, "the second waits")
        ask(server, "other", 3)
        assert reasons(server, "short") == ["rate_limiter"]
        assert executions(server, "long") == 0
        for one in asked:
            one.result()
        assert executions(server, "short") == 1


def test_without_the_flag_nobody_waits(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The blocks are ignored, and still shown."""
    write(tmp_path, "long", UNIT, 3_000_000)
    write(tmp_path, "short", f"{UNIT} priority: 2", 0)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        asked = pool.submit(ask, server, "long", 1)
        wait_until(lambda: reasons(server, "long") == ["execution"], 20, "the first is executed")
        ask(server, "short", 3)
        assert executions(server, "long") == 0
        asked.result()
        (group,) = server.get("/v2/models/short/config").json()["instance_group"]
        resource = {"name": "R", "global": False, "count": 1}
        assert group["rate_limiter"] == {"resources": [resource], "priority": 2}


def test_a_model_of_priority_two_is_executed_half_as_often(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """While both have something to execute; each execution makes one token."""
    write(tmp_path, "first", UNIT)
    write(tmp_path, "second", f"{UNIT} priority: 2")
    with start_server(tmp_path, EXECUTION_COUNT) as server:
        server.wait_until_ready()
        asked = [pool.submit(ask, server, name, 400) for name in ("first", "second")]
        wait_until(
            lambda: min(executions(server, name) for name in ("first", "second")) > 0,
            20,
            "both are executed",
        )
        before = {name: executions(server, name) for name in ("first", "second")}
        wait_until(lambda: executions(server, "first") >= before["first"] + 240, 60, "240 more")
        second = executions(server, "second") - before["second"]
        assert 100 <= second <= 150, second
        for one in asked:
            one.result()


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
def test_what_could_never_be_executed_does_not_load(
    start_server: StartServer, tmp_path: pathlib.Path, limits: list[str], needs: str, reason: str
) -> None:
    """The log names the resource."""
    write(tmp_path, "model", needs)
    flags = [f"--rate-limit-resource={limit}" for limit in limits]
    with start_server(tmp_path, EXECUTION_COUNT, *flags) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()


def test_the_end_waits_for_who_waits(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Requests that have no permit when the server stops get theirs."""
    write(tmp_path, "first", UNIT, 20_000)
    write(tmp_path, "second", UNIT, 20_000)
    with start_server(tmp_path, EXECUTION_COUNT) as server:
        server.wait_until_ready()
        asked: list[Any] = [pool.submit(ask, server, name, 20) for name in ("first", "second")]
        wait_until(
            lambda: "rate_limiter" in reasons(server, "first") + reasons(server, "second"),
            20,
            "one of them waits",
        )
        server.terminate()
        for one in asked:
            one.result()
        assert server.wait_for_exit() == 0
