"""Tests of the dashboard: the contents of its stream, whom it refuses, and that it doesn't delay
anything."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import StartServer
from demand_models import MODEL_BYTES, infer, serving, value_of, write_identity
from events import EventModel
from openai_door import CHAT, chat, open_door
from server import REQUEST_SECONDS_MAX, Server, wait_until

pytestmark = pytest.mark.galatea_only  # Triton has no such page.

FLAG = "--allow-dashboard=true"
HEADER = {"Galatea-Dashboard": "1"}
WATCHERS_MAX = 16
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }"
BATCHED = f"{ONE_INSTANCE} dynamic_batching {{ }}"


class Watcher:
    """A client that reads the stream."""

    def __init__(self, server: Server, headers: dict[str, str] | None = None) -> None:
        port = server.http_port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS_MAX)
        self._connection.request("GET", "/dashboard/events", headers={**HEADER, **(headers or {})})
        self.response = self._connection.getresponse()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> tuple[str, Any] | None:
        """The next event; None at the end of the stream."""
        name = self.response.readline().decode()
        if not name:
            return None
        data = self.response.readline().decode()
        assert self.response.readline() == b"\n"
        assert name.startswith("event: ") and data.startswith("data: "), (name, data)
        return name[7:-1], json.loads(data[6:])

    def frame(self) -> dict[str, Any]:
        """The next frame."""
        while True:
            event = self.next()
            assert event is not None, "the stream has ended"
            if event[0] == "frame":
                return event[1]

    def models(self) -> dict[str, Any]:
        """The models of the next frame, by name."""
        return {model["name"]: model for model in self.frame()["models"]}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventModel]:
    """Models whose executions can be held."""
    repository = tmp_path_factory.mktemp("dashboard") / "models"
    return {
        name: EventModel(repository, name, more, max_batch_size=4)
        for name, more in {"first": BATCHED, "second": BATCHED, "third": ONE_INSTANCE}.items()
    }


@pytest.fixture(scope="module")
def server(start_server: StartServer, events: dict[str, EventModel]) -> Iterator[Server]:
    """A server with a dashboard."""
    repository = events["first"].folder.parent
    with start_server(repository, FLAG, "--log-verbose=1") as running:
        yield running.wait_until_ready()


@contextlib.contextmanager
def sending(server: Server, model: EventModel, name: str, count: int = 1) -> Iterator[None]:
    """Sends requests in parallel, all of which must have succeeded at the end of the block."""
    codes: list[int] = []

    def send() -> None:
        codes.append(server.infer(name, model.request()).status)

    threads = [threading.Thread(target=send) for _ in range(count)]
    for one in threads:
        one.start()
    yield
    for one in threads:
        one.join(REQUEST_SECONDS_MAX)
    assert codes == [200] * count


def test_the_stream_begins_with_what_is_allowed(server: Server) -> None:
    with Watcher(server) as watcher:
        assert watcher.response.status == 200
        assert watcher.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert watcher.response.headers["Cache-Control"] == "no-store"
        assert watcher.next() == ("hello", {"model_control": False, "period_ms": 500})
        frame = watcher.frame()
        assert [model["name"] for model in frame["models"]] == ["first", "second", "third"]
        assert frame["memory"]["held"] > 0
        assert watcher.frame()["at_us"] > frame["at_us"]


def test_the_last_minutes_are_known_when_a_page_is_opened(
    server: Server, events: dict[str, EventModel]
) -> None:
    """Samples are taken even if there are no watchers, and each new one is sent."""
    with sending(server, events["first"], "first", 3):
        pass

    def total(samples: dict[str, Any]) -> int:
        return sum(samples["models"][0]["requests"])

    with Watcher(server) as watcher:
        watcher.next()
        name, history = watcher.next() or ("", {})
        assert name == "history" and history["period_ms"] == 5000
        assert [one["name"] for one in history["models"]] == ["first", "second", "third"]
        known = total(history)
        while known < 3:
            event = watcher.next()
            assert event is not None
            if event[0] == "sample":
                assert len(event[1]["memory"]) == 1
                known += total(event[1])


def test_latencies_are_counted_by_their_size(server: Server, events: dict[str, EventModel]) -> None:
    """The samples are only for the page: the metrics have no additional family."""
    with sending(server, events["second"], "second"):
        pass
    with Watcher(server) as watcher:
        frame = watcher.frame()
    bounds, model = frame["latency_bounds_s"], frame["models"][1]
    assert len(model["latency"]) == len(bounds) + 1
    assert sum(model["latency"]) == model["stages"]["success"][0] > 0
    assert "galatea_inference_request_duration_seconds" not in server.metrics()
    assert frame["gpus"] == []


def test_models_that_execute_side_by_side_are_seen_at_once(
    server: Server, events: dict[str, EventModel]
) -> None:
    requests, holds = contextlib.ExitStack(), contextlib.ExitStack()
    with requests, holds, Watcher(server) as watcher:
        watcher.frame()
        for name, model in events.items():
            holds.enter_context(model.held("execute"))
            requests.enter_context(sending(server, model, name))
        seen: dict[str, Any] = {}

        def are_executing() -> bool:
            seen.update(watcher.models())
            return all(model["instances"][0]["current"] for model in seen.values())

        wait_until(are_executing, REQUEST_SECONDS_MAX, "all of them execute")
        for name, model in seen.items():
            [instance] = model["instances"]
            begin, end, count, batch_size, _, _, _ = instance["current"]
            assert instance["name"] == f"{name}_0_0"
            assert end > begin and (count, batch_size) == (1, 1)


def test_who_waits_and_why_a_batch_was_small(
    server: Server, events: dict[str, EventModel]
) -> None:
    first = events["first"]
    with Watcher(server) as watcher:
        watcher.frame()
        with contextlib.ExitStack() as stack:
            hold = stack.enter_context(contextlib.ExitStack())
            hold.enter_context(first.held("execute"))
            stack.enter_context(sending(server, first, "first"))
            wait_until(
                lambda: watcher.models()["first"]["instances"][0]["current"] is not None,
                REQUEST_SECONDS_MAX,
                "it executes",
            )
            stack.enter_context(sending(server, first, "first", 6))
            server.wait_for_pending("first", 6)
            model = watcher.models()["first"]
            while model["queue"]["waiting"] < 6:
                model = watcher.models()["first"]
            assert model["queue"]["waits_for"] == "instance"
            assert model["queue"]["oldest_us"] >= 0
            hold.close()
        sizes: dict[int, set[str]] = {}
        rows = 0
        while rows < 7:
            model = watcher.models()["first"]
            reasons = [reason for reason, _ in model["closed"]]
            for _, _, count, batch_size, busy, waited, bits in model["instances"][0]["ended"]:
                assert busy > 0 and waited >= 0
                rows += batch_size
                names = {name for bit, name in enumerate(reasons) if bits & 1 << bit}
                sizes.setdefault(batch_size if count == 1 else 0, set()).update(names)
        closed = dict(model["closed"])
        assert closed["max_size"] == 1 and closed["instance_idle"] >= 2
        assert set.union(*sizes.values()) == {"max_size", "instance_idle"}
        assert model["inferences"] >= 7 and model["queue"]["waiting"] == 0


def test_errors_are_counted_by_kind(server: Server, events: dict[str, EventModel]) -> None:
    with Watcher(server) as watcher:
        before = dict(watcher.models()["third"]["unexecuted"])["invalid"]
        body = events["third"].request()
        body["inputs"][0].update(shape=[1, 2], data=[1, 2])
        assert server.infer("third", body).status == 400
        wait_until(
            lambda: dict(watcher.models()["third"]["unexecuted"])["invalid"] > before,
            REQUEST_SECONDS_MAX,
            "the request is counted",
        )


def test_without_the_flag_the_paths_are_unknown(
    start_server: StartServer, events: dict[str, EventModel]
) -> None:
    with start_server(events["first"].folder.parent) as server:
        server.wait_until_ready()
        unknown = server.get("/nothing")
        for path in ["/dashboard", "/dashboard/", "/dashboard/events"]:
            reply = server.get(path)
            assert (reply.status, reply.body) == (404, unknown.body)
            assert reply.headers["Content-Type"] == unknown.headers["Content-Type"]


def test_the_page_says_nothing_of_the_server(server: Server) -> None:
    reply = server.get("/dashboard")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    for name in ("first", "third", str(server.http_port)):
        assert f'"{name}"'.encode() not in reply.body
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    known = {"If-None-Match": reply.headers["ETag"]}
    assert server.request("GET", "/dashboard", headers=known).status == 304


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/events"])
def test_only_the_names_of_the_server_are_answered(
    start_server: StartServer, tmp_path: pathlib.Path, path: str
) -> None:
    """A site whose name resolves to this server can't read the page or the stream, but added
    names can."""
    with start_server(tmp_path, FLAG, "--dashboard-host=models.example") as server:
        server.wait_until_ready()

        def status(host: str, **more: str) -> int:
            connection = http.client.HTTPConnection(
                "127.0.0.1", server.http_port, timeout=REQUEST_SECONDS_MAX
            )
            with contextlib.closing(connection):
                connection.request("GET", path, headers={**HEADER, "Host": host, **more})
                return connection.getresponse().status

        own = ["localhost", f"LOCALHOST:{server.http_port}", "127.0.0.1", "[::1]:1", "10.9.8.7"]
        for host in [*own, socket.gethostname(), "models.example", "Models.example:443"]:
            assert status(host) == 200, host
            assert status("localhost", Origin=f"http://{host}") == 200, host
        for host in ["site.example", "localhost.site.example:8000", "a.models.example", "x"]:
            assert status(host) == 403, host
            assert status("localhost", Origin=f"https://{host}") == 403, host
        assert status("localhost", Origin="null") == 403
        # The endpoints for clients accept any host name, as Triton's do.
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
        with contextlib.closing(connection):
            connection.request("GET", "/v2", headers={"Host": "site.example"})
            assert connection.getresponse().status == 200


@pytest.mark.parametrize("value", ["", "http://a", "a:8000", "a b"])
def test_a_wrong_name_ends_the_start(
    start_server: StartServer, tmp_path: pathlib.Path, value: str
) -> None:
    """The error explains what a host name is."""
    with start_server(tmp_path, FLAG, f"--dashboard-host={value}") as server:
        assert server.wait_for_exit() == 1
        assert "expected a host name without scheme and port" in server.log()


def test_a_restricted_stream_needs_the_key(
    start_server: StartServer, events: dict[str, EventModel]
) -> None:
    rule = "--http-restricted-api=statistics,model-repository:admin-key=secret"
    with start_server(events["first"].folder.parent, FLAG, rule) as server:
        server.wait_until_ready()
        with Watcher(server) as watcher:
            assert watcher.response.status == 403
            text = json.loads(watcher.response.read())["error"]
            assert text == "This API is restricted, expecting header 'admin-key'"
        with Watcher(server, {"admin-key": "secret"}) as watcher:
            assert watcher.response.status == 200
            assert "first" in watcher.models()
        assert server.get("/dashboard").status == 200


def test_watchers_are_limited_and_leave(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(Watcher(server)) for _ in range(WATCHERS_MAX)]
        assert all(one.response.status == 200 for one in watchers)
        with Watcher(server) as refused:
            assert refused.response.status == 503
            text = json.loads(refused.response.read())["error"]
            assert text == "the dashboard has 16 watchers, which is the maximum"
        assert all(one.frame()["models"] for one in watchers)

    def has_room() -> bool:
        with Watcher(server) as watcher:
            return watcher.response.status == 200

    wait_until(has_room, REQUEST_SECONDS_MAX, "the watchers have left")


def test_a_watcher_does_not_hold_up_the_end(
    start_server: StartServer, events: dict[str, EventModel]
) -> None:
    timeout = "--exit-timeout-secs=30"
    with start_server(events["first"].folder.parent, FLAG, timeout) as server:
        server.wait_until_ready()
        with Watcher(server) as watcher:
            watcher.frame()
            server.terminate()
            while watcher.next() is not None:
                pass
            assert server.wait_for_exit() == 0
        assert "Timeout 27: Found" not in server.log()


def test_the_models_in_memory_are_told_with_reasons(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    for name in ("one", "two"):
        write_identity(tmp_path / "models", name)
    budget = MODEL_BYTES + MODEL_BYTES // 2
    with serving(start_server, tmp_path / "models", FLAG, budget=budget) as server:
        assert value_of(infer(server, "one")) == 7
        assert value_of(infer(server, "two")) == 7
        with Watcher(server) as watcher:
            assert watcher.next() == ("hello", {"model_control": True, "period_ms": 500})
            changes: list[list[Any]] = []
            latest: dict[str, Any] = {}

            def are_complete() -> bool:
                event = watcher.next()
                assert event is not None
                if event[0] in ("history", "sample") and event[1]["residency"]:
                    latest.update(event[1]["residency"])
                    changes.extend(latest["changes"])
                return len(changes) >= 6

            wait_until(are_complete, REQUEST_SECONDS_MAX, "the changes are told")
    assert [(model, kind, reason) for _, model, kind, _, reason in changes] == [
        ("one", "load", "a request needs it"),
        ("one", "loaded", ""),
        ("one", "unload", "makes room for 'two'"),
        ("one", "unloaded", ""),
        ("two", "load", "a request needs it"),
        ("two", "loaded", ""),
    ]
    assert [size for *_, size, _ in changes] == [MODEL_BYTES] * 6
    times = [at for at, *_ in changes]
    assert times == sorted(times) and times[-1] <= latest["at_ms"]
    assert (latest["used"], latest["limit"]) == (MODEL_BYTES, budget)


def test_a_reload_shows_the_new_version(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    model = EventModel(tmp_path / "models", "changing", ONE_INSTANCE)
    explicit = ("--model-control-mode=explicit", "--load-model=changing")
    with start_server(tmp_path / "models", FLAG, *explicit) as server, contextlib.ExitStack() as stack:
        server.wait_until_ready()
        watcher = stack.enter_context(Watcher(server))
        assert watcher.next() == ("hello", {"model_control": True, "period_ms": 500})
        assert server.infer("changing", model.request()).status == 200
        wait_until(
            lambda: watcher.models()["changing"]["inferences"] == 1, REQUEST_SECONDS_MAX, "it is counted"
        )
        assert server.request("POST", "/v2/repository/models/changing/unload", b"{}").status == 200
        wait_until(lambda: not watcher.models(), REQUEST_SECONDS_MAX, "it is gone")
        assert server.request("POST", "/v2/repository/models/changing/load", b"{}").status == 200
        wait_until(lambda: "changing" in watcher.models(), REQUEST_SECONDS_MAX, "it is back")
        ended: list[Any] = []

        def is_seen() -> bool:
            assert server.infer("changing", model.request()).status == 200
            ended.extend(watcher.models()["changing"]["instances"][0]["ended"])
            return bool(ended)

        wait_until(is_seen, REQUEST_SECONDS_MAX, "its executions are recorded")


def test_a_frame_has_the_tokens_of_generation(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Only the model that a client of OpenAI's API used has them."""
    with open_door(start_server, tmp_path, FLAG) as door, Watcher(door.server) as watcher:
        assert all(model["generation"] is None for model in watcher.models().values())
        assert door.post(CHAT, chat("one two three", stream=True)).status == 200
        while (models := watcher.models())["vllm_model"]["generation"] is None:
            pass
        generation = models["vllm_model"]["generation"]
        assert generation["tokens"] >= 3 and sum(generation["first"]) == 1
        assert len(generation["first"]) == len(generation["first_bounds_s"]) + 1
        assert models["python_model"]["generation"] is None
