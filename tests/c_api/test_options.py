"""Options of servers and what they do, here and by Triton.

The same program runs on Triton's own library where GALATEA_TRITON_PACKAGES says
where that is; GALATEA_TRITON_BACKENDS is a directory with its identity backend then.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from conftest import CONFIG
from implementations import Implementation

HERE = pathlib.Path(__file__).resolve().parent

Call = list[object]
#: What setters, the making of a server and questions said; of errors, their codes.
Ask = Callable[..., dict[str, object]]

CODES = ("Invalid argument", "Internal", "Unsupported", "Not found", "Unavailable")
INVALID, INTERNAL, UNSUPPORTED, NOT_FOUND, _ = CODES
NONE, POLL, EXPLICIT = range(3)
READY, NOT_READY = "READY", "UNAVAILABLE"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Repositories with good models, a broken one, and one that has a twin."""
    for model in ("good/one", "good/two", "bad/broken", "bad/one", "twin/one"):
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "bad/broken/1").rmdir()
    (tmp_path / "good/one/configs").mkdir()
    other = CONFIG.replace("INPUT0", "INPUT1").replace("OUTPUT0", "OUTPUT1")
    (tmp_path / "good/one/configs/other.pbtxt").write_text(other)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(implementation: Implementation, folder: pathlib.Path) -> Ask:
    """Makes a server and asks it, in a process of its own."""

    def run(
        options: list[Call], *questions: Call, repository: str = "good", hangs: bool = False
    ) -> dict[str, object]:
        if hangs and implementation.is_triton:
            pytest.skip("Triton doesn't come back from the failure")
        options = [["SetModelRepositoryPath", repository], *options]
        given = (json.dumps(options), json.dumps(questions))
        ended = implementation.run(
            HERE / "options.py", implementation.library, implementation.backends, *given
        )
        told = json.loads(ended.stdout.splitlines()[-1])
        assert told["set"].pop(0) is None
        return {
            "set": list(map(code, told["set"])),
            "made": code(told["made"]),
            "asked": list(map(code, told.get("asked", []))),
        }

    return run


def code(line: object) -> object:
    """An error's code, and anything else as it is."""
    return line.split(":")[0] if isinstance(line, str) and line.startswith(CODES) else line


def explicit(*more: Call) -> list[Call]:
    """Options of a server that loads what it is told to."""
    return [["SetModelControlMode", EXPLICIT], *more]


def test_models_are_loaded_at_the_start(ask: Ask) -> None:
    told = ask(explicit(["SetStartupModel", "two"]), ["states"], ["ready"])
    assert told["asked"] == [[["one", ""], ["two", READY]], True]
    told = ask(explicit(["SetStartupModel", "*"]), ["states"])
    assert told["asked"] == [[["one", READY], ["two", READY]]]
    assert ask(explicit(["SetStartupModel", "none"]))["made"] == INTERNAL


def test_a_model_that_cannot_be_loaded_need_not_end_the_making(ask: Ask) -> None:
    on = ["SetExitOnError", False]
    told = ask([on], ["ready"], ["model_ready", "one"], repository="bad")
    assert (told["made"], told["asked"]) == (None, [False, True])
    told = ask([on, ["SetStrictReadiness", False]], ["ready"], repository="bad")
    assert told["asked"] == [True]


def test_a_model_that_cannot_be_loaded_ends_the_making_otherwise(ask: Ask) -> None:
    assert ask([], repository="bad")["made"] == INTERNAL


def test_a_server_has_the_name_that_it_is_given(ask: Ask) -> None:
    assert ask(explicit(["SetServerId", "seven"]), ["name"])["asked"] == ["seven"]
    assert ask(explicit(), ["name"])["asked"] == ["triton"]


def test_models_may_have_other_configurations(ask: Ask) -> None:
    told = ask([["SetModelConfigName", "other"]], ["inputs", "one"], ["inputs", "two"])
    assert told["asked"] == [["INPUT1"], ["INPUT0"]]


def test_names_are_in_namespaces_if_asked_for(ask: Ask) -> None:
    both = ["SetModelRepositoryPath", "twin"]
    assert ask([both])["made"] is not None
    told = ask([both, ["SetModelNamespacing", True]], ["ready"], ["model_ready", "two"])
    assert (told["made"], told["asked"]) == (None, [True, True])


def test_metrics_are_shown_if_they_are_on(ask: Ask) -> None:
    told = ask([["SetMetrics", True]], ["has_metric", "nv_inference_count"])
    assert told["asked"] == [True]


def test_metrics_are_configured(ask: Ask) -> None:
    asked = ["has_metric", 'nv_inference_request_duration_us{model="one"']
    assert ask([], asked)["asked"] == [True]
    off = ["SetMetricsConfig", "", "counter_latencies", "false"]
    assert ask([off], asked)["asked"] == [False]


def test_files_and_a_configuration_may_come_with_a_load(ask: Ask) -> None:
    config = {
        "backend": "identity",
        "max_batch_size": 8,
        "input": [{"name": "INPUT2", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT2", "data_type": "TYPE_INT32", "dims": [-1]}],
    }
    own = {"config": json.dumps(config)}
    told = ask(
        explicit(),
        ["load", "fresh", {**own, "file__2/empty": "nothing"}],
        ["inputs", "fresh"],
        ["model_ready", "fresh"],
        # Files without a configuration belong to no model.
        ["load", "fresh", {"file__2/empty": "nothing"}],
        ["load", "one"],
        ["inputs", "one"],
        ["load", "one", own],
        ["inputs", "one"],
    )
    assert told["asked"] == [None, ["INPUT2"], True, INTERNAL, None, ["INPUT0"], None, ["INPUT2"]]


def test_numbers_that_change_nothing_here_are_taken(ask: Ask) -> None:
    """Memory, threads, devices and intervals."""
    options = [
        ["SetPinnedMemoryPoolByteSize", 1 << 20],
        ["SetCudaMemoryPoolByteSize", 0, 1 << 20],
        ["SetCudaVirtualAddressSize", 0, 1 << 20],
        ["SetMinSupportedComputeCapability", 7.5],
        ["SetBufferManagerThreadCount", 2],
        ["SetModelLoadThreadCount", 3],
        ["SetModelLoadRetryCount", 1],
        ["SetEnablePeerAccess", False],
        ["SetGpuMetrics", False],
        ["SetCpuMetrics", False],
        ["SetMetricsInterval", 500],
        ["SetExitTimeout", 5],
        ["SetModelLoadDeviceLimit", 2, 0, 0.5],
    ]
    told = ask(options, ["ready"])
    assert told == {"set": [None] * len(options), "made": None, "asked": [True]}


def test_what_cannot_be_meant_is_refused_at_once(ask: Ask) -> None:
    told = ask(
        explicit(
            ["SetModelControlMode", 9],
            ["SetRateLimiterMode", 9],
            ["SetModelLoadDeviceLimit", 1, 0, 0.5],
            ["SetModelLoadDeviceLimit", 2, -1, 0.5],
            ["SetModelLoadDeviceLimit", 2, 0, 1.5],
            ["SetHostPolicy", "near", "colour", "red"],
        ),
        ["ready"],
    )
    assert told["set"] == [None, *[INVALID] * 5, UNSUPPORTED]
    assert (told["made"], told["asked"]) == (None, [True])


def test_models_need_resources_if_the_rate_is_limited(ask: Ask, folder: pathlib.Path) -> None:
    need_four(folder)
    limit, four = ["SetRateLimiterMode", 1], ["AddRateLimiterResource", "R", 4, -1]
    told = ask([["AddRateLimiterResource", "R", 2, -1]], ["ready"])
    assert (told["made"], told["asked"]) == (None, [True])
    told = ask([limit, four], ["model_ready", "two"])
    assert told["asked"] == [True]


def test_models_do_not_load_without_enough_resources(ask: Ask, folder: pathlib.Path) -> None:
    """Of two numbers for a resource, the smaller counts."""
    need_four(folder)
    numbers = [["AddRateLimiterResource", "R", number, -1] for number in (2, 4)]
    told = ask([["SetRateLimiterMode", 1], *numbers], hangs=True)
    assert told["made"] == INTERNAL


def need_four(folder: pathlib.Path) -> None:
    """Makes the model `two` need as many of `R`."""
    limiter = 'rate_limiter { resources { name: "R" count: 4 } }'
    config = f"{CONFIG} instance_group {{ kind: KIND_CPU {limiter} }}"
    (folder / "good/two/config.pbtxt").write_text(config)
