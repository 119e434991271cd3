"""Tests of instance groups: the number of requests that run at the same time, and where."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import make_models
import pytest

from conftest import StartServer
from events import EventModel
from latch import Latch
from server import Server, wait_until

pytestmark = pytest.mark.galatea_only

CONFIG = """\
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "1" }} }}
{groups}
"""


def write(repository: pathlib.Path, name: str, groups: str) -> None:
    """A model whose executions have their own threads, because they take some time."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(groups=groups))


def infer(server: Server, model: str) -> None:
    """One request."""
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
    assert server.infer(model, {"inputs": [tensor]}).status == 200


def scheduler(server: Server, model: str) -> dict[str, Any]:
    """The status page of the model's scheduler."""
    return server.get(f"/v2/models/{model}/scheduler").json()


def states(server: Server, model: str) -> dict[str, str]:
    """The state of each instance."""
    return {one["name"]: one["state"] for one in scheduler(server, model)["instances"]}


def waiting(server: Server, model: str) -> int:
    """The number of requests without an instance."""
    return sum(queue["waiting"] for queue in scheduler(server, model)["queues"])


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Threads that send requests."""
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        yield threads


# row: INST-03 INST-04 INST-05 INST-07 BEK-03
def test_instances_and_models_run_at_the_same_time(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Three of four requests to one model, and one of two to another, are executed at once."""
    three = "instance_group [ { count: 2 }, { name: 'last' count: 1 } ]"
    latches = [
        Latch(tmp_path, "three", three),
        Latch(tmp_path, "one", "instance_group [ { kind: KIND_AUTO } ]"),
    ]
    with start_server(tmp_path) as server, latches[0], latches[1]:
        server.wait_until_ready()
        free = {"three_0_0": "free", "three_0_1": "free", "last_0": "free"}
        assert states(server, "three") == free
        requests = [pool.submit(infer, server, "three") for _ in range(4)]
        requests += [pool.submit(infer, server, "one") for _ in range(2)]

        def all_busy() -> bool:
            return set(states(server, "three").values()) == {"busy"} and set(
                states(server, "one").values()
            ) == {"busy"}

        wait_until(all_busy, 60, "all instances of both models are busy")
        wait_until(lambda: waiting(server, "three") == waiting(server, "one") == 1, 60, "two wait")
        for latch in latches:
            latch.open()
        for one in requests:
            one.result()

        def is_counted() -> bool:
            return server.statistics("three")["execution_count"] == 4

        # The backend reports statistics after it has responded.
        wait_until(is_counted, 60, "four executions are counted")
        assert server.statistics("three")["inference_count"] == 4


# row: INST-08 BAPI-06
def test_passive_instances_get_no_requests(
    start_server: StartServer, tmp_path: pathlib.Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """They are loaded, but don't execute."""
    latch = Latch(tmp_path, "model", "instance_group [ { count: 1 }, { count: 2 passive: true } ]")
    with start_server(tmp_path, "--log-verbose=1") as server, latch:
        server.wait_until_ready()
        for name in ("model_0_0", "model_1_0", "model_1_1"):
            assert f"creating instance '{name}'" in server.log()
        requests = [pool.submit(infer, server, "model") for _ in range(3)]
        wait_until(lambda: waiting(server, "model") == 2, 60, "two requests wait")
        assert states(server, "model") == {"model_0_0": "busy"}
        latch.open()
        for one in requests:
            one.result()
        config = server.get("/v2/models/model/config").json()
        assert [one["passive"] for one in config["instance_group"]] == [False, True]
    # The shutdown doesn't wait for them.
    assert server.process.returncode == 0 or server.is_triton


def bound_threads(server: Server, name: str) -> list[str]:
    """The processors on which the threads of this name may run."""
    found = []
    for task in threads_named(server, name):
        (line,) = (
            line
            for line in (task / "status").read_text().splitlines()
            if line.startswith("Cpus_allowed_list")
        )
        found.append(line.split()[1])
    return found


def threads_named(server: Server, name: str) -> list[pathlib.Path]:
    """The /proc directories of the threads with this name."""
    found = []
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        # Other threads may end during this search, such as those that loaded models.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == name:
                found.append(task)
    return found


# row: CLI-21 INST-09
def test_a_host_policy_binds_threads(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """It binds the instance's thread, but not those of other models."""
    core = min(os.sched_getaffinity(0))
    write(tmp_path, "bound", "instance_group [ { count: 2 host_policy: 'here' } ]")
    write(tmp_path, "loose", "instance_group [ { host_policy: 'nowhere' } ]")
    with start_server(tmp_path, f"--host-policy=here,cpu-cores={core}-{core}") as server:
        server.wait_until_ready()
        # A thread names itself once it runs.
        for name in ("bound_0_0", "bound_0_1", "loose_0_0"):
            wait_until(lambda name=name: bound_threads(server, name) != [], 60, f"{name} runs")
        infer(server, "bound")
        assert bound_threads(server, "bound_0_0") == [str(core)]
        assert bound_threads(server, "bound_0_1") == [str(core)]
        everywhere = bound_threads(server, "loose_0_0")
        assert len(everywhere) == 1
        if len(os.sched_getaffinity(0)) > 1:
            assert everywhere != [str(core)]
        assert "host policy 'nowhere'" in server.log()


def test_a_wrong_host_policy_fails_its_models(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The server starts; policies that no model uses don't matter."""
    write(tmp_path, "far", "instance_group [ { host_policy: 'far' } ]")
    write(tmp_path, "single", "instance_group [ { host_policy: 'single' } ]")
    write(tmp_path, "free", "")
    policies = ("far,numa-node=x", "single,cpu-cores=3", "unused,cpu-cores=y")
    flags = [f"--host-policy={policy}" for policy in policies]
    with start_server(tmp_path, *flags, "--exit-on-error=false") as server:
        wait_until(lambda: "cpu-cores' format" in server.log(), 60, "the second model fails")
        wait_until(lambda: "Can't parse 'x' to integer" in server.log(), 60, "the first fails")
        wait_until(lambda: "successfully loaded 'free'" in server.log(), 60, "the third loads")
        server.wait_until_live()
        infer(server, "free")
        form = "'<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3"
        assert f"Invalid argument: host policy setting 'cpu-cores' format is {form}" in server.log()


@pytest.mark.skipif(
    not pathlib.Path("/sys/devices/system/node/node0").exists(), reason="needs NUMA nodes"
)
# row: CLI-21
def test_a_host_policy_binds_memory(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """It binds memory to a node, but no thread to processors."""
    write(tmp_path, "near", "instance_group [ { host_policy: 'here' } ]")
    with start_server(tmp_path, "--host-policy=here,numa-node=0") as server:
        wait_until(
            lambda: bound_threads(server, "near_0_0") != [] or "Unable to set NUMA memory policy" in server.log(),
            60,
            "near_0_0 runs, or its memory can't be bound",
        )
        if "Unable to set NUMA memory policy" in server.log():
            pytest.skip("needs the right to bind memory")
        server.wait_until_ready()
        infer(server, "near")
        (thread,) = threads_named(server, "near_0_0")
        maps = (thread / "numa_maps").read_text()
        assert " bind:0 " in maps
        assert os.sched_getaffinity(int(thread.name)) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ("instance_group [ { kind: KIND_GPU } ]", "no GPUs are available"),
        ("instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]", "specifies one or more GPUs"),
    ],
)
# row: CFG-14
def test_invalid_instance_groups(
    start_server: StartServer, tmp_path: pathlib.Path, groups: str, reason: str
) -> None:
    """The log names the field and the reason."""
    write(tmp_path, "model", groups)
    with start_server(tmp_path) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()


@pytest.mark.galatea_only  # In Triton the request waits forever.
def test_requests_to_passive_instances_are_refused(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The model doesn't prevent the server from starting, and no request waits."""
    write(tmp_path, "model", "instance_group [ { passive: true } ]")
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
        reply = server.infer("model", {"inputs": [tensor]})
        assert reply.status == 503
        assert "every instance of model 'model' is passive" in reply.error()


# row: CFG-29
def test_secondary_devices_are_shown_and_change_nothing(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """They are in the configuration, and the log says that no backend gets them."""
    devices = "secondary_devices [ { kind: KIND_NVDLA device_id: 3 } ]"
    write(tmp_path, "model", f"instance_group [ {{ kind: KIND_CPU {devices} }} ]")
    with start_server(tmp_path) as server:
        config = server.wait_until_ready().get("/v2/models/model/config").json()
        shown = config["instance_group"][0]["secondary_devices"]
        assert shown == [{"kind": "KIND_NVDLA", "device_id": "3"}]
        assert "'instance_group.secondary_devices' changes nothing" in server.log()


@pytest.mark.parametrize(("threads", "warns"), [("1", False), ("200", True)])
def test_more_threads_than_processors_are_logged(
    start_server: StartServer, tmp_path: pathlib.Path, threads: str, warns: bool
) -> None:
    """The model is served, and the log contains the number of threads."""
    make_models.write_models(tmp_path, make_models.TEST_MODELS, ["onnx_slow"])
    with (tmp_path / "onnx_slow" / "config.pbtxt").open("a") as config:
        config.write(
            f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}'
        )
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        assert ("threads busy" in server.log()) == warns


PREFERS_THREE = """
TRITONSERVER_Error*
TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes)
{
  (void)backend;
  return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 3, NULL, 0);
}
"""


# row: BAPI-13
def test_a_backend_has_a_default_number_of_instances(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This applies to models that don't specify a number."""
    EventModel(tmp_path, "three", source=PREFERS_THREE)
    EventModel(tmp_path, "two", "instance_group { count: 2 kind: KIND_CPU }", PREFERS_THREE)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        for name, count in (("three", 3), ("two", 2)):
            (group,) = server.get(f"/v2/models/{name}/config").json()["instance_group"]
            assert (group["kind"], group["count"]) == ("KIND_CPU", count)
