"""Tests of the steps from model.py to a running model: import, configuration, readiness
and end."""

import json
import os

import harness
import pytest
from harness import LOG, request
from test_failures import failure, model


def test_initialize_gets_its_arguments(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.args = args

            def execute(self, requests):
                assert all(isinstance(value, str) for value in self.args.values())
                raise ValueError(" ".join([
                    self.args["model_name"], self.args["model_version"],
                    self.args["model_instance_name"], pb_utils.get_model_dir(), __name__,
                    __file__]))
    """)
    folder = os.path.dirname(worker.path)
    assert failure(worker).startswith(
        f"ValueError: m 1 m_0_0 {folder} 1.model {worker.path}\n")


def test_other_modules_of_the_model(start, tmp_path):
    path = harness.write_model(tmp_path, """
        import above, beside

        class TritonPythonModel:
            def execute(self, requests):
                raise ValueError(above.NAME + beside.NAME)
    """)
    (path.parent / "beside.py").write_text("NAME = 'beside'")
    (path.parent.parent / "above.py").write_text("NAME = 'above'")
    worker = start()
    assert worker.initialize(path)[0] == "ok"
    assert failure(worker).startswith("ValueError: abovebeside\n")


@pytest.mark.parametrize("body, begin", [
    ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'\n\n"
                              "At:\n  {path}(1): <module>\n"),
    ("def broken(:\n    pass", "SyntaxError: "),
    ("class Other: pass", "AttributeError: module '1.model' has no attribute "
                          "'TritonPythonModel'\n\nm/1/model.py has neither a class "
                          "TritonPythonModel nor a function predict"),
    ("class TritonPythonModel:\n    def initialize(self, args):\n        raise OSError(5)",
     "OSError: 5\n\nAt:\n  {path}(3): initialize\n"),
    ("class TritonPythonModel:\n    def initialize(self, args):\n        import sys; "
     "sys.exit('over')", "SystemExit: over\n\nAt:\n  {path}(3): initialize\n"),
])
def test_failing_start(start, tmp_path, body, begin):
    path = harness.write_model(tmp_path, body)
    kind, code, message = start().initialize(path)
    assert (kind, code) == ("failed", 1)
    assert message.startswith(begin.format(path=path)), message
    assert "galatea" not in message and "importlib" not in message


@pytest.mark.parametrize("file", ["model.py", "beside.py"])
@pytest.mark.parametrize("command", ["initialize", "auto_complete"])
def test_syntax_error_shows_the_line(start, tmp_path, file, command):
    path = harness.write_model(tmp_path, "import beside")
    (path.parent / file).write_text("x = 1\nif x:\n    y = = 2\n")
    message = getattr(start(), command)(path)[2]
    assert message.startswith(f"SyntaxError: invalid syntax ({file}, line 3)\n\n")
    assert message.endswith(f'\n\n  File "m/1/{file}", line 3\n    y = = 2\n        ^')
    assert "importlib" not in message


def test_long_lines_of_source_are_not_shown(start, tmp_path):
    path = harness.write_model(
        tmp_path, 'compile("x = = " + "1 + " * 1000 + "1", "made.py", "exec")')
    message = start().initialize(path)[2]
    assert message.endswith('File "made.py", line 1')


def test_missing_file(start, tmp_path):
    path = tmp_path / "m" / "1" / "model.py"
    assert start().initialize(path) == (
        "failed", 1, f"Python model file not found in '{path}'")


def test_wrong_file_name(start, tmp_path):
    path = harness.write_model(tmp_path, "").with_name("model.txt")
    assert start().initialize(path) == (
        "failed", 1, "Model name must end with '.py'. Model name is \"model.txt\".")


def test_model_of_a_python_based_backend(start, tmp_path):
    backend = tmp_path / "backends" / "mine" / "model.py"
    backend.parent.mkdir(parents=True)
    backend.write_text("""
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(__name__ + " " + pb_utils.get_model_dir())
""")
    repository = tmp_path / "repo" / "m"
    (repository / "1").mkdir(parents=True)
    worker = start()
    setup = worker.setup(repository / "1" / "model.py")
    setup.update(model_path=str(backend), module_paths=[str(backend.parent)])
    assert worker.ask(harness.INITIALIZE, harness.text(json.dumps(setup)))[0] == "ok"
    assert failure(worker).startswith(f"ValueError: model {repository}/1\n")


CONFIG = {"name": "m", "max_batch_size": 0, "input": [], "output": []}


def completed(start, tmp_path, body, config=None):
    path = harness.write_model(tmp_path, f"""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                {body}
                return config
    """)
    answer = start().auto_complete(path, config=config or CONFIG)
    return answer[1] if answer[0] == "ok" else answer[2]


# row: PY-03
def test_auto_complete(start, tmp_path):
    assert completed(start, tmp_path, """assert config.as_dict()["name"] == "m"
                config.set_max_batch_size(4)
                config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
                config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1],
                                  "optional": True})
                config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
                config.set_dynamic_batching()
                config.set_model_transaction_policy({"decoupled": True})
    """) == {
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1], "optional": True}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
        "dynamic_batching": {}, "model_transaction_policy": {"decoupled": True}}


def test_auto_complete_of_a_model_without_it(start, tmp_path):
    path = harness.write_model(tmp_path, "class TritonPythonModel: pass")
    assert start().auto_complete(path) == ("ok", {})


FULL = {"name": "m", "max_batch_size": 8, "sequence_batching": {},
        "model_transaction_policy": {"decoupled": False},
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}]}


@pytest.mark.parametrize("body, text", [
    ("config.set_max_batch_size(4)",
     "configuration specified max_batch_size 8, but in auto-complete-config function for "
     "model 'm' specified max_batch_size 4"),
    ("config.set_dynamic_batching()",
     "Configuration specified scheduling_choice as 'sequence_batching', but "
     "auto-complete-config function for model 'm' tries to set scheduling_choice as "
     "'dynamic_batching'"),
    ("config.add_input({'name': 'A', 'kind': 1})",
     "input 'A' in auto-complete-config function for model 'm' contains property other "
     "than 'name', 'data_type', 'dims' and 'optional'."),
    ("config.add_output({'name': 'A', 'optional': 1})",
     "output 'A' in auto-complete-config function for model 'm' contains property other "
     "than 'name', 'data_type' and 'dims'."),
    ("config.add_input({'dims': [1]})",
     "input in auto-complete-config function for model 'm' is missing 'name' property."),
    ("config.add_output({'name': 'A', 'dims': [1]})",
     "output 'A' in auto-complete-config function for model 'm' is missing 'data_type' "
     "property."),
    ("config.add_output({'name': 'A', 'data_type': 'TYPE_FP32'})",
     "output 'A' in auto-complete-config function for model 'm' is missing 'dims' "
     "property."),
    ("config.add_input({'name': 'IN', 'data_type': 'TYPE_INT8', 'dims': [4]})",
     "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'IN', "
     "model provides TYPE_INT8"),
    ("config.add_output({'name': 'OUT', 'data_type': 'TYPE_FP32', 'dims': [5]})",
     "model 'm', tensor 'OUT': the model expects dims [5] but the model configuration "
     "specifies dims [4]"),
    ("config.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [4], "
     "'optional': False})",
     "model 'm', tensor 'IN': the model expects optional False but the model "
     "configuration specifies optional True"),
    ("config.set_model_transaction_policy({'other': 1})",
     "model transaction property in auto-complete-config function for model 'm' contains "
     "property other than 'decoupled'."),
    ("config.set_model_transaction_policy({'decoupled': True})",
     "trying to change decoupled property in auto-complete-config for model 'm', which is "
     "already set to 'False'."),
])
def test_auto_complete_refuses(start, tmp_path, body, text):
    message = completed(start, tmp_path, body, FULL)
    assert message.split("\n\nAt:\n")[0] == f"ValueError: {text}"
    assert message.endswith("model.py(7): auto_complete_config\n")


def test_auto_complete_must_return_a_configuration(start, tmp_path):
    assert completed(start, tmp_path, "return {}") == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig "
        "object.")


@pytest.mark.parametrize("body, answer", [
    ("return True", True),
    ("return False", False),
    ("return 1", (1, "is_ready() must return a boolean value")),
    ("import sys; sys.exit('no')", None),
])
# row: PY-14
def test_is_ready(load, body, answer):
    worker = load(f"""
        class TritonPythonModel:
            def is_ready(self):
                {body}
    """)
    assert worker.answer["is_ready"] is True
    text = f"SystemExit: no\n\nAt:\n  {worker.path}(4): is_ready\n"
    assert worker.is_ready() == ((1, text) if answer is None else answer)


def test_exception_of_is_ready(load):
    worker = load("""
        class TritonPythonModel:
            def is_ready(self):
                raise ValueError("unwell")
    """)
    assert worker.is_ready() == (
        1, f"ValueError: unwell\n\nAt:\n  {worker.path}(4): is_ready\n")


def test_is_ready_does_not_wait_for_an_execution(load, tmp_path):
    go_on = tmp_path / "go_on"
    worker = load(f"""
        import os
        import time

        class TritonPythonModel:
            def is_ready(self):
                return True

            def execute(self, requests):
                while not os.path.exists({str(go_on)!r}):
                    time.sleep(0.001)  # sleep: polls until the test lets it go on
                return [None for _ in requests]
    """)
    worker.send_requests(harness.request(1, []))
    assert worker.is_ready(7) is True
    go_on.touch()
    assert worker.result()["outcome"] == 0


def test_a_question_for_the_readiness_of_a_model_that_has_none(load):
    worker = load("""
        class TritonPythonModel:
            pass
    """)
    worker.send_b(harness.IS_READY, bytes(8))
    assert worker.process.wait(harness.ANSWER_SECONDS) == 70


# row: PY-01
def test_finalize(load, tmp_path):
    worker = load(f"""
        class TritonPythonModel:
            def finalize(self):
                open({str(tmp_path / "done")!r}, "w").close()
                raise ValueError("at the end")
    """)
    assert worker.finalize() == 0
    assert (tmp_path / "done").exists()
    cursor = worker.expect_b(LOG)
    assert cursor.take("B") == 1
    cursor.text(), cursor.take("I")
    assert cursor.text() == f"ValueError: at the end\n\nAt:\n  {worker.path}(5): finalize\n"


def test_finalize_before_initialize(start):
    assert start().finalize() == 0


# row: PY-04
def test_helpers(load):
    worker = load(model("""config = {"input": [{"name": "A", "x": 1}], "output": []}
                assert pb_utils.get_input_config_by_name(config, "A")["x"] == 1
                assert pb_utils.get_output_config_by_name(config, "A") is None
                assert pb_utils.using_decoupled_model_transaction_policy(config) is False
                config["model_transaction_policy"] = {"decoupled": True}
                assert pb_utils.using_decoupled_model_transaction_policy(config) is True
                assert pb_utils.get_input_tensor_by_name(requests[0], "A") is None
                assert pb_utils.get_output_tensor_by_name(
                    pb_utils.InferenceResponse(), "A") is None
                import c_python_backend_utils as c
                assert c.Tensor is pb_utils.Tensor
                for name in ("Logger", "MetricFamily", "PreferredMemory", "load_model",
                             "unload_model", "is_model_ready", "TRITONSERVER_MEMORY_GPU",
                             "TRITONSERVER_MEMORY_CPU", "TritonModelException"):
                    assert getattr(c, name) is getattr(pb_utils, name), name
                assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
                return [pb_utils.InferenceResponse()]"""))
    assert worker.execute(request(1, []))["outcome"] == 0


@pytest.mark.numpy
def test_types(load):
    worker = load(model("""for name, kind in (
                        ("BOOL", bool), ("UINT8", np.uint8), ("INT64", np.int64),
                        ("FP16", np.float16), ("FP64", np.float64), ("STRING", np.object_)):
                    assert pb_utils.triton_string_to_numpy("TYPE_" + name) is kind, name
                    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_" + name] is kind
                for code in range(1, 14):
                    kind = pb_utils.triton_to_numpy_type(code)
                    assert pb_utils.numpy_to_triton_type(kind) == code
                assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
                assert pb_utils.triton_to_numpy_type(14) is None
                array = np.array([b"a", "b"], np.object_)
                data = pb_utils.serialize_byte_tensor(array)
                assert data == b"\\1\\0\\0\\0a\\1\\0\\0\\0b"
                assert pb_utils.deserialize_bytes_tensor(data).tolist() == [b"a", b"b"]
                assert pb_utils.serialize_byte_tensor(np.ones(1)) is None
                assert pb_utils.serialize_byte_tensor(array[:0]) == ()
                try:
                    pb_utils.triton_string_to_numpy("TYPE_BF16")
                except KeyError:
                    return [pb_utils.InferenceResponse()]""", "import numpy as np"))
    assert worker.execute(request(1, []))["outcome"] == 0


def test_numpy_is_not_imported_unasked(load):
    worker = load(model("""import sys
                assert "numpy" not in sys.modules and "asyncio" not in sys.modules
                requests[0].inputs()[0].shape()
                return [pb_utils.InferenceResponse(requests[0].inputs())]"""))
    assert worker.execute(request(1, [harness.fp32("OUT", [1.0])]))["outcome"] == 0
