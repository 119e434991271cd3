"""Tests of ensembles: models that consist of other models."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest
from example_models import ensembles
from example_models.conformance import onnx_slow
from example_models.ensembles import Step, ensemble
from example_models.repository import Example, write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from latch import Latch
from server import Program, Server, resident_kilobytes, wait_until
from transports import TRANSPORTS, GrpcCalls, GrpcStream, Transport

NUMBERS = numpy.array([[1, 2, 3]], numpy.int32)
#: Models of backends that only Galatea has.
OWN = {"tokens", "doubled_tokens", "slow_tokens", "tokens_and_constant"}
STAGES = ["compute_input", "compute_infer", "compute_output"]
#: Responses of a slow step, at fifty a second, while memory is measured.
SLOW_RESPONSES = int(os.environ.get("GALATEA_TEST_SLOW_ANSWERS", "100"))


@pytest.fixture(scope="module")
def server(
    program: Program, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with every ensemble and its composing models."""
    repository = tmp_path_factory.mktemp("ensembles")
    for name, make in {**ensembles.EXAMPLES, **ensembles.MODELS}.items():
        if name not in OWN or not program.is_triton:
            write_example(repository, name, make())
    with start_server(repository) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0 or running.is_triton


def infer(server: Server, model: str, tensors: dict[str, numpy.ndarray], **options: Any) -> Any:
    """One request over HTTP."""
    with contextlib.closing(TRANSPORTS["http"](server)) as one:
        return one.infer(model, tensors, **options)


# Results.


# row: ENS-01 ENS-04
def test_a_chain(transport: Transport) -> None:
    """Multiplied by three, then by two."""
    outputs = transport.infer("eightfold", {"IN": NUMBERS})
    assert outputs["OUT"].tolist() == (8 * NUMBERS).tolist()


# row: ENS-05 ENS-06
def test_steps_that_join(transport: Transport) -> None:
    """Two models get the same tensor, and a third gets both results."""
    outputs = transport.infer("fan", {"IN": NUMBERS})
    assert outputs["SUM"].tolist() == (NUMBERS * NUMBERS + 2 * NUMBERS).tolist()


# row: ENS-16
def test_ensembles_of_ensembles(transport: Transport) -> None:
    """One tensor is both an output and the input of another step."""
    total = NUMBERS * NUMBERS + 2 * NUMBERS
    outputs = transport.infer("nested", {"IN": NUMBERS})
    assert outputs["SUM"].tolist() == total.tolist()
    assert outputs["OUT"].tolist() == (8 * total).tolist()


def test_batches(transport: Transport) -> None:
    """A batch remains one batch from step to step."""
    batch = numpy.arange(8, dtype=numpy.int32).reshape(4, 2)
    outputs = transport.infer("fan", {"IN": batch})
    assert outputs["SUM"].tolist() == (batch * batch + 2 * batch).tolist()


def test_models_without_batches_in_an_ensemble(transport: Transport) -> None:
    """A model without batches takes a batch of one, and its result is a batch of one again."""
    outputs = transport.infer("in_and_out_of_batches", {"IN": NUMBERS})
    assert outputs["OUT"].tolist() == (8 * NUMBERS).tolist()


# row: ENS-17
def test_unrequested_outputs(server: Server, transport: Transport) -> None:
    """Their steps aren't executed."""
    before = [server.statistics(model)["inference_count"] for model in CONVOLUTIONS]
    outputs = transport.infer("pipeline_parallel", {"image": image(4, 4)}, outputs=["second"])
    assert list(outputs) == ["second"]
    after = [server.statistics(model)["inference_count"] for model in CONVOLUTIONS]
    assert after == [before[0], before[1] + 1, before[2]]


@pytest.mark.galatea_only  # Triton leaves out steps that are needed: a deadlock.
def test_outputs_that_other_steps_consume(server: Server, transport: Transport) -> None:
    """A tensor may be both an output and the input of another step."""
    before = server.statistics("square")["inference_count"]
    outputs = transport.infer("two_ends", {"IN": NUMBERS}, outputs=["DOUBLED"])
    assert list(outputs) == ["DOUBLED"]
    assert outputs["DOUBLED"].tolist() == (2 * NUMBERS).tolist()
    assert server.statistics("square")["inference_count"] == before
    outputs = transport.infer("two_ends", {"IN": NUMBERS}, outputs=["SQUARED"])
    assert list(outputs) == ["SQUARED"]
    assert outputs["SQUARED"].tolist() == (4 * NUMBERS * NUMBERS).tolist()


# row: CFG-12 ENS-08
def test_optional_inputs(transport: Transport) -> None:
    """An omitted input isn't passed on, and the step has a default."""
    outputs = transport.infer("with_optional", {"IN": NUMBERS})
    assert outputs["OUT"].tolist() == (2 * NUMBERS).tolist()
    assert outputs["REST"].tolist() == [[0]]
    outputs = transport.infer("with_optional", {"IN": NUMBERS, "MORE": NUMBERS})
    assert outputs["REST"].tolist() == NUMBERS.tolist()


# row: SEQ-27 ENS-09
def test_a_stateful_model_in_each_of_two_steps(transport: Transport) -> None:
    """Both get the sequence's ID and flags, and keep separate states."""
    sums, sum_of_sums = 0, 0
    for number in range(1, 6):
        sums += number
        sum_of_sums += sums
        outputs = transport.infer(
            "two_sums",
            {"IN": numpy.array([[number]], numpy.int32)},
            sequence_id=71,
            sequence_start=number == 1,
            sequence_end=number == 5,
        )
        assert outputs["SUM"].tolist() == [[sums]]
        assert outputs["SUM_OF_SUMS"].tolist() == [[sum_of_sums]]


def test_sequences_come_from_the_client(server: Server) -> None:
    """Without one, the first step that needs it refuses the request."""
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    reply = server.infer("two_sums", {"inputs": [tensor]})
    assert reply.status == 400
    assert reply.error().startswith("in ensemble 'two_sums', ")
    assert "must specify a non-zero or non-empty correlation ID" in reply.error()


# The pipelines of convolutional networks, and for images.

CONVOLUTIONS = ["convolutions_1", "convolutions_2", "convolutions_3"]
#: Where each net of a pipeline gets its image from, and what the client gets.
PIPELINES = {
    "pipeline_in_a_row": (["image", "first", "second"], ["third"]),
    "pipeline_partly_parallel": (["image", "first", "first"], ["second", "third"]),
    "pipeline_parallel": (["image", "image", "image"], ["first", "second", "third"]),
}


def image(height: int, width: int) -> numpy.ndarray:
    """Two images of any size."""
    random = numpy.random.default_rng(5)
    return random.standard_normal((2, ensembles.CHANNELS, height, width)).astype(numpy.float32)


@pytest.mark.parametrize("pipeline", list(PIPELINES))
@pytest.mark.parametrize("size", [(8, 8), (33, 17)])
def test_pipelines(server: Server, transport: Transport, pipeline: str, size: Any) -> None:
    """Networks with one, two and three layers: the result is the same as calling them one after
    the other."""
    sources, wanted = PIPELINES[pipeline]
    made = {"image": image(*size)}
    for model, source, result in zip(
        CONVOLUTIONS, sources, ["first", "second", "third"], strict=True
    ):
        made[result] = infer(server, model, {"input": made[source]})["output"]
    outputs = transport.infer(pipeline, {"image": made["image"]})
    # The order is the configuration's; Triton has no fixed order.
    assert (sorted(outputs) if server.is_triton else list(outputs)) == sorted(wanted)
    for name, result in outputs.items():
        numpy.testing.assert_array_equal(result, made[name])


@pytest.mark.galatea_only  # There, only the dynamic batcher can be held back.
@pytest.mark.parametrize("pipeline", list(PIPELINES))
# row: ENS-03 ENS-05
def test_independent_steps_run_at_once(
    start_server: StartServer, tmp_path: pathlib.Path, pipeline: str
) -> None:
    """Each network is held back until two requests are waiting, so the test sees which steps
    wait at the same time."""
    for name in [*CONVOLUTIONS, pipeline]:
        write_example(tmp_path, name, ensembles.EXAMPLES[name]())
    sources = dict(zip(CONVOLUTIONS, PIPELINES[pipeline][0], strict=True))
    results = dict(zip(["first", "second", "third"], CONVOLUTIONS, strict=True))
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "2"}
    with start_server(tmp_path, environment=environment) as running:
        running.wait_until_ready()
        with contextlib.closing(GrpcCalls(running)) as calls:
            pending = calls.send(pipeline, {"image": image(4, 4)})
            done: list[str] = []
            while len(done) < len(CONVOLUTIONS):
                ready = [
                    model
                    for model, source in sources.items()
                    if model not in done and (source == "image" or results[source] in done)
                ]
                for model in ready:
                    running.wait_for_pending(model, 1)
                waiting = [model for model in CONVOLUTIONS if running.pending(model)]
                assert waiting == ready
                assert not calls.is_finished(pending)
                # With a second request, each network executes.
                for model in ready:
                    calls.wait(calls.send(model, {"input": image(4, 4)}))
                done += ready
            assert list(calls.wait(pending)) == PIPELINES[pipeline][1]


# row: ENS-18 ENS-19
def test_steps_of_many_requests_share_batches(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A composing model joins them as it joins its clients' requests."""
    for name in ("double", "eightfold"):
        write_example(tmp_path, name, ensembles.MODELS[name]())
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "4"}
    with start_server(tmp_path, environment=environment) as running:
        running.wait_until_ready()
        with contextlib.closing(GrpcCalls(running)) as calls:
            in_flight = [calls.send("eightfold", {"IN": number * NUMBERS}) for number in range(4)]
            for number, pending in enumerate(in_flight):
                assert calls.wait(pending)["OUT"].tolist() == (8 * number * NUMBERS).tolist()
        counts = running.statistics("double")
        assert counts["inference_count"] == 12
        assert 4 in {one["batch_size"] for one in counts["batch_stats"]}
        assert counts["execution_count"] <= 9


# row: ENS-21
def test_an_image_is_decoded_classified_and_segmented(
    server: Server, transport: Transport
) -> None:
    """A step converts a string to an image, and two networks process it at the same time."""
    random = numpy.random.default_rng(7)
    shape = (3, ensembles.CHANNELS, ensembles.IMAGE_SIZE, ensembles.IMAGE_SIZE)
    pixels = random.integers(0, 256, shape)
    texts = [" ".join(map(str, one.reshape(-1))).encode() for one in pixels]
    outputs = transport.infer("image_pipeline", {"TEXT": numpy.array([[one] for one in texts])})
    images = (pixels / 255).astype(numpy.float32)
    classes = infer(server, "image_classifier", {"IMAGE": images})["CLASSES"]
    regions = infer(server, "image_segmenter", {"IMAGE": images})["REGIONS"]
    numpy.testing.assert_allclose(outputs["CLASSES"], classes, rtol=1e-5)
    numpy.testing.assert_array_equal(outputs["REGIONS"], regions)
    numpy.testing.assert_allclose(outputs["CLASSES"].sum(axis=1), 1, rtol=1e-5)


# Decoupled steps.


@pytest.mark.galatea_only
# row: ENS-12
def test_each_response_of_a_step_becomes_one_of_the_ensemble(stream: GrpcStream) -> None:
    """Responses have the order in which the next step receives them, because it has one
    instance."""
    stream.send("doubled_tokens", {"COUNT": numpy.array([[50]], numpy.int32)})
    tokens = [stream.receive()[1]["OUT"].reshape(-1).tolist() for _ in range(50)]
    assert tokens == [[2 * token] for token in range(50)]


@pytest.mark.galatea_only
def test_the_end_of_a_decoupled_ensemble(stream: GrpcStream) -> None:
    """Zero responses are valid; the client may request an empty final response."""
    count = {"COUNT": numpy.array([[0]], numpy.int32)}
    stream.send("doubled_tokens", count, request_id="a", enable_empty_final_response=True)
    assert stream.receive() == ("a", {})


@pytest.mark.galatea_only
def test_responses_are_joined_with_single_tensors(stream: GrpcStream) -> None:
    """Each token is added to the same number, which another step produces."""
    inputs = {"COUNT": numpy.array([[6]], numpy.int32), "ADDED": numpy.array([[50]], numpy.int32)}
    stream.send("tokens_and_constant", inputs)
    sums = sorted(stream.receive()[1]["OUT"].item() for _ in range(6))
    assert sums == [100, 101, 102, 103, 104, 105]


@pytest.mark.galatea_only
def test_decoupled_ensembles_need_a_stream(server: Server) -> None:
    """They are decoupled regardless of their configuration."""
    config = server.get("/v2/models/doubled_tokens/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    tensor = {"name": "COUNT", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    reply = server.infer("doubled_tokens", {"inputs": [tensor]})
    assert reply.status == 501
    assert "decoupled" in reply.error()


def produced_and_consumed(server: Server) -> tuple[int, int]:
    """The number of tokens produced, followed by the number that the slow step has executed."""
    made = server.statistics("tokens")["execution_count"]
    return made, server.statistics("slow_identity")["inference_count"]


@pytest.mark.galatea_only
# row: ENS-13
def test_a_fast_step_pauses_for_a_slow_one(server: Server, stream: GrpcStream) -> None:
    """A model that would produce a million tokens never gets far ahead of the next step."""
    made_before, taken_before = produced_and_consumed(server)
    stream.send("slow_tokens", {"COUNT": numpy.array([[1_000_000]], numpy.int32)})
    for received in range(1, 40):
        assert stream.receive()[1]["OUT"].item() == received - 1
        made, taken = produced_and_consumed(server)
        assert made - made_before >= received
        # There are four in the step, four before it, and those inside the request itself.
        assert (made - made_before) - (taken - taken_before) <= 4 + 4 + 8 + 2
    stream.close(cancel=True)
    wait_until(
        lambda: server.statistics("slow_tokens")["inference_stats"]["fail"]["count"] == 2,
        60,
        "the request was given up",
    )
    for model in ("tokens", "slow_identity"):
        wait_until(lambda model=model: is_idle(server, model), 60, f"{model} is done")
    # Nothing continues in the background: the count stays at three tokens.
    made_before, taken_before = produced_and_consumed(server)
    with GrpcStream(server) as other:
        other.send("slow_tokens", {"COUNT": numpy.array([[3]], numpy.int32)})
        assert [other.receive()[1]["OUT"].item() for _ in range(3)] == [0, 1, 2]
    assert produced_and_consumed(server) == (made_before + 3, taken_before + 3)


def is_idle(server: Server, model: str) -> bool:
    """Returns true if nothing executes and nothing waits, not even to be executed again."""
    status = server.scheduler(model)
    is_free = all(instance["state"] == "free" for instance in status["instances"])
    sequences = status["sequences"] or {"taken_slots": 0, "backlog_length": 0}
    return is_free and not status["queues"] and not any(
        sequences[name] for name in ("taken_slots", "backlog_length")
    )


@pytest.mark.galatea_only  # The model that makes tokens is Galatea's.
@pytest.mark.parametrize("limit", ["max_inflight_requests: 4", ""], ids=["a_limit", "no_limit"])
def test_memory_after_a_fast_step_stays_flat(
    start_server: StartServer, tmp_path: pathlib.Path, limit: str
) -> None:
    """Eight requests produce a million tokens each, 100 times as fast as they are consumed."""
    steps = [
        Step("tokens", {"COUNT": "COUNT"}, {"TOKEN": "token"}),
        Step("slow_identity", {"INPUT0": "token"}, {"OUTPUT0": "OUT"}),
    ]
    pipeline = ensemble(4, ["COUNT INT32 1"], ["OUT INT32 -1"], steps, limit)
    models = {name: ensembles.MODELS[name]() for name in ("tokens", "slow_identity")}
    write_all(tmp_path, {**models, "pipeline": pipeline})
    with start_server(tmp_path) as running, GrpcStream(running.wait_until_ready()) as stream:
        for _ in range(8):
            stream.send("pipeline", {"COUNT": numpy.array([[1_000_000]], numpy.int32)})
        for _ in range(SLOW_RESPONSES // 4):
            stream.receive()
        before = resident_kilobytes(running)
        for _ in range(SLOW_RESPONSES):
            stream.receive()
        grown = resident_kilobytes(running) - before
        print(f"{limit or 'no limit'}: {before} kB, and {grown} kB after {SLOW_RESPONSES} answers")
        made = running.statistics("tokens")["inference_count"]
        taken = running.statistics("slow_identity")["inference_count"]
        stream.close(cancel=True)
    assert made - taken <= 8 * 256 + 64
    # This leaves room for a sanitizer or an allocator; a million tokens would need ten times as
    # much.
    assert grown < 8 * 1024


# Failures.


# row: ENS-10
def test_an_error_names_the_ensemble(server: Server) -> None:
    """It comes before the step's text, with the step's code."""
    tensor = {"name": "IN", "shape": [2, 1], "datatype": "INT32", "data": [1, 2]}
    reply = server.infer("in_and_out_of_batches", {"inputs": [tensor]})
    assert reply.status == 400
    assert reply.error() == (
        "in ensemble 'in_and_out_of_batches', [request id: <id_unknown>] unexpected shape for "
        "input 'X' for model 'double_without_batches'. Expected [-1], got [2,1]. "
    )


def test_requests_that_the_ensemble_refuses(server: Server) -> None:
    """It is sent before any step runs."""
    before = server.statistics("double")["inference_count"]
    tensor = {"name": "IN", "shape": [9, 1], "datatype": "INT32", "data": [1] * 9}
    reply = server.infer("fan", {"inputs": [tensor]})
    assert reply.status == 400
    assert "inference request batch-size must be <= 8 for 'fan'" in reply.error()
    reply = server.infer("fan", {"inputs": [{**tensor, "name": "X"}]})
    assert reply.status == 400
    assert server.statistics("double")["inference_count"] == before


def slow_pair(queue: str = "") -> dict[str, Example]:
    """An ensemble of a slow model with this queue policy, and a second model."""
    slow = onnx_slow()
    assert slow.config is not None
    config = slow.config.replace('name: "onnx_slow"\n', "")
    queued = config.replace("dynamic_batching { }", f"dynamic_batching {{ {queue} }}")
    number = "INT64 1"
    steps = [
        Step("first", {"ROUNDS": "ROUNDS"}, {"DONE": "between"}),
        Step("second", {"ROUNDS": "between"}, {"DONE": "DONE"}),
    ]
    return {
        "first": Example(queued, slow.versions),
        "second": Example(config, slow.versions),
        "pair": ensemble(8, [f"ROUNDS {number}"], [f"DONE {number}"], steps),
    }


def write_all(repository: pathlib.Path, models: dict[str, Example]) -> None:
    """Writes models to the repository."""
    for name, example in models.items():
        write_example(repository, name, example)


def rounds(number: int) -> dict[str, numpy.ndarray]:
    """The slow model's execution time, in units of a tenth of a millisecond."""
    return {"ROUNDS": numpy.array([[number]], numpy.int64)}


# row: ENS-19
def test_a_full_queue_fails_the_request_at_once(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Neither the refused requests nor the waiting ones hang."""
    write_all(tmp_path, slow_pair("default_queue_policy { max_queue_size: 1 }"))
    with start_server(tmp_path) as running, contextlib.closing(GrpcCalls(running)) as calls:
        running.wait_until_ready()
        busy = [calls.send("pair", rounds(2_000)) for _ in range(8)]
        outcomes = []
        for call in busy:
            try:
                outcomes.append(calls.wait(call)["DONE"].item())
            except InferenceServerException as error:
                assert error.status() == "StatusCode.UNAVAILABLE"
                assert error.message().startswith("in ensemble 'pair', "), error
                assert "Exceeds maximum queue size" in error.message()
                outcomes.append(None)
        assert set(outcomes) == {2_000, None}
        failures = running.statistics("pair")["inference_stats"]["fail"]["count"]
        # Each is counted twice.
        assert failures == outcomes.count(None) * 2
        other = f'{{model="pair",reason="OTHER",version="1"}} {failures}\n'
        assert f"nv_inference_request_failure{other}" in running.metrics()


def latched_pair(repository: pathlib.Path) -> Latch:
    """An ensemble of a model that is busy until the latch opens, and a second model."""
    latch = Latch(repository, "first", "instance_group { kind: KIND_CPU count: 1 }", 8)
    number = "INT32 1"
    steps = [
        Step("first", {"INPUT0": "IN"}, {"OUTPUT0": "between"}),
        Step("second", {"INPUT0": "between"}, {"OUTPUT0": "OUT"}),
    ]
    pair = ensemble(8, [f"IN {number}"], [f"OUT {number}"], steps)
    write_all(repository, {"second": ensembles.MODELS["slow_identity"](), "pair": pair})
    return latch


ONE = {"IN": numpy.array([[1]], numpy.int32)}


@pytest.mark.galatea_only  # In Triton the running step continues, and then the request.
# row: ENS-20
def test_cancellation_of_an_ensemble_request(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A cancelled request doesn't reach the next step."""
    latch = latched_pair(tmp_path)
    with (
        start_server(tmp_path) as running,
        contextlib.closing(GrpcCalls(running)) as calls,
        latch,
    ):
        running.wait_until_ready()
        first = calls.send("pair", ONE)
        wait_until(lambda: running.is_executing("first"), 60, "the first step is executed")
        calls.cancel(first)
        assert calls.is_cancelled(first)
        wait_until(
            lambda: running.statistics("pair")["inference_stats"]["fail"]["count"] == 2,
            60,
            "the ensemble knows",
        )
        latch.open()
        assert calls.wait(calls.send("pair", ONE))["OUT"].item() == 1
        assert running.statistics("second")["inference_count"] == 1


@pytest.mark.galatea_only  # There, steps that have not begun are refused.
def test_requests_under_way_are_finished_at_the_end(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This includes steps that haven't started when the server stops."""
    latch = latched_pair(tmp_path)
    with start_server(tmp_path) as running:
        running.wait_until_ready()
        with contextlib.closing(GrpcCalls(running)) as calls, latch:
            call = calls.send("pair", ONE)
            wait_until(lambda: running.is_executing("first"), 60, "the first step is executed")
            running.terminate()
            wait_until(lambda: "service connections" in running.log(), 60, "it stops")
            latch.open()
            assert calls.wait(call)["OUT"].item() == 1
        assert running.wait_for_exit() == 0


@pytest.mark.galatea_only  # It uses a status that only Galatea has.
@pytest.mark.parametrize("unloaded", ["pair", "second"])
def test_requests_under_way_are_finished_when_models_go(
    start_server: StartServer, tmp_path: pathlib.Path, unloaded: str
) -> None:
    """The ensemble is unloaded, or a model whose step hasn't started; later requests are
    refused."""
    latch = latched_pair(tmp_path)
    flags = ["--model-control-mode=explicit", "--load-model=pair"]
    with start_server(tmp_path, *flags) as running:
        running.wait_until_ready()
        with contextlib.closing(GrpcCalls(running)) as calls, latch:
            call = calls.send("pair", ONE)
            wait_until(lambda: running.is_executing("first"), 60, "the first step is executed")
            assert running.request("POST", f"/v2/repository/models/{unloaded}/unload").status == 200
            reply = running.infer("pair", {"inputs": []})
            assert reply.status == 404
            assert "Request for unknown model: 'pair'" in reply.error()
            latch.open()
            assert calls.wait(call)["OUT"].item() == 1
            if unloaded == "second":
                # It is reloaded with its models.
                assert running.request("POST", "/v2/repository/models/second/load").status == 200
            assert running.request("POST", "/v2/repository/models/pair/load").status == 200
            assert calls.wait(calls.send("pair", ONE))["OUT"].item() == 1


# row: ENS-14
def test_responses_from_the_cache(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """No step is executed for them."""
    for name in ("double", "square", "sum", "fan"):
        example = ensembles.MODELS[name]()
        if name == "fan":
            assert example.config is not None
            example = Example(example.config + "response_cache { enable: true }\n", {})
        write_example(tmp_path, name, example)
    with start_server(tmp_path, "--cache-config=local,size=1048576") as running:
        running.wait_until_ready()
        in_flight = [infer(running, "fan", {"IN": NUMBERS})["SUM"].tolist() for _ in range(3)]
        assert in_flight == [(NUMBERS * NUMBERS + 2 * NUMBERS).tolist()] * 3
        assert running.statistics("sum")["inference_count"] == 1
        stages = running.statistics("fan")["inference_stats"]
        assert (stages["cache_hit"]["count"], stages["cache_miss"]["count"]) == (2, 1)
        assert stages["success"]["count"] == 3


# Statistics.


# row: ENS-15 MET-17
def test_statistics_add_up_the_steps(server: Server) -> None:
    """Compute durations are the sums over the steps; the queue duration is the ensemble's own."""
    models = ["double", "square", "sum", "fan"]
    before = {model: server.statistics(model) for model in models}
    infer(server, "fan", {"IN": numpy.arange(6, dtype=numpy.int32).reshape(3, 2)})
    after = {model: server.statistics(model) for model in models}

    def grown(model: str, stage: str) -> dict[str, int]:
        old, new = (all_[model]["inference_stats"][stage] for all_ in (before, after))
        return {key: new[key] - old[key] for key in ("count", "ns")}

    for stage in STAGES:
        steps = sum(grown(model, stage)["ns"] for model in ("double", "square", "sum"))
        assert grown("fan", stage) == {"count": 1, "ns": steps}
    assert grown("fan", "success")["count"] == grown("fan", "queue")["count"] == 1
    assert grown("fan", "success")["ns"] >= grown("fan", "queue")["ns"]
    for count in ("inference_count", "execution_count"):
        grew = after["fan"][count] - before["fan"][count]
        assert grew == {"inference_count": 3, "execution_count": 1}[count]
    batches = {one["batch_size"] for one in after["fan"]["batch_stats"]}
    assert 3 in batches


# row: ENS-02
def test_metadata(server: Server) -> None:
    """An ensemble is a model like any other."""
    document = server.get("/v2/models/fan").json()
    assert document == {
        "name": "fan",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [-1, -1]}],
        "outputs": [{"name": "SUM", "datatype": "INT32", "shape": [-1, -1]}],
    }
    config = server.get("/v2/models/fan/config").json()
    assert config["instance_group"] == []
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert "optimization" not in config


# Repositories with errors.


def invalid_ensembles() -> dict[str, tuple[Example, str]]:
    """Invalid ensembles and their errors."""
    number = "INT32 -1"

    def of(*steps: Step, inputs: Sequence[str] = (f"IN {number}",), batch: int = 8) -> Example:
        return ensemble(batch, inputs, [f"OUT {number}"], steps)

    double = Step("double", {"X": "IN"}, {"Y": "OUT"})
    return {
        "no_model": (
            of(Step("nobody", {"X": "IN"}, {"Y": "OUT"})),
            "contains models that are not available or ambiguous: nobody",
        ),
        "no_input": (
            of(Step("double", {"Z": "IN"}, {"Y": "OUT"})),
            "ensemble tensor IN is mapping to non-existing input Z in model double",
        ),
        "missing_input": (
            of(Step("sum", {"A": "IN"}, {"Y": "OUT"})),
            "input B in model sum is not mapped to any ensemble tensors",
        ),
        "wrong_type": (
            of(double, inputs=["IN FP32 -1"]),
            "ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model "
            "wrong_type while TYPE_INT32 is inferred from model double",
        ),
        "wrong_shape": (
            of(double, inputs=["IN INT32 -1,-1"]),
            "ensemble tensor IN: inconsistent shape: [-1,-1,-1] is inferred from model "
            "wrong_shape while [-1,-1] is inferred from model double",
        ),
        "large_batches": (
            of(double, batch=9),
            "allows maximum batch size 9, but it contains model double which only allows maximum "
            "batch size to be 8",
        ),
        "made_twice": (of(double, double), "'OUT' can appear in an output map only once"),
        "not_made": (
            of(Step("sum", {"A": "IN", "B": "lost"}, {"Y": "OUT"})),
            "output 'OUT' for ensemble 'not_made' is not written: at least one of its depending "
            "tensors, 'lost', is not connected",
        ),
        "circle": (
            of(
                Step("sum", {"A": "IN", "B": "second"}, {"Y": "first"}),
                Step("double", {"X": "first"}, {"Y": "second"}),
                Step("double", {"X": "second"}, {"Y": "OUT"}),
            ),
            "output 'OUT' for ensemble 'circle' is not written",
        ),
        "of_one_another": (
            of(Step("of_another", {"IN": "IN"}, {"OUT": "OUT"})),
            "circular dependency between ensembles",
        ),
        "of_another": (
            of(Step("of_one_another", {"IN": "IN"}, {"OUT": "OUT"})),
            "circular dependency between ensembles",
        ),
        "of_a_wrong_one": (
            of(Step("wrong_type", {"IN": "IN"}, {"OUT": "OUT"})),
            "ensemble 'of_a_wrong_one' depends on 'wrong_type'",
        ),
    }


# row: MR-13 MR-15 ENS-07
def test_errors_of_wrong_ensembles(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each error is in the log, and the valid models serve."""
    wrong = invalid_ensembles()
    write_all(tmp_path, {name: example for name, (example, _) in wrong.items()})
    for name in ("double", "square", "sum", "fan"):
        write_example(tmp_path, name, ensembles.MODELS[name]())
    with start_server(tmp_path, "--exit-on-error=false") as running:
        running.wait_until_live()
        outputs = infer(running, "fan", {"IN": NUMBERS})
        assert outputs["SUM"].tolist() == (NUMBERS * NUMBERS + 2 * NUMBERS).tolist()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
        log = running.log()
    ready = {entry["name"] for entry in index if entry.get("state") == "READY"}
    assert ready == {"double", "square", "sum", "fan"}
    for name, (_, reason) in wrong.items():
        lines = [line for line in log.splitlines() if name in line and reason in line]
        assert lines, (name, log)


# The page for users.

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "ensembles.md").read_text()


def test_the_page_matches_the_server(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Its configuration loads, and the tests that it names exist."""
    (config,) = re.findall(r"^```\n(platform.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    for name in ("image_decoder", "image_classifier", "image_segmenter"):
        write_example(tmp_path, name, ensembles.EXAMPLES[name]())
    write_example(tmp_path, "image_pipeline", Example(config, {}))
    with start_server(tmp_path) as running:
        running.wait_until_ready()
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named and named <= set(globals())
