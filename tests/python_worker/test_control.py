"""Tests of model control, metrics and the log."""

import base64
import json
import struct

import pytest
from harness import CONTROL, LOG, METRIC, REPLY, request, text
from test_failures import model


def answer(worker, kind, value=None, error=None):
    """Reads a question of a given kind and replies to it; returns the question."""
    cursor = worker.expect_b(kind)
    number, question = cursor.take("Q"), json.loads(cursor.text())
    cursor.end()
    if number:
        if error:
            worker.send_b(REPLY, struct.pack("<QBB", number, 0, error[0]) + text(error[1]))
        else:
            worker.send_b(REPLY, struct.pack("<QB", number, 1) + text(json.dumps(value)))
    return question, bool(number)


def ask(load, code, **options):
    """A worker whose model runs `code`; its output is passed as a parameter."""
    worker = load(model(f"""say = []
                try:
                    {code}
                except pb_utils.TritonModelException as error:
                    say = str(error)
                return [pb_utils.InferenceResponse(parameters={{"say": str(say)}})]"""),
                  **options)
    worker.send_requests(request(1, []))
    return worker


def said(worker):
    parameters = worker.result()["requests"][0]["response"]["parameters"]
    return json.loads(parameters)["say"]


def test_load_model(load):
    worker = ask(load, 'pb_utils.load_model("n", config="{}", files={"file:1/a": b"\\xff"})')
    assert answer(worker, CONTROL, {}) == (
        {"op": "load_model", "name": "n", "parameters": {"config": "{}"},
         "files": {"file:1/a": base64.b64encode(b"\xff").decode()}}, True)
    assert said(worker) == "[]"


def test_load_model_refused(load):
    worker = ask(load, 'pb_utils.load_model("n")')
    assert answer(worker, CONTROL, error=(4, "polling is on"))[0] == {
        "op": "load_model", "name": "n", "parameters": {}, "files": {}}
    assert said(worker) == ("Failed to load model: Failed to process the request for model "
                            "'m_0_0', message: polling is on")


def test_files_must_be_a_dictionary(load):
    assert said(ask(load, 'pb_utils.load_model("n", files=[1])')) == (
        "failed to load model 'n', files should be a dictionary of file paths and file "
        "contents")


def test_unload_model(load):
    worker = ask(load, 'pb_utils.unload_model("n", unload_dependents=True)')
    assert answer(worker, CONTROL, error=(4, "no"))[0] == {
        "op": "unload_model", "name": "n", "unload_dependents": True}
    assert said(worker).startswith("Failed to unload model: ")


# row: BLS-03
def test_is_model_ready(load):
    worker = ask(load, 'say = [pb_utils.is_model_ready("n"), '
                       'pb_utils.is_model_ready(model_name="n", model_version="2")]')
    assert answer(worker, CONTROL, {"ready": True})[0] == {
        "op": "is_model_ready", "name": "n", "version": ""}
    assert answer(worker, CONTROL, {"ready": False})[0]["version"] == "2"
    assert said(worker) == "[True, False]"


METRICS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily(
                name="f", description="d", kind=pb_utils.MetricFamily.{kind})
            self.metric = self.family.Metric({arguments})

        def execute(self, requests):
            try:
                said = {code}
            except pb_utils.TritonModelException as error:
                said = error
            return [pb_utils.InferenceResponse(parameters={{"say": str(said)}})]
"""


def metric(start, tmp_path, kind, arguments, code):
    """A worker whose model has a metric."""
    import harness
    path = harness.write_model(tmp_path, METRICS.format(
        kind=kind, arguments=arguments, code=code))
    worker = start()
    worker.send(harness.INITIALIZE, text(json.dumps(worker.setup(path))))
    number = ["COUNTER", "GAUGE", "HISTOGRAM"].index(kind)
    assert answer(worker, METRIC, {"family": 4})[0] == {
        "op": "family", "name": "f", "description": "d", "kind": number}
    worker.question = answer(worker, METRIC, {"metric": 9})[0]
    assert worker.expect(harness.OK_JSON)
    worker.send_requests(request(1, []))
    return worker


def test_counter(start, tmp_path):
    worker = metric(start, tmp_path, "COUNTER", 'labels={"a": "b"}',
                    "self.metric.increment(2), self.metric.value()")
    assert worker.question == {"op": "metric", "family": 4, "labels": {"a": "b"}}
    # There is no wait for an increment that can't fail.
    assert answer(worker, METRIC) == (
        {"op": "increment", "metric": 9, "value": 2.0}, False)
    assert answer(worker, METRIC, {"value": 2.5}) == (
        {"op": "value", "metric": 9}, True)
    assert said(worker) == "(None, 2.5)"


@pytest.mark.parametrize("kind, call, op", [
    ("COUNTER", "increment(-1)", "increment"), ("COUNTER", "set(1)", "set"),
    ("GAUGE", "observe(1)", "observe"), ("GAUGE", "set(float('inf'))", "set")])
def test_operation_that_the_server_refuses(start, tmp_path, kind, call, op):
    worker = metric(start, tmp_path, kind, "", f"self.metric.{call}")
    question, waits = answer(worker, METRIC, error=(5, "wrong"))
    assert question["op"] == op and waits
    if "inf" in call:
        assert question["value"] == "inf"
    assert said(worker) == (f"Failed to {op} metric value: Failed to process the request "
                            "for model 'm_0_0', message: wrong")


def test_histogram(start, tmp_path):
    worker = metric(start, tmp_path, "HISTOGRAM", "{}, [1, 2.5]", "self.metric.observe(1)")
    assert worker.question["buckets"] == [1.0, 2.5]
    assert answer(worker, METRIC) == ({"op": "observe", "metric": 9, "value": 1.0}, False)
    assert said(worker) == "None"


@pytest.mark.parametrize("kind, code, text_", [
    ("COUNTER", "self.family.Metric(buckets=[1.0])",
     "Failed to create metric. Unexpected buckets found."),
    ("HISTOGRAM", "self.family.Metric()",
     "Failed to create metric. Missing required buckets."),
    ("HISTOGRAM", "self.family.Metric(buckets=(1,))",
     "Failed to create metric. Buckets must be a list."),
    ("GAUGE", "self.family.Metric(labels=[])",
     "Failed to create metric. Labels must be a dictionary.")])
def test_misuse_of_a_family(start, tmp_path, kind, code, text_):
    arguments = "buckets=[1]" if kind == "HISTOGRAM" else ""
    assert said(metric(start, tmp_path, kind, arguments, code)) == text_


def test_metric_of_a_dropped_family(start, tmp_path):
    worker = metric(start, tmp_path, "GAUGE", "",
                    "delattr(self, 'family'), self.metric.set(1)")
    assert answer(worker, METRIC)[0] == {"op": "drop_metric", "metric": 9}
    assert answer(worker, METRIC)[0] == {"op": "drop_family", "family": 4}
    assert said(worker) == (
        "Failed to set metric value: Invalid metric operation as the corresponding "
        "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted "
        "AFTER its corresponding 'Metric' objects have been deleted.")


def test_family_that_the_server_refuses(load):
    worker = ask(load, 'pb_utils.MetricFamily("f", "d", pb_utils.MetricFamily.GAUGE)')
    answer(worker, METRIC, error=(6, "another kind"))
    assert said(worker) == ("Error when creating MetricFamily: Failed to process the "
                            "request for model 'm_0_0', message: another kind")


def test_log(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                log = pb_utils.Logger
                log.log_info("i")
                log.log_warn("w")
                log.log_error("e")
                log.log_verbose("v")
                log.log("d")
                log.log("m", log.ERROR)
                log.log(message="k", level=log.LogLevel.VERBOSE)
                return [pb_utils.InferenceResponse()]
    """)
    worker.execute(request(1, []))
    seen = []
    for line in range(7, 14):
        cursor = worker.expect_b(LOG)
        level, file, number = cursor.take("B"), cursor.text(), cursor.take("I")
        assert (file, number) == (worker.path, line)
        seen.append((level, cursor.text()))
        cursor.end()
    assert seen == [(1, "i"), (2, "w"), (3, "e"), (0, "v"), (1, "d"), (3, "m"), (0, "k")]
