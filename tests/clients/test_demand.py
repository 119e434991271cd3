"""Tests of --model-control-mode=demand: models are loaded when a request needs them."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from conftest import StartServer
from constant_models import added_value, request_body, write_model
from demand_models import (
    BUDGET,
    DEMAND,
    IDENTITY,
    MODEL_BYTES,
    NOT_RESIDENT,
    check_retry_after,
    grpc_request,
    index,
    infer,
    make_heavy,
    memory,
    metric,
    order,
    resident,
    serving,
    used_bytes,
    value_of,
    wait_for_waiting,
    write_ensemble,
    write_gated,
    write_identity,
)
from raw_http import Connection, post
from server import Program, Reply, Server

pytestmark = pytest.mark.galatea_only


def test_more_models_than_memory_are_served(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    names = [f"m{number}" for number in range(8)]
    for number, name in enumerate(names[:4]):
        write_model(tmp_path, name, number)
        make_heavy(tmp_path, name)
    for name in names[4:7]:
        write_identity(tmp_path, name)
    write_gated(tmp_path, names[7]).write_text("")
    with serving(start_server, tmp_path) as server:
        assert index(server) == dict.fromkeys(names, f"UNAVAILABLE {NOT_RESIDENT}")
        for name in [*names, *reversed(names), *names[::3]]:
            added = int(name[1:]) if name in names[:4] else 0
            assert value_of(infer(server, name)) == 7 + added
            assert name in resident(server)
            assert len(resident(server)) <= 3
            assert used_bytes(server) <= BUDGET
        last = memory(server, names[6])
        assert last["state"] == "resident" and last["measured"], last
        assert last["bytes"] >= MODEL_BYTES
        assert last["all_models"]["limit_bytes"] == BUDGET
        assert metric(server, "galatea_model_memory_limit_bytes") == BUDGET
        assert metric(server, "galatea_model_evictions_total") >= 10
        assert server.is_ready()


def test_clients_in_parallel_never_exceed_the_budget(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    names = [f"m{number}" for number in range(8)]
    for number, name in enumerate(names):
        write_model(tmp_path, name, number)
        make_heavy(tmp_path, name)
    with serving(start_server, tmp_path) as server:
        over: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                over.extend(used for used in [used_bytes(server)] if used > BUDGET)

        watcher = threading.Thread(target=watch)
        watcher.start()

        def work(client: int) -> None:
            for turn in range(24):
                number = (client * 5 + turn * 3) % len(names)
                assert value_of(infer(server, names[number])) == 7 + number

        try:
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(work, range(6)))
        finally:
            done.set()
            watcher.join()
        assert not over
        wait_for_waiting(server, 0)


def test_requests_at_once_share_one_load(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path) as server, ThreadPoolExecutor(100) as pool:
        replies = [pool.submit(infer, server, "gated", number) for number in range(100)]
        wait_for_waiting(server, 100)
        assert memory(server, "gated")["waiting"] == 100
        assert memory(server, "gated")["state"] == "loading"
        assert index(server)["gated"].startswith("LOADING")
        # A readiness check doesn't load a model, and doesn't wait.
        assert server.get("/v2/models/gated/ready").status == 400
        gate.write_text("")
        assert [value_of(reply.result()) for reply in replies] == list(range(100))
        assert metric(server, "galatea_model_loads_total") == 1
        assert server.get("/v2/models/gated/ready").status == 200


def test_readiness_and_metadata_do_not_load(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    write_identity(tmp_path, "net")
    with serving(start_server, tmp_path) as server:
        assert server.get("/v2/models/net/ready").status == 400
        for path in ("net", "net/config"):
            reply = server.get(f"/v2/models/{path}")
            assert (reply.status, reply.error()[:27]) == (404, "Request for unknown model: ")
        assert server.get("/v2/models/net/stats").status == 400
        assert memory(server, "net")["state"] == "not_resident"
        assert server.get("/v2/models/nothing/memory").status == 404
    restricted = "--http-restricted-api=statistics:key=value"
    with serving(start_server, tmp_path, restricted) as server:
        assert server.get("/v2/models/net/memory").status == 403
        reply = server.request("GET", "/v2/models/net/memory", headers={"key": "value"})
        assert reply.json()["state"] == "not_resident"
        assert infer(server, "nothing").status == 404
        assert metric(server, "galatea_model_loads_total") == 0


def test_more_than_the_limit_of_waiting_requests_are_refused(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path) as server, ThreadPoolExecutor(256) as pool:
        replies = [pool.submit(infer, server, "gated", number) for number in range(256)]
        wait_for_waiting(server, 256)
        refused = infer(server, "gated")
        check_retry_after(refused)
        assert "256 requests wait for it, the maximum" in refused.error()
        labels = '{reason="too_many_waiting_for_model"}'
        assert metric(server, "galatea_model_refusals_total", labels) == 1
        gate.write_text("")
        assert [value_of(reply.result()) for reply in replies] == list(range(256))


def test_cancelled_requests_leave_the_wait(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        kept = pool.submit(infer, server, "gated")
        wait_for_waiting(server, 1)
        body = json.dumps(request_body()).encode()
        with Connection(server) as leaving:
            leaving.send(post("/v2/models/gated/infer", body))
            wait_for_waiting(server, 2)
        wait_for_waiting(server, 1)
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelInfer.future(grpc_request("gated"))
            wait_for_waiting(server, 2)
            call.cancel()
            wait_for_waiting(server, 1)
            with pytest.raises(grpc.RpcError) as late:
                stub.ModelInfer(grpc_request("gated"), timeout=0.3)
            assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for_waiting(server, 1)
        gate.write_text("")
        assert value_of(kept.result()) == 7


def test_a_request_timeout_ends_the_wait(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path) as server:
        headers = {"request-timeout": "0.2"}
        reply = server.infer("gated", request_body(), headers=headers)
        assert reply.status == 503, reply
        assert "deadline" in reply.error()
        gate.write_text("")
        assert value_of(infer(server, "gated")) == 7


def test_all_grpc_requests_wait(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    for name in ("one", "two", "three", "four"):
        write_identity(tmp_path, name)
    with serving(start_server, tmp_path) as server:
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ModelInfer(grpc_request("one")).model_name == "one"
            models = ["one", "two", "nothing", "three", "four", "one"]
            requests = (grpc_request(name, number) for number, name in enumerate(models))
            replies = list(stub.ModelStreamInfer(requests))
            errors = [reply.error_message for reply in replies]
            assert [bool(error) for error in errors] == [name == "nothing" for name in models]
            answered = [reply.infer_response.model_name for reply in replies]
            assert answered == ["" if name == "nothing" else name for name in models]
            assert errors[2].startswith("Request for unknown model: 'nothing' is not found")


def test_generate_waits(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    write_identity(tmp_path, "net")
    with serving(start_server, tmp_path) as server:
        reply = server.request("POST", "/v2/models/net/generate", b'{"INPUT0": 5}')
        assert (reply.status, reply.json()["OUTPUT0"]) == (200, 5), reply


def test_a_failed_load_is_the_requests_error(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    write_identity(tmp_path, "net")
    with serving(start_server, tmp_path) as server:
        gate.write_text("fail")
        reply = infer(server, "gated")
        assert reply.status == 503, reply
        assert "the weights are torn" in reply.error()
        state = index(server)["gated"]
        assert state.startswith(f"UNAVAILABLE {NOT_RESIDENT}; the last load failed: "), state
        assert "the weights are torn" in memory(server, "gated")["last_error"]
        assert metric(server, "galatea_model_load_failures_total") == 1
        # A model that fails doesn't make the server unready, and takes no memory.
        assert server.is_ready() and value_of(infer(server, "net")) == 7
        # The next load isn't tried at once, except by an explicit order.
        check_retry_after(infer(server, "gated"))
        gate.write_text("")
        assert order(server, "gated", "load").status == 200
        assert value_of(infer(server, "gated")) == 7


def test_an_ensemble_needs_room_for_all_its_models(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    for number in range(4):
        write_identity(tmp_path, f"m{number}")
    write_ensemble(tmp_path, "fits", ["m0", "m1", "m2"])
    write_ensemble(tmp_path, "large", ["m0", "m1", "m2", "m3"])
    with serving(start_server, tmp_path) as server:
        assert value_of(infer(server, "m3")) == 7
        reply = infer(server, "large")
        assert reply.status == 503, reply
        error = reply.error()
        assert f"takes {4 * MODEL_BYTES} bytes" in error and str(BUDGET) in error, error
        assert "Retry-After" not in reply.headers
        # Nothing was unloaded for it.
        assert resident(server) == {"m3"}
        assert value_of(infer(server, "fits")) == 7
        assert resident(server) == {"fits", "m0", "m1", "m2"}
        assert value_of(infer(server, "m3")) == 7
        assert "fits" not in resident(server)
        assert value_of(infer(server, "fits")) == 7


def test_explicit_loads_pin_and_explicit_unloads_win(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    for number in range(5):
        write_identity(tmp_path, f"m{number}")
    with serving(start_server, tmp_path, "--load-model=m0") as server:
        assert resident(server) == {"m0"}
        assert order(server, "m1", "load").status == 200
        for name in ("m2", "m3", "m4", "m2"):
            assert value_of(infer(server, name)) == 7
            assert {"m0", "m1"} < resident(server)
        assert memory(server, "m0")["pinned"]
        assert order(server, "m2", "load").status == 200
        refused = infer(server, "m3")
        assert refused.status == 503 and "models that clients have loaded" in refused.error()
        assert order(server, "m0", "unload").status == 200
        assert index(server)["m0"] in ("UNAVAILABLE unloaded", "UNLOADING")
        gone = infer(server, "m0")
        assert (gone.status, gone.error()) == (
            404,
            "Request for unknown model: 'm0' has no available versions",
        )
        assert value_of(infer(server, "m3")) == 7
        assert order(server, "m0", "load").status == 200
        assert value_of(infer(server, "m0")) == 7
        assert order(server, "nothing", "load").status == 500


def test_a_model_with_a_live_sequence_stays(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    write_identity(tmp_path, "talk")
    config = tmp_path / "talk" / "config.pbtxt"
    config.write_text(IDENTITY + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n")
    for number in range(4):
        write_identity(tmp_path, f"m{number}")

    def talk(server: Server, **flags: bool) -> Reply:
        parameters = {"sequence_id": 5, **flags}
        return server.infer("talk", {**request_body(), "parameters": parameters})

    with serving(start_server, tmp_path) as server:
        assert talk(server, sequence_start=True).status == 200
        for name in ("m0", "m1", "m2", "m3", "m0"):
            assert value_of(infer(server, name)) == 7
            assert "talk" in resident(server)
        assert talk(server).status == 200
        assert talk(server, sequence_end=True).status == 200


def test_a_busy_model_is_replaced_when_its_requests_end(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    for number in range(4):
        write_model(tmp_path, f"m{number}", number)
        make_heavy(tmp_path, f"m{number}")
    with serving(start_server, tmp_path) as server:
        done = threading.Event()

        def keep_busy(number: int) -> int:
            count = 0
            while not done.is_set():
                assert value_of(infer(server, f"m{number}")) == 7 + number
                count += 1
            return count

        with ThreadPoolExecutor(6) as pool:
            busy = [pool.submit(keep_busy, number % 3) for number in range(6)]
            try:
                for _ in range(3):
                    assert added_value(server, "m3") == 3
            finally:
                done.set()
            assert all(one.result() > 0 for one in busy)


def test_a_server_stops_while_requests_wait(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path, "--exit-timeout-secs=20") as server:
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(infer, server, "gated") for _ in range(4)]
            wait_for_waiting(server, 4)
            server.terminate()
            for one in waiting:
                with contextlib.suppress(http.client.HTTPException, OSError):
                    reply = one.result()
                    assert reply.status == 503 and "stop" in reply.error(), reply
            gate.write_text("")
            assert server.wait_for_exit() == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([DEMAND], "--model-control-mode=demand needs --model-memory"),
        (["--model-memory=1G"], "--model-memory needs --model-control-mode=demand"),
        ([DEMAND, "--model-memory=1G", "--load-model=*"], "--load-model=* can't be used"),
        ([DEMAND, "--model-memory=1G", "--repository-poll-secs=5"], "--repository-poll-secs has"),
        ([DEMAND, "--model-memory=1G", "--model-namespacing=true"], "--model-namespacing can't"),
        ([DEMAND, "--model-memory=101%"], "expected a percentage from 1% to 100%"),
        ([DEMAND, "--model-memory=0"], "expected more than 0 bytes"),
    ],
)
def test_flags_that_cannot_work_are_refused(
    program: Program, tmp_path: pathlib.Path, flags: list[str], text: str
) -> None:
    log = tmp_path / "log"
    server = Server(program, tmp_path, log, flags)
    assert server.wait_for_exit() == 1
    assert text in server.log()
