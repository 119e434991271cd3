"""Tests of servers: options, start and stop, models, metadata, metrics and the log."""

from __future__ import annotations

import gc
import json
import pathlib
import subprocess
import sys
import threading

import galatea
import numpy
import pytest
from conftest import IDENTITY, ROOT, Start, array, write_model

SQUARE = """
backend: "square"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""


# row: DEP-05
def test_a_server_starts_tells_of_itself_and_stops(start: Start) -> None:
    server = start("add", server_id="mine")
    assert server.live() and server.ready()
    assert server.metadata()["name"] == "mine"
    assert "statistics" in server.metadata()["extensions"]
    with pytest.raises(galatea.InvalidArgumentError, match="Server already started"):
        server.start()
    server.stop()
    for call in (server.ready, server.stop, server.metrics, lambda: server.model("add")):
        with pytest.raises(galatea.InvalidArgumentError, match="Server not started"):
            call()
    # It can be started again.
    with server:
        assert server.ready()


def test_wrong_options_are_refused(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(galatea.InvalidArgumentError, match="Server not started"):
        galatea.Server().ready()
    for options in ({"server_id": 1}, {"model_repository": 1}, {"exit_timeout": "1"}):
        with pytest.raises(TypeError, match=next(iter(options))):
            galatea.Server(**{"model_repository": str(models), **options}).start()
    with pytest.raises(TypeError, match="no_option"):
        galatea.Server(no_option=1)
    with pytest.raises(AttributeError, match="no_option"):
        galatea.Options().no_option = 1
    with pytest.raises(galatea.InvalidArgumentError, match="Model repository must be specified"):
        galatea.Server(model_repository=None).start()
    with pytest.raises(galatea.InvalidArgumentError, match="must be specified"):
        galatea.Server().start()
    with pytest.raises(galatea.InternalError):
        galatea.Server(model_repository=str(tmp_path / "foo")).start()
    with pytest.raises(galatea.InvalidArgumentError, match="--no-such-flag"):
        galatea.Server(model_repository=str(models), flags=["--no-such-flag=1"]).start()


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"cache_config": {"local": {}, "redis": {}}}, "InvalidArgumentError", "single cache"),
        ({"host_policies": {"a": {"colour": "red"}}}, "UnsupportedError", "'colour'"),
        (
            {"model_load_device_limits": [
                galatea.ModelLoadDeviceLimit(galatea.InstanceGroupKind.CPU, 0, 0.5)]},
            "InvalidArgumentError",
            "got: CPU",
        ),
        (
            {"model_load_device_limits": [
                galatea.ModelLoadDeviceLimit(galatea.InstanceGroupKind.GPU, 0, 1.5)]},
            "InvalidArgumentError",
            "1.500000",
        ),
        ({"startup_models": ["*", "add"]}, "InvalidArgumentError", "Wildcard"),
    ],
)
def test_options_that_no_server_has(
    models: pathlib.Path, options: dict, error: str, text: str
) -> None:
    options = {
        "model_repository": str(models),
        "model_control_mode": galatea.ModelControlMode.EXPLICIT,
        **options,
    }
    with pytest.raises(getattr(galatea, error), match=text):
        galatea.Server(**options).start()


def test_options_reach_the_server(start: Start) -> None:
    server = start(
        "identity_fp32",
        strict_model_config=True,
        cache_config={"local": {"size": 1 << 20}},
        rate_limiter_mode=galatea.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[galatea.RateLimiterResource("R", 4, -1)],
        host_policies={"cpu": {"cpu-cores": "0-0"}},
        metrics_configuration={"": {"summary_latencies": "true"}},
        flags=["--memory-limit=1073741824"],
    )
    list(server.model("identity_fp32").infer(inputs={"INPUT0": array(1)}))
    assert "nv_inference_request_summary_us" in server.metrics()


def test_models_are_loaded_unloaded_and_listed(start: Start, tmp_path: pathlib.Path) -> None:
    server = start("add")
    models = server.models()
    assert models[("add", 1)].state == "READY"
    assert models["add"].version == -1 and models["add"].ready()
    assert ("identity_fp32", -1) in models
    assert list(server.models(exclude_not_ready=True)) == [("add", 1)]
    for key in ("none", ("add", 7)):
        with pytest.raises(KeyError, match="Unknown Model"):
            models[key]
    model = server.load("identity_fp32")
    assert model.ready()
    server.unload(model, wait_until_unloaded=True)
    assert not model.ready()
    assert server.models()[("identity_fp32", 1)].state == "UNAVAILABLE"
    config = json.dumps({"backend": "identity", "max_batch_size": 3, **_interface("INT32")})
    server.load("new", {"config": config, "file:1/model.x": b"content"})
    assert server.model("new").config()["max_batch_size"] == 3
    with pytest.raises(galatea.InternalError, match="'colour' with type 'BOOL'"):
        server.load("add", {"colour": True})
    with pytest.raises(galatea.InternalError, match="failed to load 'absent'"):
        server.load("absent")
    with pytest.raises(galatea.NotFoundError):
        server.model("absent").metadata()
    write_model(tmp_path, "other", IDENTITY % ("INT32", "INT32"))
    server.register_model_repository(str(tmp_path), {"other": "renamed"})
    assert server.load("renamed").ready()
    with pytest.raises(galatea.AlreadyExistsError):
        server.register_model_repository(str(tmp_path))
    server.unregister_model_repository(str(tmp_path))
    assert ("renamed", -1) not in server.models()
    with pytest.raises(galatea.UnavailableError, match="poll"):
        server.poll_model_repository()


def _interface(kind: str) -> dict:
    tensor = {"data_type": f"TYPE_{kind}", "dims": [-1]}
    return {"input": [{"name": "INPUT0", **tensor}], "output": [{"name": "OUTPUT0", **tensor}]}


def test_a_repository_is_polled_when_the_program_says(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path, "first", IDENTITY % ("INT32", "INT32"))
    options = galatea.Options(str(tmp_path), model_control_mode=galatea.ModelControlMode.POLL)
    with galatea.Server(options) as server:
        write_model(tmp_path, "second", IDENTITY % ("INT32", "INT32"))
        assert not server.model("second").ready()
        server.poll_model_repository()
        assert server.model("second").ready()
        with pytest.raises(galatea.UnavailableError):
            server.load("first")


def test_a_model_tells_of_itself(start: Start) -> None:
    server = start("add", "counter")
    model = server.model("add")
    assert str(model) == "{'name': 'add', 'version': -1, 'state': None}"
    inputs = sorted(model.metadata()["inputs"], key=lambda tensor: tensor["name"])
    assert inputs[0] == {"name": "A", "datatype": "FP32", "shape": [-1, 2]}
    assert model.batch_properties() == galatea.ModelBatchFlag.FIRST_DIM
    assert model.transaction_properties() == galatea.ModelTxnPropertyFlag.ONE_TO_ONE
    decoupled = server.model("counter").transaction_properties()
    assert decoupled == galatea.ModelTxnPropertyFlag.DECOUPLED
    list(model.infer(inputs={"A": array(1, 2), "B": array(3, 4)}))
    [statistics] = model.statistics()["model_stats"]
    assert statistics["inference_count"] == 1
    assert model.config()["max_batch_size"] == 4
    with pytest.raises(galatea.InvalidArgumentError, match="version 2"):
        model.config(2)
    assert not server.model("add", 3).ready()


def test_metrics_of_server_and_program(start: Start) -> None:
    server = start("add")
    family = galatea.MetricFamily(galatea.MetricKind.COUNTER, "calls_total", "Calls")
    metric = galatea.Metric(family, {"who": "me"})
    metric.increment(2.5)
    assert metric.value == 2.5 and metric.kind == galatea.MetricKind.COUNTER
    with pytest.raises(galatea.InvalidArgumentError, match="non-negative"):
        metric.increment(-1)
    with pytest.raises(galatea.UnsupportedError):
        metric.set_value(1)
    assert 'calls_total{who="me"} 2.5' in server.metrics()
    gauge = galatea.Metric(galatea.MetricFamily(galatea.MetricKind.GAUGE, "level", "Level"))
    gauge.set_value(7)
    gauge.increment(-9)
    assert gauge.value == -2
    family = galatea.MetricFamily(galatea.MetricKind.HISTOGRAM, "sizes", "Sizes")
    galatea.Metric(family, buckets=[1, 2]).observe(1.5)
    with pytest.raises(galatea.InvalidArgumentError):
        galatea.MetricFamily(galatea.MetricKind.GAUGE, "calls_total", "Calls")
    assert "nv_inference_request_success" in server.metrics()
    del metric
    assert "calls_total" not in server.metrics()


def test_the_log_is_the_programs_too(tmp_path: pathlib.Path, start: Start) -> None:
    file = tmp_path / "server.log"
    try:
        start("add", log_file=str(file), log_verbose=1, log_format=galatea.LogFormat.ISO8601)
        galatea.LogMessage(galatea.LogLevel.ERROR, "a bad feeling")
        text = file.read_text()
        assert "successfully loaded 'add'" in text
        [line] = [line for line in text.splitlines() if "a bad feeling" in line]
        assert "test_server.py:" in line and " E " in line, line
    finally:
        galatea._galatea.set_log(file="", info=False, warn=False, error=False, verbose=0)


def test_several_servers_and_forgotten_ones(models: pathlib.Path) -> None:
    options = {
        "model_repository": str(models),
        "model_control_mode": galatea.ModelControlMode.EXPLICIT,
        "startup_models": ["add"],
    }
    servers = [galatea.Server(**options, server_id=str(number)).start() for number in range(3)]
    assert [server.metadata()["name"] for server in servers] == ["0", "1", "2"]
    model = servers[1].model("add")
    servers[0].stop()
    del servers
    gc.collect()
    # The model keeps its server alive.
    [response] = model.infer(inputs={"A": array(1, 2), "B": array(3, 4)})
    numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))


def test_a_server_stops_when_its_requests_have_ended(start: Start) -> None:
    server = start("counter")
    responses = server.model("counter").infer(
        inputs={"COUNT": numpy.array([[1 << 20]], numpy.int32)}, raise_on_error=False
    )
    next(responses)
    with pytest.raises(galatea.InternalError, match="Exit timeout expired"):
        _stop_within(server, 0)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    responses.cancel()
    last = list(responses)[-1]
    assert last.final
    stopping.join()
    with pytest.raises(galatea.InvalidArgumentError, match="Server not started"):
        server.live()


def _stop_within(server: galatea.Server, seconds: int) -> None:
    """Stops a server whose options give it more time."""
    import ctypes

    library = ctypes.CDLL(galatea._galatea.__file__)
    set_timeout = library.TRITONSERVER_ServerSetExitTimeout
    set_timeout.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    set_timeout(server._ptr(), seconds)
    try:
        server.stop()
    finally:
        set_timeout(server._ptr(), 30)


def test_a_compiled_backend_finds_the_server(tmp_path: pathlib.Path, start: Start) -> None:
    version = write_model(tmp_path, "square", SQUARE)
    library = version / "libtriton_square.so"
    source = ROOT / "examples/backends/square.c"
    includes = [f"-I{ROOT / 'include'}", f"-I{source.parent}"]
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", *includes, source, "-o", library]
    subprocess.run(command, check=True)
    server = start("square", model_repository=str(tmp_path))
    responses = server.model("square").infer(inputs={"IN": numpy.array([3], numpy.int32)})
    outputs = [response.outputs["OUT"] for response in responses if response.outputs]
    assert [numpy.asarray(output).tolist() for output in outputs] == [[3], [3], [3]]


def test_models_in_python_get_the_programs_interpreter(start: Start) -> None:
    server = start("describe")
    parameters = {"int": 3, "float": 0.5, "bool": False, "string": "text"}
    inputs = {"IN": numpy.array([1], numpy.float32)}
    [response] = server.model("describe").infer(inputs=inputs, parameters=parameters)
    assert json.loads(response.outputs["PARAMETERS"].to_string_array()[0]) == parameters
    assert response.outputs["PYTHON"].to_string_array()[0] == sys.executable
