"""Tests of thousands of requests to Python models, with clients that leave and workers that
die."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from conftest import StartServer
from python_backend import interpreter_flag
from python_crowd import (
    CANCELLED,
    ERROR,
    MODELS,
    RESPONSE,
    SEVERAL,
    Belongings,
    Ledger,
    send_crowd,
    write_models,
)
from server import Server, wait_until

#: How many requests there are; `cargo xtask soak` sends more.
REQUESTS = int(os.environ.get("GALATEA_TEST_PYTHON_REQUESTS", "600"))
SEED = int(os.environ.get("GALATEA_PYTHON_SEED", "1"))
CLIENTS = 32
IDLE_SECONDS = 120


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the models of the crowd."""
    repository = tmp_path_factory.mktemp("crowd")
    write_models(repository)
    with start_server(repository, interpreter_flag(), "--log-error=false") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def counts(server: Server, model: str) -> tuple[int, int]:
    """The number of a model's requests that succeeded and failed, according to its
    statistics."""
    found = server.statistics(model)["inference_stats"]
    return int(found["success"].get("count", 0)), int(found["fail"].get("count", 0))


def wait_for_rest(server: Server) -> None:
    """All workers serve, and no request remains."""
    wait_until(server.is_ready, IDLE_SECONDS, "all workers are back")
    for model in MODELS:
        server.wait_for_pending(model, 0)
        wait_until(lambda model=model: not server.is_executing(model), IDLE_SECONDS, "it rests")


def test_each_request_is_answered_once(server: Server) -> None:
    """Each request ends with a response, an error or its own cancellation, and nothing is
    left behind."""
    send_crowd(server, 300, SEED + 1, CLIENTS)
    wait_for_rest(server)
    before = Belongings.of(server)
    statistics = {model: counts(server, model) for model in MODELS}

    ledger, seconds = send_crowd(server, REQUESTS, SEED, CLIENTS)

    assert len(ledger.outcomes) == REQUESTS
    wait_for_rest(server)
    for model in MODELS:
        if model != "callee":
            compare(server, model, ledger, statistics[model])
    nothing_more = lambda: not Belongings.of(server).more_than(before)  # noqa: E731
    try:
        wait_until(nothing_more, IDLE_SECONDS, "nothing is left behind")
    except AssertionError as error:
        raise AssertionError(Belongings.of(server).more_than(before)) from error
    kinds = {kind: ledger.count(kind) for kind in (RESPONSE, ERROR, CANCELLED)}
    print(f"\n{REQUESTS} requests in {seconds:.0f} s: {kinds}")
    for model, outcomes in sorted(ledger.by_model.items()):
        print(f"  {model}: {dict(outcomes)}, statistics {counts(server, model)}")


def compare(server: Server, model: str, ledger: Ledger, before: tuple[int, int]) -> None:
    """The statistics agree with the ledger. Only the server knows what happened to a request
    whose client has left."""
    known = ledger.by_model[model]
    success, fail = (now - then for now, then in zip(counts(server, model), before, strict=True))
    answered, unknown = known[RESPONSE] + known[ERROR], known[CANCELLED]
    where = f"{model}: {dict(known)}, statistics {success}, {fail}"
    assert answered <= success + fail <= answered + unknown, where
    assert success >= known[RESPONSE], where
    if model not in SEVERAL:
        # Such a model may fail after its execution has completed successfully.
        assert fail >= known[ERROR], where
