"""Tests of `galatea simulate`, which shows what the scheduler would do with recorded traffic."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import pytest

from server import Program

pytestmark = pytest.mark.galatea_only

MS = 1_000_000
CONFIG = {
    "name": "m",
    "backend": "identity",
    "max_batch_size": 4,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    "instance_group": [{"name": "m_0", "count": 1, "kind": "KIND_CPU"}],
    "dynamic_batching": {},
}


def header(**changes: Any) -> dict[str, Any]:
    """The first line of a file."""
    return {"galatea_traffic": 1, "model": "m", "version": 1, "config": CONFIG, **changes}


def lines() -> list[dict[str, Any]]:
    """One request per millisecond, which takes 2 ms alone and 3 ms with three others."""
    executions: list[dict[str, Any]] = [
        {"execution": number, "duration_ns": (2 if rows == 1 else 3) * MS, "rows": rows}
        for number, rows in enumerate([1, 4] * 4)
    ]
    requests = [{"at_ns": number * MS, "rows": 1} for number in range(1000)]
    return [header(), *executions, *requests]


def write(path: pathlib.Path, content: list[dict[str, Any]]) -> pathlib.Path:
    """Writes a traffic file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    return path


@pytest.fixture
def traffic(tmp_path: pathlib.Path) -> pathlib.Path:
    """A traffic file."""
    return write(tmp_path / "traffic.jsonl", lines())


def run(program: Program, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command until it ends."""
    line = [str(program.path), "simulate", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def results(program: Program, *arguments: object) -> dict[str, Any]:
    """The document that it prints."""
    done = run(program, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def test_the_recorded_configuration_and_other_settings(
    program: Program, traffic: pathlib.Path
) -> None:
    """One instance with batches keeps up. Without batches, it doesn't, but two instances do."""
    found = results(program, traffic, "--max-batch=0")
    assert (found["model"], found["requests"], found["executions"]) == ("m", 1000, 8)
    assert found["configured"]["max_batch"] == 4
    assert found["configured"]["latency_ms"]["p99"] < 6
    assert found["configured"]["seconds"] == pytest.approx(1.0, rel=0.01)
    alone = found["simulated"]
    assert alone["batches"] == {"1": 1000} and alone["seconds"] == pytest.approx(2.0, rel=0.01)
    both = results(program, traffic, "--max-batch=0", "--instances=2")["simulated"]
    assert both["seconds"] == pytest.approx(1.0, rel=0.01)
    assert both["busy_instances"] == pytest.approx(2.0, rel=0.02)
    shared = results(program, traffic, "--max-batch=0", "--instances=2", "--processors=1")
    assert shared["simulated"]["seconds"] == pytest.approx(2.0, rel=0.01)


def test_more_load_is_refused_by_queues_and_deadlines(
    program: Program, traffic: pathlib.Path
) -> None:
    """A bounded queue refuses requests, and an unbounded one causes late responses."""
    load = ["--load=3", "--deadline=8000"]
    endless = results(program, traffic, *load)["simulated"]
    assert endless["refused"] == 0 and endless["late"] > 1000
    bound = results(program, traffic, *load, "--queue-size=4")["simulated"]
    assert bound["refusals"]["queue_full"] == bound["refused"] > 500
    assert bound["in_time"] > endless["in_time"]
    timed = results(program, traffic, *load, "--timeout=3000")["simulated"]
    assert timed["refusals"]["queue_timeout"] > 500
    deadlines = results(program, traffic, "--load=3", "--objective=8000")["simulated"]
    assert deadlines["refusals"]["too_late"] > 500 and deadlines["late"] < 30
    assert deadlines["scheduler"] == "deadlines 8000 µs"
    assert deadlines["goodput"] > 0.9 * 4 / 0.003


def test_delays_and_preferred_sizes_make_batches(program: Program, traffic: pathlib.Path) -> None:
    """They are visible in the sizes, and in the reasons why batches are closed."""
    options = ["--load=0.5", "--instances=4"]
    delayed = results(program, traffic, *options, "--delay=5000")["simulated"]
    assert delayed["mean_batch"] > 2.5 and delayed["closed"]["delay"] > 100
    preferred = results(program, traffic, *options, "--delay=5000", "--preferred=2")["simulated"]
    assert preferred["closed"]["preferred"] > 400


def test_a_configuration_file_replaces_the_recorded_one(
    program: Program, traffic: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """It doesn't need the settings that a server completes."""
    config = tmp_path / "config.pbtxt"
    config.write_text("max_batch_size: 2 instance_group [ { count: 3 } ] dynamic_batching { }")
    found = results(program, traffic, "--config", config)["simulated"]
    assert (found["instances"], found["max_batch"]) == (3, 2)
    delay = "dynamic_batching { max_queue_delay_microseconds: 700 }"
    config.write_text("max_batch_size: 2 " + delay)
    found = results(program, traffic, "--config", config)["simulated"]
    assert (found["instances"], found["scheduler"]) == (1, "delay 700 µs")
    objective = 'parameters { key: "latency_objective_us" value { string_value: "8000" } }'
    config.write_text("max_batch_size: 2 dynamic_batching { } " + objective)
    found = results(program, traffic, "--config", config, "--load=3")["simulated"]
    assert found["scheduler"] == "deadlines 8000 µs" and found["refusals"]["too_late"] > 500
    # A response after the objective is late. No execution takes less than 2 ms.
    config.write_text("max_batch_size: 2 dynamic_batching { } " + objective.replace("8000", "1000"))
    found = results(program, traffic, "--config", config)["simulated"]
    assert found["in_time"] == 0 and found["late"] > 0
    config.write_text("max_batch_size: two")
    done = run(program, traffic, "--config", config)
    assert done.returncode == 1 and "config.pbtxt" in done.stderr


def waiting(config: dict[str, Any], *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests that arrive together and take 10 ms each, one after the other."""
    return [
        header(config={**CONFIG, "max_batch_size": 1, "dynamic_batching": config}),
        {"execution": 1, "duration_ns": 10 * MS, "rows": 1},
        *({"at_ns": 0, "rows": 1, **request} for request in requests),
    ]


def test_requests_keep_their_deadlines_timeouts_and_priorities(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """An option for deadlines never makes one later."""
    path = write(tmp_path / "deadlines", waiting({}, *[{"deadline_ns": 15 * MS}] * 4))
    for options, in_time in [((), 1), (["--deadline=25000"], 1), (["--deadline=5000"], 0)]:
        found = results(program, path, *options)["simulated"]
        assert (found["in_time"], found["late"]) == (in_time, 4 - in_time)
    # A request can only shorten the time.
    policy = {"allow_timeout_override": True, "default_timeout_microseconds": 1_000_000}
    timed = waiting({"default_queue_policy": policy}, *[{"timeout_ns": 15 * MS}] * 4)
    found = results(program, write(tmp_path / "timeouts", timed))["configured"]
    assert (found["in_time"], found["refusals"]) == (2, {"queue_timeout": 2})
    assert found["refused_at_once"] == 0
    levels = {"priority_levels": 2, "default_priority_level": 2}
    urgent = {"priority": 1, "deadline_ns": 25 * MS}
    path = write(tmp_path / "priorities", waiting(levels, {}, {}, {}, urgent))
    assert results(program, path)["configured"]["late"] == 0
    full = {**levels, "priority_queue_policy": {"1": {"max_queue_size": 50}}}
    path = write(tmp_path / "levels", waiting(full, {}, *[{"priority": 1}] * 3))
    found = results(program, path, "--queue-size=1")
    assert (found["configured"]["refused"], found["simulated"]["refused"]) == (0, 2)
    assert found["simulated"]["refused_at_once"] == 2


def test_a_recording_is_repeated_with_its_own_gaps(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """The time begins with the first request, whenever that was."""
    content = [
        header(),
        {"execution": 1, "duration_ns": 2 * MS, "rows": 1},
        *({"at_ns": at * MS, "rows": 1} for at in (105, 115)),
    ]
    path = write(tmp_path / "t", content)
    for options, count, seconds in [
        ((), 2, 0.012),
        (["--repeat=3"], 6, 0.042),
        (["--load=2"], 4, 0.0145),
        (["--load=0.5"], 2, 0.022),
    ]:
        found = results(program, path, *options)["simulated"]
        assert (found["in_time"], found["seconds"]) == (count, pytest.approx(seconds, rel=1e-3))


def test_the_recorded_server_is_shown_as_it_was(program: Program, tmp_path: pathlib.Path) -> None:
    """Its latencies, batches and refusals, from several files, and the number of lost lines."""
    executed = {"batch": 2, "close": "delay", "instance": "m_0", "execution": 7}
    content = [
        header(instances=["m_0_0", "m_0_1"]),
        {"at_ns": 0, "rows": 1, "queue_ns": 3 * MS, "compute_ns": 4 * MS, **executed},
        {"at_ns": MS, "rows": 1, "queue_ns": 2 * MS, "compute_ns": 4 * MS, **executed},
        {"execution": 7, "duration_ns": 4 * MS, "rows": 2, "close": "delay"},
        {"at_ns": 2 * MS, "rows": 1, "status": "queue_full", "queue_ns": 0},
        {"lost": 3},
    ]
    late = {"at_ns": 9 * MS, "rows": 1, "status": "queue_timeout", "queue_ns": 5}
    paths = [
        write(tmp_path / "a", content),
        write(tmp_path / "b", [header(instances=["m_0_0", "m_0_1"]), late]),
    ]
    found = results(program, *paths, "--deadline=6500")
    assert (found["requests"], found["executions"], found["lost"]) == (4, 1, 3)
    assert (found["configured"]["instances"], found["learned"]) == (2, {"2": 1})
    recorded = found["recorded"]
    assert (recorded["in_time"], recorded["late"], recorded["seconds"]) == (1, 1, 0.007)
    assert recorded["refusals"] == {"queue_full": 1, "queue_timeout": 1}
    assert (recorded["refused"], recorded["refused_at_once"]) == (2, 1)
    assert (recorded["batches"], recorded["closed"]) == ({"2": 1}, {"delay": 1})
    assert (recorded["latency_ms"]["max"], recorded["busy_instances"]) == (7, pytest.approx(4 / 7))
    assert "3 more are lost" in run(program, *paths).stdout


def test_requests_have_their_rows(program: Program, tmp_path: pathlib.Path) -> None:
    """Two of three rows don't fit into a batch of four."""
    content = [
        header(),
        {"duration_ns": 2 * MS, "rows": 1},
        {"duration_ns": 6 * MS, "rows": 3},
        *({"at_ns": 0, "rows": 3} for _ in range(2)),
    ]
    found = results(program, write(tmp_path / "t", content))["configured"]
    assert (found["batches"], found["seconds"]) == ({"3": 2}, pytest.approx(0.012))


def test_busy_instances_slow_each_other_as_recorded(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """An execution that runs alongside another takes as long as such executions took."""
    content = [
        header(instances=["m_0_0", "m_0_1"]),
        *({"duration_ns": 2 * MS, "rows": 1, "busy": 1} for _ in range(20)),
        *({"duration_ns": 5 * MS, "rows": 1, "busy": 2} for _ in range(20)),
        *({"at_ns": at * MS, "rows": 1} for at in [0, 10, 20, 30, 40, 40]),
    ]
    found = results(program, write(tmp_path / "t", content), "--max-batch=0")["simulated"]
    assert found["seconds"] == pytest.approx(0.045)
    assert found["busy_instances"] == pytest.approx((5 * 2 + 5) / 45)


def test_a_recording_may_have_no_configuration(program: Program, tmp_path: pathlib.Path) -> None:
    """Each request is then alone. There are as many instances on GPUs as there are GPUs."""
    content = lines()
    del content[0]["config"]
    found = results(program, write(tmp_path / "t", content))["configured"]
    assert (found["scheduler"], found["batches"]) == ("no batcher", {"1": 1000})
    group = [{"count": 2, "kind": "KIND_GPU", "gpus": [0, 3]}]
    content[0]["config"] = {**CONFIG, "instance_group": group}
    found = results(program, write(tmp_path / "t", content))["configured"]
    assert (found["instances"], found["scheduler"]) == (4, "delay 0 µs")


def test_shapes_that_differ_share_no_batch(program: Program, tmp_path: pathlib.Path) -> None:
    """Longer requests take as long as they did in the recording."""
    content = [
        header(variable=["x:0"]),
        {"execution": 1, "duration_ns": 2 * MS, "rows": 1, "length": 10},
        {"execution": 2, "duration_ns": 8 * MS, "rows": 1, "length": 100},
        *({"at_ns": 0, "rows": 1, "dims": [dim], "length": dim} for dim in [10, 10, 100, 10]),
    ]
    found = results(program, write(tmp_path / "t", content))["configured"]
    assert found["executions"] == 4 and found["closed"]["shape"] == 2
    assert found["seconds"] == pytest.approx(0.002 * 3 + 0.008)


def test_the_table_has_what_people_look_for(program: Program, traffic: pathlib.Path) -> None:
    """Three columns, and a histogram."""
    done = run(program, traffic, "--instances=2")
    assert (done.returncode, done.stderr) == (0, "")
    head = next(line for line in done.stdout.splitlines() if "recorded  " in line)
    assert head.split() == ["recorded", "simulated", "with", "options"]
    for name in ["goodput/s", "p99 ms", "mean batch", "instance_idle", "batches, with options"]:
        assert name in done.stdout


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "it is empty"),
        ([{"at_ns": 1, "rows": 1}], "line 1: the first line of a file of traffic"),
        ([header(galatea_traffic=9)], "line 1: it has version 9 of the format, not 1"),
        ([header()], "no request to model 'm' is recorded"),
        ([header(), {"at_ns": 1, "rows": 1}], "no execution is recorded"),
        ([header(), {"at_ns": "x", "rows": 1}], "line 2: 'at_ns' is not a number"),
        (
            [header(config={**CONFIG, "dynamic_batching": None, "sequence_batching": {}}),
             {"at_ns": 1, "rows": 1}, {"duration_ns": 1, "rows": 1}],
            "sequence",
        ),
        ([header(config={"max_batch_size": "x"}), {"at_ns": 1, "rows": 1},
          {"duration_ns": 1, "rows": 1}], "the recorded configuration"),
    ],
)
def test_what_is_no_recording_is_refused(
    program: Program, tmp_path: pathlib.Path, content: list[dict[str, Any]], expected: str
) -> None:
    """The error names the line."""
    done = run(program, write(tmp_path / "t", content), "--json")
    assert done.returncode == 1 and expected in done.stderr, done
    assert expected in json.loads(done.stdout)["error"]


def closed_loop(clients: int) -> list[dict[str, Any]]:
    """Requests from clients that wait: each takes 10 ms, and the responses alternate. The server
    was a hundredth slower than its executions indicate, so a queue would grow if none of the
    clients waited."""
    latency, step = 11 * MS, 11 * MS // clients
    executed = {"close": "instance_idle", "instance": "m_0", "batch": 1}
    requests = [
        {"at_ns": number * (step + MS // 100), "rows": 1, "queue_ns": 0, "compute_ns": latency,
         "execution": number, **executed}
        for number in range(400)
    ]
    executions = [
        {"execution": number, "duration_ns": (step * 11) // 10, "rows": 1, "busy": 1}
        for number in range(400)
    ]
    return [header(config={**CONFIG, "dynamic_batching": None}), *executions, *requests]


def test_clients_that_waited_for_answers_do_so_when_simulated(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """Otherwise, a slightly lower speed would produce an endless queue."""
    path = write(tmp_path / "t", closed_loop(4))
    found = results(program, path, "--load=2")
    assert [found[name]["clients"] for name in ("recorded", "configured", "simulated")] == [4, 4, 8]
    assert found["configured"]["latency_ms"]["p99"] == pytest.approx(12.1, rel=0.05)
    assert found["simulated"]["latency_ms"]["p99"] == pytest.approx(24.2, rel=0.05)
    assert found["warning"] is None
    found = results(program, path, "--clients=1")
    assert found["simulated"]["clients"] == 1
    assert found["simulated"]["latency_ms"]["p50"] == pytest.approx(3.025, rel=0.05)


def test_a_simulation_far_from_the_recording_is_called_so(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """With the recorded times, the same recording produces a growing queue."""
    path = write(tmp_path / "t", closed_loop(4))
    found = results(program, path, "--clients=0")
    assert found["configured"]["latency_ms"]["p99"] > 30
    warning = "the simulation is far from what was recorded: p50 was 11.000 ms and is "
    assert found["warning"].startswith(warning), found["warning"]
    assert warning in run(program, path, "--clients=0").stdout
    assert warning not in run(program, path).stdout


def test_arguments_are_checked(program: Program, traffic: pathlib.Path) -> None:
    """A value outside its range ends the command with 2."""
    done = run(program, traffic, "--load=0")
    assert done.returncode == 2 and "'--load' takes a factor" in done.stderr
    done = run(program, traffic, "--objective=5", "--delay=5")
    assert done.returncode == 1 and "no effect with a latency objective" in done.stderr
    done = run(program, "missing")
    assert done.returncode == 1 and "can't read 'missing'" in done.stderr
