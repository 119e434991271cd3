"""Tests of object stores that stall, refuse, or change during a read, and of full disks for
copies.

docs/testing.md lists these tests together with those in test_buckets.py. They need `moto_server`
too.
"""

from __future__ import annotations

import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

from buckets import BUCKET, proxy
from conftest import StartServer
from constant_models import added_value, constant_model
from faults import seen_by, small_disk
from server import wait_until
from test_buckets import (  # noqa: F401
    EXPLICIT,
    IDENTITY,
    POLL,
    S3,
    copies,
    load,
    pytestmark,
    store,
    surroundings,
    url,
)

SECONDS_MAX = 60


def test_a_store_that_stalls_delays_its_model_alone(
    start_server: StartServer, store: S3, copies: pathlib.Path  # noqa: F811
) -> None:
    """Other models serve and load in the meantime. The load completes once the store
    continues."""
    for name in ("first", "second"):
        store.put(f"stall/{name}/1/model.onnx", constant_model(4))
    with proxy(store) as between:
        address, environment = url(between.port, "stall"), surroundings(copies)
        flags = [EXPLICIT, "--load-model=first"]
        with start_server(address, *flags, environment=environment) as server:
            server.wait_until_ready()
            between.gate.clear()
            with ThreadPoolExecutor() as pool:
                loading = pool.submit(load, server, "second")
                wait_until(lambda: between.stalled > 0, SECONDS_MAX, "the store stalls")
                assert added_value(server, "first") == 4
                assert not loading.done()
                between.gate.set()
                assert loading.result().status == 200
            assert added_value(server, "second") == 4


def test_a_stalled_store_does_not_hold_the_end(
    start_server: StartServer, store: S3, copies: pathlib.Path  # noqa: F811
) -> None:
    """A server that is stopped while it waits for the store ends, and leaves no copy."""
    store.put("held/m/1/model.onnx", constant_model(4))
    with proxy(store) as between:
        address, environment = url(between.port, "held"), surroundings(copies)
        flags = [EXPLICIT, "--exit-timeout-secs=1"]
        with start_server(address, *flags, environment=environment) as server:
            server.wait_until_ready()
            between.gate.clear()
            loading = threading.Thread(target=lambda: ignore_end(server))
            loading.start()
            wait_until(lambda: between.stalled > 0, SECONDS_MAX, "the store stalls")
            server.stop()
            loading.join()
            between.gate.set()


def ignore_end(server: object) -> None:
    """A load whose server ends."""
    try:
        load(server, "m")
    except OSError:
        pass


def test_a_store_that_is_busy_is_asked_again(
    start_server: StartServer, store: S3, copies: pathlib.Path  # noqa: F811
) -> None:
    """503 is not a reason to give up immediately."""
    store.put("busy/m/1/model.onnx", constant_model(6))
    with proxy(store) as between:
        address, environment = url(between.port, "busy"), surroundings(copies)
        with start_server(address, EXPLICIT, environment=environment) as server:
            server.wait_until_ready()
            between.refusals = ["503 Slow Down"] * 3
            assert load(server, "m").status == 200
            assert between.refusals == []
            assert added_value(server, "m") == 6


def test_a_store_that_refuses_keeps_what_serves(
    start_server: StartServer, store: S3, copies: pathlib.Path  # noqa: F811
) -> None:
    """Polls that fail because access is forbidden are logged with the reason, and later polls
    see what has changed."""
    store.put("refuse/m/1/model.onnx", constant_model(1))
    with proxy(store) as between:
        address, environment = url(between.port, "refuse"), surroundings(copies)
        with start_server(address, *POLL, environment=environment) as server:
            server.wait_until_ready()
            between.refusals = ["403 Forbidden"] * 10_000
            told = lambda: "failed to poll model repository" in server.log()  # noqa: E731
            wait_until(told, SECONDS_MAX, "a poll is refused")
            assert "(permission: " in server.log()
            assert (added_value(server, "m"), server.is_ready()) == (1, True)
            store.put("refuse/m/1/model.onnx", constant_model(2))
            between.refusals = []
            wait_until(lambda: added_value(server, "m") == 2, SECONDS_MAX, "the new file serves")


def test_an_object_that_changes_while_it_is_read(
    start_server: StartServer, store: S3, copies: pathlib.Path  # noqa: F811
) -> None:
    """A copy never combines two versions of an object; a load after the change gets the
    complete new one."""
    path = "change/m/1/weights"
    old, new = (bytes([number]) * (40 << 20) for number in (1, 2))
    store.put("change/m/config.pbtxt", IDENTITY)
    store.put(path, old)
    with proxy(store) as between:
        address, environment = url(between.port, "change"), surroundings(copies)
        with start_server(address, EXPLICIT, environment=environment) as server:
            server.wait_until_ready()
            between.before_request = (f"GET /{BUCKET}/{path}", lambda: store.put(path, new))
            load(server, "m")
            assert between.before_request is None, "it has changed"
            if (reply := load(server, "m")).status != 200:
                raise AssertionError(reply)
            (copy,) = copies.iterdir()
            assert (copy / "1" / "weights").read_bytes() == new


def test_a_full_disk_under_the_copies(
    start_server: StartServer, store: S3, tmp_path: pathlib.Path  # noqa: F811
) -> None:
    """A load that fails for lack of space says so and leaves nothing behind, and other models
    serve and load."""
    for name in ("small", "other"):
        store.put(f"full/{name}/1/model.onnx", constant_model(8))
    store.put("full/large/config.pbtxt", IDENTITY)
    store.put("full/large/1/weights", bytes(4 << 20))
    disk = tmp_path / "disk"
    launcher = small_disk(disk, "1m")
    flags = [EXPLICIT, "--load-model=small"]
    environment = surroundings(disk)
    address = url(store.port, "full")
    with start_server(address, *flags, environment=environment, launcher=launcher) as server:
        server.wait_until_ready()
        for _ in range(3):
            reply = load(server, "large")
            assert reply.status == 400
            assert "/disk' has " in reply.error()
            assert "bytes left, and 4194304 are needed" in reply.error()
            assert added_value(server, "small") == 8
        # The configuration of the model that failed may remain.
        few = lambda: len(list(seen_by(server, disk).iterdir())) <= 2  # noqa: E731
        wait_until(few, SECONDS_MAX, "failed loads leave nothing")
        assert load(server, "other").status == 200
        assert added_value(server, "other") == 8
