"""Tests of the calls that backends receive while models are loaded, changed and unloaded, and
their order."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from conftest import StartServer
from events import EventModel
from server import Reply, Server, wait_until

EXPLICIT = "--model-control-mode=explicit"
LIMITED = "--rate-limit=execution_count"


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Clients that wait."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def load(server: Server, model: str) -> Reply:
    """Loads a model."""
    return server.request("POST", f"/v2/repository/models/{model}/load", b"{}")


def unload(server: Server, model: str) -> Reply:
    """Unloads a model, but not those that it needs."""
    return server.request("POST", f"/v2/repository/models/{model}/unload", b"{}")


def states(server: Server) -> dict[str, str | None]:
    """The states in the repository's index."""
    index = server.request("POST", "/v2/repository/index", b"").json()
    return {entry["name"]: entry.get("state") for entry in index}


def answer_others(server: Server) -> None:
    """Lets the server respond to later requests. An order that doesn't wait is over by then."""
    for _ in range(100):
        states(server)


def group(more: str) -> str:
    """A group of instances on the CPU."""
    return f"instance_group [ {{ kind: KIND_CPU {more} }} ]"


@contextlib.contextmanager
def loaded(
    start_server: StartServer, repository: pathlib.Path, *flags: str, model: str = "m"
) -> Iterator[Server]:
    """A server with one model."""
    with start_server(repository, EXPLICIT, f"--load-model={model}", *flags) as server:
        yield server.wait_until_ready()


def test_a_load_with_fewer_instances_ends_with_the_last_of_them(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """All instances are busy, so the load responds once the removed instance has been
    finalised."""
    model = EventModel(tmp_path, "m", group("count: 2"))
    with loaded(start_server, tmp_path) as server:
        with model.held("finalize_instance"):
            with model.held("execute"):
                requests = [pool.submit(server.infer, "m", model.request()) for _ in range(2)]
                model.wait_for("execute", 2)
                model.configure(group("count: 1"))
                answers: list[list[str]] = []

                def load_and_look() -> None:
                    assert load(server, "m").status == 200
                    answers.append(model.events("finalized_instance"))

                loading = pool.submit(load_and_look)
                # While the load waits, it can't be seen from outside.
                answer_others(server)
            model.wait_for("finalize_instance")
            answer_others(server)
            assert answers == []
        loading.result()
        for request in requests:
            assert request.result().status == 200
        assert [len(one) for one in answers] == [1]
        assert len(model.events("initialize")) == 1
        assert server.statistics("m")["inference_count"] == 2


@pytest.mark.parametrize(
    ("before", "after", "added", "removed"),
    [
        (
            "rate_limiter { resources [ { name: 'R1' count: 2 } ] }",
            "rate_limiter { resources [ { name: 'R1' count: 3 } ] }",
            ["m_0_0"],
            ["m_0_0"],
        ),
        ("count: 2", "count: 2 }, { kind: KIND_CPU passive: true", ["m_1_0"], []),
        ("passive: false", "passive: true", ["m_0_0"], ["m_0_0"]),
        ("host_policy: 'one'", "host_policy: 'two'", ["m_0_0"], ["m_0_0"]),
    ],
    ids=["resources", "passive_group", "passive", "host_policy"],
)
# row: BAPI-03
def test_other_settings_of_instances_change_in_place(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    before: str,
    after: str,
    added: list[str],
    removed: list[str],
) -> None:
    """The model stays the same, and the removed instances are finalised before the response."""
    model = EventModel(tmp_path, "m", group(before))
    with loaded(start_server, tmp_path, "--log-verbose=1", LIMITED) as server:
        before_count = len(model.events("initialize_instance"))
        assert server.infer("m", model.request()).status == 200
        model.configure(group(after))
        seen = len(server.log())
        assert load(server, "m").status == 200
        made = model.events("initialize_instance")
        gone = model.events("finalized_instance")
        assert len(model.events("initialize")) == 1
        assert model.events("finalize") == []
        assert (made[before_count:], gone) == (added, removed)
        if "R1" in before:
            # The log shows control characters as escapes.
            assert r"Resource: R1\t Count: 3" in server.log()[seen:]
        assert server.statistics("m")["inference_count"] == 1


ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  step {
    model_name: "m" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
}
"""


def write_ensemble(repository: pathlib.Path, config: str = ENSEMBLE, name: str = "e") -> None:
    """An ensemble, by default with `m` as its only step."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


def test_a_model_is_unloaded_while_an_ensemble_that_needs_it_loads(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Both succeed, both models are unloaded, and the server is ready."""
    model = EventModel(tmp_path, "m")
    write_ensemble(tmp_path)
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        with model.held("initialize"):
            loading = pool.submit(load, server, "e")
            model.wait_for("initialize")
            unloading = pool.submit(unload, server, "m")
            # While the unload waits, it can't be seen from outside.
            answer_others(server)
        for one in (loading, unloading):
            assert (one.result().status, one.result().body) == (200, b"")
        gone = {"e": "UNAVAILABLE", "m": "UNAVAILABLE"}
        wait_until(lambda: states(server) == gone, 30, "both are unloaded")
        assert server.get("/v2/health/ready").status == 200
        # They can be loaded again.
        assert load(server, "e").status == 200
        assert server.infer("e", model.request(7)).json()["outputs"][0]["data"] == [7]


def test_an_ensemble_is_loaded_while_a_model_that_it_needs_is_unloaded(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The old version finishes its request, and the ensemble loads the model again."""
    model = EventModel(tmp_path, "m")
    write_ensemble(tmp_path)
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        assert load(server, "m").status == 200
        with model.held("execute"):
            infer = pool.submit(server.infer, "m", model.request())
            model.wait_for("execute")
            assert unload(server, "m").status == 200
            assert states(server) == {"e": None, "m": "UNLOADING"}
            assert load(server, "e").status == 200
        assert infer.result().status == 200
        assert states(server) == {"e": "READY", "m": "READY"}
        assert server.get("/v2/health/ready").status == 200


NOTHING = """
#define EXECUTE answer_nothing(requests, count)
static TRITONSERVER_Error*
answer_nothing(TRITONBACKEND_Request** requests, uint32_t count)
{
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
"""


def test_an_output_that_no_step_made_is_left_out(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The verbose log names it."""
    model = EventModel(tmp_path, "m", source=NOTHING)
    write_ensemble(tmp_path)
    with start_server(tmp_path, "--log-verbose=1") as server:
        reply = server.wait_until_ready().infer("e", model.request())
        assert (reply.status, reply.json()["outputs"]) == (200, [])
        lines = [line for line in server.log().splitlines() if "did not output" in line]
        (line,) = lines
        assert line.startswith("I")
        assert '"Composing models did not output tensor OUTPUT0"' in line


RESCHEDULE = """
#define EXECUTE reschedule(requests, count)
static TRITONSERVER_Error*
reschedule(TRITONBACKEND_Request** requests, uint32_t count)
{
  for (uint32_t index = 0; index < count; ++index) {
    TRY(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_RESCHEDULE));
  }
  return NULL;
}
"""


@pytest.mark.parametrize("batching", ["", "dynamic_batching {}"])
# row: ITER-06
def test_only_iterative_sequences_are_rescheduled(
    start_server: StartServer, tmp_path: pathlib.Path, batching: str
) -> None:
    """The release fails in the backend, which then fails the request with that error."""
    size = 4 if batching else 0
    model = EventModel(tmp_path, "m", batching, source=RESCHEDULE, max_batch_size=size)
    with start_server(tmp_path) as server:
        reply = server.wait_until_ready().infer("m", model.request())
        assert reply.status == 400
        assert reply.error() == (
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is "
            "not configured to handle such a flag."
        )


ITERATIONS = """
#define EXECUTE iterate(instance, requests, count)
static TRITONSERVER_Error*
iterate(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  static int executions;
  if (++executions == 3) return answer(instance, requests, count);
  uint64_t now = now_ns();
  TRY(TRITONBACKEND_RequestRelease(requests[0], TRITONSERVER_REQUEST_RELEASE_RESCHEDULE));
  TRITONSERVER_Error* failed = TRITONBACKEND_ModelInstanceReportStatistics(
      instance, requests[0], true, now, now, now, now);
  step("report", failed == NULL ? "taken" : TRITONSERVER_ErrorMessage(failed));
  TRITONSERVER_ErrorDelete(failed);
  log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, now, now, now, now));
  return NULL;
}
"""


def test_statistics_of_a_rescheduled_request_are_taken(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A backend may report them after it has released the request."""
    batching = "sequence_batching { iterative_sequence: true }"
    model = EventModel(tmp_path, "m", batching, source=ITERATIONS, max_batch_size=1)
    with start_server(tmp_path) as server:
        assert server.wait_until_ready().infer("m", model.request()).status == 200
        assert model.events("report") == ["taken", "taken"]
        # The response can arrive before the last report.
        statistics = lambda: server.statistics("m")  # noqa: E731
        wait_until(lambda: statistics()["execution_count"] == 3, 30, "all are reported")
        assert statistics()["inference_count"] == 3
        assert statistics()["inference_stats"]["success"]["count"] == 3


def test_of_two_models_the_one_of_priority_one_is_executed_twice_as_often(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """From the beginning, for as long as both have requests."""
    unit = "rate_limiter {{ resources [ {{ name: 'R' count: 1 }} ] priority: {} }}"
    latch = EventModel(tmp_path, "latch", group(unit.format(1)))
    one = EventModel(tmp_path, "one", group(unit.format(1)))
    two = EventModel(tmp_path, "two", group(unit.format(2)))
    clients = concurrent.futures.ThreadPoolExecutor(61)
    with start_server(tmp_path, LIMITED) as server, clients as pool:
        server.wait_until_ready()
        with latch.held("execute"):
            pending = [pool.submit(server.infer, "latch", latch.request())]
            latch.wait_for("execute")
            for model in (one, two) * 30:
                pending.append(pool.submit(server.infer, model.folder.name, model.request()))
            for name in ("one", "two"):
                server.wait_for_pending(name, 30)
        for request in pending:
            assert request.result().status == 200
    both = ((number, model.timed("execute")) for number, model in enumerate((one, two), 1))
    order = sorted((time, number) for number, events in both for time, _ in events)
    models = [number for _, number in order]
    for executions in (3, 15, 30, 42):
        of_one = models[:executions].count(1)
        assert of_one / (executions - of_one) > 1.8, models


# row: ENS-12
def test_responses_of_two_decoupled_models_are_not_joined(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Such an ensemble isn't loaded, whether a step or a response would connect them."""
    for name in ("first", "second"):
        EventModel(tmp_path, name, "model_transaction_policy { decoupled: true }")
    EventModel(tmp_path, "joint", 'input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 1 ] }')
    step = 'step {{ model_name: "{}" model_version: -1 {} }}\n'.format
    mapped = '{}_map {{ key: "{}" value: "{}" }} '.format
    take = mapped("input", "INPUT0", "INPUT0")
    branches = step("first", take + mapped("output", "OUTPUT0", "OUTPUT1")) + step(
        "second", take + mapped("output", "OUTPUT0", "OUTPUT2")
    )
    join = mapped("input", "INPUT0", "OUTPUT1") + mapped("input", "INPUT1", "OUTPUT2")
    joined = branches + step("joint", join + mapped("output", "OUTPUT0", "OUTPUT0"))
    output = 'output {{ name: "{}" data_type: TYPE_INT32 dims: [ 1 ] }}\n'.format
    begin = ENSEMBLE[: ENSEMBLE.index("output {")]
    write_ensemble(tmp_path, f"{begin}{output('OUTPUT0')}ensemble_scheduling {{ {joined} }}", "e")
    outputs = output("OUTPUT1") + output("OUTPUT2")
    write_ensemble(tmp_path, f"{begin}{outputs}ensemble_scheduling {{ {branches} }}", "f")
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        for name in ("e", "f"):
            reply = load(server, name)
            assert reply.status == 400
            assert (
                f"in ensemble {name}, step of model '{name}' receives inputs originated from "
                "different decoupled models"
            ) in reply.error()
