"""Runs Triton's unmodified published programs for its packages `tritonserver` and `tritonfrontend`.

Skipped unless GALATEA_TRITON_EXAMPLES names a directory with checkouts of Triton's repositories
`core`, `server` and `tutorials`. Files run at their location in the repository, in a copy of their
directory, because some write files next to themselves. docs/python_api.md says which ones run and
which don't.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Callable, Mapping

import galatea
import pytest
from conftest import ROOT, write_model

sys.path.append(str(ROOT / "tests/clients"))

from environments import environment  # noqa: E402
from own_network import own_network  # noqa: E402

CHECKOUTS = os.environ.get("GALATEA_TRITON_EXAMPLES", "")
pytestmark = pytest.mark.skipif(
    not CHECKOUTS,
    reason="needs checkouts of core, server and tutorials in GALATEA_TRITON_EXAMPLES",
)

CORE_TESTS = "core/python/test"
FRONTEND_TESTS = "server/qa/L0_python_api"
FRONTEND_EXAMPLES = "server/src/python/examples"
OPENAI = "server/python/openai"
TUTORIAL = "tutorials/Triton_Inference_Server_Python_API"

#: What the programs import. The first three are the versions that Triton's frontend demands.
PACKAGES = (
    "fastapi==0.121.2",
    "openai==1.107.3",
    "httpx==0.27.2",
    "Jinja2==3.1.6",
    "numpy==2.4.6",
    "onnxruntime==1.31.1",
    "partial-json-parser",
    "pillow",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "requests",
    "setuptools",
    "tokenizers==0.23.3",
    "transformers==5.24.0",
    "tritonclient[grpc,http]==2.73.0",
    "uvicorn",
)
#: How long a program may take. Some of Triton's tests allocate a gigabyte a hundred times.
SECONDS_MAX = 1200

NO_GPU = "needs cupy or PyTorch with a GPU"
FROZEN = "Triton's service keeps the connection and the request, and its server can't stop"
PATHS = "Triton follows a model's name out of the repository; ours refuses it"
LANGUAGE_MODEL = "needs a language model that answers with calls of tools"
ADAPTERS = "needs adapters of TensorRT-LLM"
VLLM = "is for vLLM, which has embeddings"
DOWNLOAD = "downloads a tokenizer"


@dataclasses.dataclass
class Report:
    """The results of a suite's tests, by class and name."""

    passed: list[str]
    failed: list[str]
    skipped: dict[str, str]

    @staticmethod
    def read(path: pathlib.Path) -> Report:
        """Reads a report in JUnit's format."""
        report = Report([], [], {})
        for case in xml.parse(path).iter("testcase"):
            kind = case.get("classname", "").split(".")[-1]
            name = f"{kind}::{case.get('name')}"
            skip = case.find("skipped")
            if skip is not None:
                report.skipped[name] = skip.get("message", "")
            elif case.find("failure") is not None or case.find("error") is not None:
                report.failed.append(name)
            else:
                report.passed.append(name)
        return report

    def check(self, excluded: Mapping[str, str], passed_min: int) -> None:
        """Only tests whose names start with one of these may fail, and each of these must have
        one that fails."""
        starts = tuple(excluded)
        assert [name for name in self.failed if not name.startswith(starts)] == []
        stale = [
            start for start in starts if not any(name.startswith(start) for name in self.failed)
        ]
        assert stale == [], "excluded tests that pass"
        assert len(self.passed) >= passed_min, self


@pytest.fixture(scope="module")
def python() -> pathlib.Path:
    """An interpreter with the packages that the programs import."""
    return environment("published", *PACKAGES)


class Place:
    """Copies of directories from the checkouts, and our packages for the programs in them."""

    def __init__(self, python: pathlib.Path, folder: pathlib.Path) -> None:
        self.python = python
        self.folder = folder

    def copy(self, name: str) -> pathlib.Path:
        """A directory of a checkout."""
        copied = self.folder / name
        shutil.copytree(pathlib.Path(CHECKOUTS, name), copied)
        return copied

    def run(self, work: pathlib.Path, *arguments: object, **variables: str) -> str:
        """The output of a program, which must succeed."""
        done = self._run(work, *arguments, **variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def suite(self, work: pathlib.Path, *arguments: str, **variables: str) -> Report:
        """The results of the tests that pytest finds."""
        path = self.folder / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={path}"]
        done = self._run(work, "-m", "pytest", *options, *arguments, **variables)
        assert path.exists(), done.stdout
        return Report.read(path)

    def _run(
        self, work: pathlib.Path, *arguments: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        site = pathlib.Path(galatea.__file__).parents[1]
        paths = [str(site), str(ROOT / "python/aliases"), variables.pop("PYTHONPATH", "")]
        programs = [str(self.python.parent), os.environ.get("PATH", "")]
        with own_network():
            return subprocess.run(
                [self.python, *map(str, arguments)],
                cwd=work,
                env={
                    **os.environ,
                    # Otherwise, a tokenizer in a directory is also searched for on the network.
                    "HF_HUB_OFFLINE": "1",
                    "PATH": os.pathsep.join(programs),
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    **variables,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS_MAX,
            )


@pytest.fixture
def place(python: pathlib.Path, tmp_path: pathlib.Path) -> Place:
    """The directory in which the programs run."""
    return Place(python, tmp_path)


def test_the_tests_of_the_package(place: Place) -> None:
    report = place.suite(place.copy(CORE_TESTS), "test_api.py")
    report.check({}, passed_min=19)
    # The published file itself skips its `test_stop`.
    others = {name for name in report.skipped if not name.endswith("test_stop")}
    assert {report.skipped[name].split(", ")[-1] for name in others} <= {
        "cupy not installed", "torch not installed"
    }, NO_GPU


def test_the_tests_of_the_bindings(place: Place) -> None:
    report = place.suite(place.copy(CORE_TESTS), "test_binding.py")
    report.check({}, passed_min=62)
    assert report.skipped == {}


def test_the_tests_of_the_frontends(place: Place) -> None:
    # The published file skips most of its tests because of Triton's Python backend.
    report = place.suite(place.copy(FRONTEND_TESTS), "--runxfail", "test_kserve.py")
    report.check({"TestKServe::test_http_req_during_shutdown": FROZEN}, passed_min=24)


def test_the_example_of_the_frontends(place: Place) -> None:
    output = place.run(place.copy(FRONTEND_EXAMPLES), "example.py")
    assert "Output data: [[b'Roger Roger']]" in output


#: Models of TensorRT-LLM, of which the frontend asks `tensorrt_llm_bls`.
LANGUAGE_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
TOKENIZER = """
import json, pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers

folder = pathlib.Path(sys.argv[1])
folder.mkdir()
special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special.values())}, "<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save(str(folder / "tokenizer.json"))
template = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }} {% endfor %}"
(folder / "tokenizer_config.json").write_text(json.dumps(
    {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **special}
))
"""
#: Tests that fail, by the start of their names.
OPENAI_EXCLUDED = {
    "TestModelControlCLIOptions::test_explicit_mode_load_invalid_model_name_error": PATHS,
    "TestAsyncClientToolCalling::test_tool_call_and_choice": LANGUAGE_MODEL,
    "TestAsyncClientToolCalling::test_tool_call_with_named_tool_choice": LANGUAGE_MODEL,
    "TestAsyncClientToolCalling::test_tool_call_with_required_tool_choice": LANGUAGE_MODEL,
    "TestChatCompletionsTokenizers::test_chat_completions_custom_tokenizer": DOWNLOAD,
    "TestChatCompletionsTokenizers::test_chat_completions_invalid_chat_tokenizer": DOWNLOAD,
    "TestEmbeddings::": VLLM,
    "LoRATest::": ADAPTERS,
    "test_lora::test_validate_lora_path_trtllm": ADAPTERS,
}


def test_the_frontend_for_openai(place: Place) -> None:
    tokenizer, models = place.folder / "tokenizer", place.folder / "models"
    place.run(place.folder, "-c", TOKENIZER, tokenizer)
    for name in LANGUAGE_MODELS:
        shutil.copytree(ROOT / "tests/python_api/language_model", models / name)
    report = place.suite(
        place.copy(OPENAI),
        "tests",
        TEST_BACKEND="tensorrtllm",
        TEST_MODEL=LANGUAGE_MODELS[-1],
        TEST_MODEL_REPOSITORY=str(models),
        TEST_TOKENIZER=str(tokenizer),
    )
    report.check(OPENAI_EXCLUDED, passed_min=190)


def test_the_tutorial(place: Place) -> None:
    """Its Python blocks. Only the path of the container's models is replaced."""
    tutorial = place.copy(TUTORIAL)
    text = (tutorial / "README.md").read_text()
    section = text[text.index("## Hello World") : text.index("## Stable Diffusion\n")]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    program = "".join([*blocks, "print(server.models())\n"])
    program = program.replace("/workspace/identity-models", str(tutorial / "identity-models"))
    answer, models = place.run(tutorial, "-c", program).splitlines()
    assert f"\n{answer}\n" in section and f"\n{models}\n" in section


#: Stand-ins for the packages around the server that the tutorials' deployments import.
STAND_INS = {
    "ray/__init__.py": "",
    "ray/serve/__init__.py": """
class Bound:
    def __init__(self, *arguments):
        self.arguments = arguments

def deployment(**options):
    def decorate(kind):
        kind.bind = staticmethod(Bound)
        return kind
    return decorate

def ingress(app):
    return lambda kind: kind
""",
    "ray/serve/handle.py": "class DeploymentHandle: pass",
    "torch.py": "",
    "confluent_kafka/__init__.py": "class KafkaError: pass\nclass KafkaException: pass",
    "confluent_kafka/serialization.py": "class StringSerializer: pass",
    "gcn_kafka.py": "class Consumer: pass\nclass Producer: pass",
}
PICTURE_CONFIG = """
backend: "python"
input [ { name: "prompt" data_type: TYPE_STRING dims: [ -1, -1 ] } ]
output [ { name: "generated_image" data_type: TYPE_FP32 dims: [ -1, 8, 8, 3 ] } ]
"""
PICTURE = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        image = numpy.full((1, 8, 8, 3), 200, numpy.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("generated_image", image)])
                for _ in requests]
"""
TOKENS = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        rows = numpy.arange(256).reshape(1, 256)
        names = ("input_ids", "attention_mask", "token_type_ids")
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, rows) for name in names])
                for _ in requests]
"""
RAY_CALLS = """
import tritonserver_deployment as published

deployment = published.TritonDeployment()
print(deployment.test("hello"))
deployment.generate("a butterfly", "picture.png")
"""
KAFKA_CALLS = """
import tritonserver_deployment as published

[result] = published.TritonKafkaEndpoint().infer([b"some words"])["result"]
print(result)
"""


def deployed(place: Place, name: str) -> Callable[..., str]:
    """Makes calls to a tutorial's deployment."""
    tutorial = place.copy(f"{TUTORIAL}/examples/{name}")
    packages = place.folder / "packages"
    for path, text in STAND_INS.items():
        file = packages / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(calls: str, **variables: str) -> str:
        paths = os.pathsep.join(map(str, (packages, tutorial)))
        return place.run(place.folder, "-c", calls, PYTHONPATH=paths, **variables)

    return run


def test_the_deployment_on_ray_serve(place: Place) -> None:
    models = place.folder / "models"
    shutil.copytree(pathlib.Path(CHECKOUTS, TUTORIAL, "identity-models"), models)
    (write_model(models, "stable_diffusion_xl", PICTURE_CONFIG) / "model.py").write_text(PICTURE)
    # The deployment's name for a repository that isn't in its container.
    output = deployed(place, "rayserve")(RAY_CALLS, S3_BUCKET_URL=str(models))
    assert output.splitlines()[-1] == "hello"
    assert (place.folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_deployment_behind_kafka(place: Place) -> None:
    run = deployed(place, "kafka-io")
    models = place.folder / TUTORIAL / "examples/kafka-io/models"
    # The published model downloads its tokens.
    (models / "tokenizer/1/model.py").write_text(TOKENS)
    output = run(
        KAFKA_CALLS, MODEL_REPOSITORY=str(models), MODEL_NAME="tokenizer", MODEL_INPUT_NAME="TEXT"
    )
    start = '{"model": {"name": "tokenizer", "version": 1, "state": null, "reason": null}, '
    assert start + '"request_id": "", "parameters": {}, "outputs": {"input_ids": [[0, 1, ' in output
