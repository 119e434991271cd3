"""Tests of the response cache: which requests don't reach the model, and how they are
counted."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from conftest import StartServer
from server import Server, wait_until

CONFIG = """\
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CACHED = CONFIG + "response_cache { enable: true }\n"
SEQUENCES = """\
sequence_batching { control_input [ { name: "START" control [ {
  kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ] }
"""
FLAG = "--cache-config=local,size={size}"
ROOMY = FLAG.format(size=1 << 20)


def write(repository: pathlib.Path, **configs: str) -> None:
    """Models without files of their own."""
    for name, config in configs.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)


def infer(server: Server, model: str, data: list[float], **more: Any) -> dict[str, Any]:
    """Sends one request, and returns the response with its output's shape and data."""
    shape = more.pop("shape", [1, len(data)])
    tensor = {"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": data}
    reply = server.infer(model, {"inputs": [tensor], **more})
    assert reply.status == 200, reply
    document = reply.json()
    (output,) = document["outputs"]
    return {"id": document.get("id"), "shape": output["shape"], "data": output["data"]}


def counts(server: Server, model: str) -> tuple[int, int, int, int, int]:
    """Successes, hits, misses, inferences and executions."""
    statistics = server.statistics(model)
    stages = statistics["inference_stats"]
    return (
        *(stages[name]["count"] for name in ("success", "cache_hit", "cache_miss")),
        statistics["inference_count"],
        statistics["execution_count"],
    )


def metric(server: Server, name: str, model: str) -> float | None:
    """The value of a model's series, if it exists."""
    labels = f'{{model="{model}",version="1"}}'
    found = re.search(rf"^{re.escape(name + labels)} (\S+)$", server.metrics(), re.MULTILINE)
    return float(found[1]) if found else None


# row: CFG-21 CACHE-01 CACHE-06
def test_equal_requests_do_not_execute_the_model(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A hit is a success, but neither an inference nor an execution."""
    write(tmp_path, cached=CACHED, idle=CACHED, plain=CONFIG)
    with start_server(tmp_path, ROOMY) as server:
        server.wait_until_ready()
        assert counts(server, "cached") == (0, 0, 0, 0, 0)
        first = infer(server, "cached", [1.0, 2.0], id="first")
        again = infer(server, "cached", [1.0, 2.0], id="again")
        assert (first.pop("id"), again.pop("id")) == ("first", "again")
        assert first == again == {"shape": [1, 2], "data": [1.0, 2.0]}
        assert counts(server, "cached") == (2, 1, 1, 1, 1)
        assert infer(server, "cached", [2.0, 1.0])["data"] == [2.0, 1.0]
        assert counts(server, "cached") == (3, 1, 2, 2, 2)
        assert metric(server, "nv_cache_num_hits_per_model", "cached") == 1
        assert metric(server, "nv_cache_num_misses_per_model", "cached") == 2
        assert metric(server, "nv_inference_count", "cached") == 2
        spent = server.statistics("cached")["inference_stats"]
        assert spent["cache_hit"]["ns"] > 0 and spent["cache_miss"]["ns"] > 0
        for _ in range(2):
            infer(server, "plain", [1.0, 2.0])
        assert counts(server, "plain") == (2, 0, 0, 2, 2)
        assert metric(server, "nv_cache_num_hits_per_model", "plain") is None
        assert metric(server, "nv_cache_num_hits_per_model", "idle") == 0
        assert metric(server, "nv_cache_num_misses_per_model", "idle") == 0


def test_the_cache_as_a_whole_has_gauges(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The gauges have the names of Triton's local cache, for all models together."""
    write(tmp_path, one=CACHED, two=CACHED)
    with start_server(tmp_path, FLAG.format(size=12_000)) as server:
        server.wait_until_ready()

        def gauge(name: str) -> float:
            found = re.search(rf"^nv_cache_{name} (\S+)$", server.metrics(), re.MULTILINE)
            return float(found[1]) if found else -1

        for model in ("one", "two", "two", "one"):
            infer(server, model, [1.0] * 1000)
        infer(server, "one", [2.0] * 1000)
        # Triton updates them once a second.
        wait_until(lambda: gauge("num_lookups") == 5, 60, "five lookups are counted")
        assert (gauge("num_hits"), gauge("num_misses")) == (2, 3)
        assert (gauge("num_entries"), gauge("num_evictions")) == (2, 1)
        assert 0.5 < gauge("util") <= 1
        assert gauge("lookup_duration") >= 0 and gauge("insertion_duration") >= 0


# row: CACHE-01
def test_without_the_servers_cache_a_model_has_none(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Both the server and the model must enable it."""
    write(tmp_path, cached=CACHED)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        for _ in range(2):
            infer(server, "cached", [1.0])
        assert counts(server, "cached") == (2, 0, 0, 2, 2)


@pytest.mark.galatea_only
# row: CACHE-04
def test_different_requests_have_different_keys(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The key covers shapes and parameters."""
    write(tmp_path, cached=CACHED)
    with start_server(tmp_path, ROOMY) as server:
        server.wait_until_ready()
        data = [1.0, 2.0, 3.0, 4.0]
        assert infer(server, "cached", data)["shape"] == [1, 4]
        assert infer(server, "cached", data, shape=[2, 2])["shape"] == [2, 2]
        infer(server, "cached", data, parameters={"mode": "other"})
        assert counts(server, "cached")[1:3] == (0, 3)
        infer(server, "cached", data, parameters={"mode": "other"})
        assert infer(server, "cached", data, shape=[2, 2])["shape"] == [2, 2]
        assert counts(server, "cached")[1:3] == (2, 3)


# row: CACHE-02
def test_a_response_larger_than_the_cache_is_not_stored(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The request succeeds, and smaller responses are still stored."""
    write(tmp_path, cached=CACHED)
    # Triton needs some room for its own bookkeeping.
    with start_server(tmp_path, FLAG.format(size=4096)) as server:
        server.wait_until_ready()
        large = [float(number) for number in range(4096)]
        for _ in range(2):
            assert infer(server, "cached", large)["data"] == large
        successes, hits, _, inferences, _ = counts(server, "cached")
        assert (successes, hits, inferences) == (2, 0, 2)
        for _ in range(2):
            infer(server, "cached", [1.0])
        assert counts(server, "cached")[1] == 1


@pytest.mark.galatea_only
# row: CACHE-02
def test_the_least_recently_used_response_is_evicted(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Frequently used entries stay."""
    write(tmp_path, cached=CACHED)
    # There is room for two of the three responses.
    with start_server(tmp_path, FLAG.format(size=10_000)) as server:
        server.wait_until_ready()
        kept, evicted, new = ([float(value)] * 1000 for value in range(3))
        for data in (kept, evicted, kept, new):
            infer(server, "cached", data)
        assert counts(server, "cached")[1:3] == (1, 3)
        infer(server, "cached", kept)
        assert counts(server, "cached")[1:3] == (2, 3)
        infer(server, "cached", evicted)
        assert counts(server, "cached")[1:3] == (2, 4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CACHED + SEQUENCES, "with sequence batching scheduler"),
        (
            CACHED + "model_transaction_policy { decoupled: true }",
            "with 'decoupled' transaction policy",
        ),
    ],
)
# row: CACHE-05
def test_models_that_cannot_be_cached(
    start_server: StartServer, tmp_path: pathlib.Path, config: str, reason: str
) -> None:
    """The model is refused when it is loaded, by name."""
    write(tmp_path, model=config, other=CONFIG)
    with start_server(tmp_path, ROOMY, "--exit-on-error=false") as server:
        server.wait_until_live()
        assert server.get("/v2/models/model/ready").status == 400
        assert server.get("/v2/models/other/ready").status == 200
        lines = [line for line in server.log().splitlines() if "esponse Cache" in line]
        assert any(reason in line for line in lines) or server.is_triton, lines


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--cache-config=redis,host=localhost"], "unable to find the library"),
        (["--cache-config=local,size=0"], "Failed to initialize LocalCache"),
        (["--cache-config=local,count=3"], "config didn't contain a valid 'size' field"),
        ([ROOMY, "--response-cache-byte-size=1024"], "Please provide one or the other"),
    ],
)
# row: CLI-18
def test_invalid_flags(
    start_server: StartServer, tmp_path: pathlib.Path, flags: list[str], reason: str
) -> None:
    """The server does not start with an invalid cache setting."""
    write(tmp_path, cached=CACHED)
    with start_server(tmp_path, *flags) as server:
        assert server.wait_for_exit() == 1
        lines = server.log().splitlines()
        assert any("cache" in line.lower() and reason in line for line in lines)
