"""Tests of the order of loads, unloads and turns of Python models, in which both servers
agree."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib

import pytest
import tritonclient.grpc

from conftest import StartServer
from python_backend import interpreter_flag
from server import Program, Server, wait_until

SECONDS_MAX = 60
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group [ { kind: KIND_CPU count: 1 %s } ]
"""
#: Its load waits for a file, if it has one named `held`. Each execution is a turn, and waits for the
#: file `go` of the repository.
MODEL = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.folder = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        if os.path.exists(os.path.join(self.folder, self.name, "held")):
            with open(os.path.join(self.folder, self.name, "began"), "w"):
                pass
            while not os.path.exists(os.path.join(self.folder, self.name, "go")):
                time.sleep(0.01)  # sleep: polls until the test lets it go on

    def execute(self, requests):
        with open(os.path.join(self.folder, "turns.txt"), "a") as turns:
            turns.write(self.name[-1])
        while not os.path.exists(os.path.join(self.folder, "go")):
            time.sleep(0.01)  # sleep: polls until the test lets it go on
        tensors = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in tensors]
"""
#: Loads in a storm fail with these only.
STORM_TEXTS = (
    "unexpected miss in global map",
    "no version is available",
    "failed to poll from model repository",
)


def write(repository: pathlib.Path, name: str, group: str = "") -> pathlib.Path:
    """Creates a model, and returns its directory."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG % group)
    (folder / "1" / "model.py").write_text(MODEL)
    return folder


def flags(program: Program, *more: str) -> list[str]:
    """The test environment's interpreter; Triton has its own."""
    return [*([] if program.is_triton else [interpreter_flag()]), *more]


def order(server: Server, kind: str, model: str) -> tuple[int, str]:
    """Requests a load or an unload."""
    reply = server.request("POST", f"/v2/repository/models/{model}/{kind}", b"{}")
    return reply.status, reply.body.decode()


# row: MR-09
def test_an_unload_of_a_model_whose_load_waits_for_a_thread(
    start_server: StartServer, program: Program, tmp_path: pathlib.Path
) -> None:
    """The load's status is 200, and so is that of the following unload."""
    held = write(tmp_path, "held")
    (held / "held").touch()
    write(tmp_path, "waiting")
    settings = ["--model-control-mode=explicit", "--model-load-thread-count=1"]
    with (
        start_server(tmp_path, *flags(program, *settings)) as server,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        server.wait_until_ready()
        try:
            holds = pool.submit(order, server, "load", "held")
            wait_until((held / "began").exists, SECONDS_MAX, "the only thread is busy")
            load = pool.submit(order, server, "load", "waiting")
            if not program.is_triton:
                # The second one overtakes, and the thread remains busy. Triton's unload waits
                # for the load.
                overtaken = lambda: order(server, "unload", "waiting")[0] == 200 and load.done()
                wait_until(overtaken, SECONDS_MAX, "an unload ended the load")
            unload = pool.submit(order, server, "unload", "waiting")
        finally:
            (held / "go").touch()
        assert [one.result()[0] for one in (holds, load, unload)] == [200, 200, 200]


# row: MR-09
def test_a_storm_of_loads_and_unloads(
    start_server: StartServer, program: Program, tmp_path: pathlib.Path
) -> None:
    """Unloads succeed. Loads succeed, or fail with one of Triton's texts."""
    write(tmp_path, "m")
    settings = ["--model-control-mode=explicit", "--model-load-thread-count=2"]
    with (
        start_server(tmp_path, *flags(program, *settings)) as server,
        concurrent.futures.ThreadPoolExecutor(6) as pool,
    ):
        server.wait_until_ready()

        def orders(kind: str) -> list[tuple[str, int, str]]:
            return [(kind, *order(server, kind, "m")) for _ in range(8)]

        for replies in pool.map(orders, ["load", "unload"] * 3):
            for kind, status, text in replies:
                known = kind == "load" and any(
                    f"failed to load 'm', {one}" in text for one in STORM_TEXTS
                )
                assert status == 200 or known, (kind, status, text)
        assert order(server, "load", "m")[0] == 200
        assert server.get("/v2/models/m/ready").status == 200


# This is later than the release that the tests can use.
@pytest.mark.galatea_only
# row: MR-05
def test_names_that_mean_something_to_a_shell(
    start_server: StartServer, program: Program, tmp_path: pathlib.Path
) -> None:
    """A Python model with such a name is refused, and its name has no effect."""
    files = {"file:1/model.py": MODEL.encode()}
    settings = flags(program, "--model-control-mode=explicit")
    with start_server(tmp_path, *settings) as server:
        server.wait_until_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            config = json.dumps({"backend": "python"})
            client.load_model("plain.name-1 x", config=config, files=files)
            for character in ";|&$`<>()[]{}\"'*?~#!\\":
                text = "Invalid stub name: contains invalid characters"
                with pytest.raises(tritonclient.grpc.InferenceServerException, match=text):
                    client.load_model(f"a{character}b", config=config, files=files)


def turns(server: Server, repository: pathlib.Path, models: list[str], count: int) -> None:
    """Sends this many requests to each model, of which no more than one executes until all of them
    wait."""
    tensor = {"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    paths = [f"/v2/models/{model}/infer" for model in models] * count
    with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
        replies = [pool.submit(server.request, "POST", path, body) for path in paths]
        try:
            # The models' instances may already have taken a request each.
            waiting = (count - 1) * len(models)
            all_wait = lambda: sum(map(server.pending, models)) >= waiting
            wait_until(all_wait, SECONDS_MAX, "all requests wait")
        finally:
            (repository / "go").touch()
        assert [one.result().status for one in replies] == [200] * len(paths)


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ((1, 2), ["11211211211211211211", "21111211211211211211"]),
        ((1, 1), ["12121212121212121212", "21212121212121212121"]),
        ((1, 3), ["11112111211121112111", "21111111211121112111"]),
        ((3, 2), ["12221212212122121221", "21221212212122121221"]),
    ],
)
# row: RL-04
def test_the_turns_of_two_models(
    start_server: StartServer,
    program: Program,
    tmp_path: pathlib.Path,
    priorities: tuple[int, int],
    expected: list[str],
) -> None:
    """Models that share a resource take turns according to their priorities, from the
    beginning."""
    for number, priority in enumerate(priorities, 1):
        limiter = f"rate_limiter {{ resources {{ name: 'R' count: 1 }} priority: {priority} }}"
        write(tmp_path, f"m{number}", limiter)
    with start_server(
        tmp_path, *flags(program, "--rate-limit=execution_count", "--log-verbose=1")
    ) as server:
        server.wait_until_ready()
        turns(server, tmp_path, ["m1", "m2"], 20)
    # This depends on which of them gets a request first.
    assert (tmp_path / "turns.txt").read_text()[:20] in expected


# row: RL-03
def test_the_log_shows_how_much_there_is_of_a_resource(
    start_server: StartServer, program: Program, tmp_path: pathlib.Path
) -> None:
    """It shows the limit, whatever the models need."""
    for number, count in enumerate((4, 3), 1):
        limiter = f"rate_limiter {{ resources {{ name: 'R1' count: {count} }} }}"
        write(tmp_path, f"m{number}", limiter)
    settings = ["--rate-limit=execution_count", "--rate-limit-resource=R1:10", "--log-verbose=1"]
    with start_server(tmp_path, *flags(program, *settings)) as server:
        server.wait_until_ready()
        maps = server.log().split("Max Resource Map")[1:]
        shown = [one.split("Resource: R1")[1].split("Count: ")[1][:2] for one in maps]
        assert shown == ["10", "10"]
