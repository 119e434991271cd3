"""Tests of server options and their effects, here and in Triton.

The same program runs on Triton's own library, which GALATEA_TRITON_PACKAGES
locates; GALATEA_TRITON_BACKENDS is then a directory with its identity backend.
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
#: The results of setters, of creating a server and of queries; errors are codes.
QueryServer = Callable[..., dict[str, object]]

CODES = ("Invalid argument", "Internal", "Unsupported", "Not found", "Unavailable")
INVALID, INTERNAL, UNSUPPORTED, NOT_FOUND, _ = CODES
NONE, POLL, EXPLICIT = range(3)
READY, NOT_READY = "READY", "UNAVAILABLE"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Repositories with valid models, a broken one, and a duplicate."""
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
def query_server(implementation: Implementation, folder: pathlib.Path) -> QueryServer:
    """Creates a server and queries it, in a separate process."""

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
        results = json.loads(ended.stdout.splitlines()[-1])
        assert results["set"].pop(0) is None
        return {
            "set": list(map(code, results["set"])),
            "created": code(results["created"]),
            "queries": list(map(code, results.get("queries", []))),
        }

    return run


def code(line: object) -> object:
    """An error's code; any other value is returned unchanged."""
    return line.split(":")[0] if isinstance(line, str) and line.startswith(CODES) else line


def explicit(*more: Call) -> list[Call]:
    """Options of a server with explicit model control."""
    return [["SetModelControlMode", EXPLICIT], *more]


# row: SAPI-04 SAPI-05
def test_models_are_loaded_at_the_start(query_server: QueryServer) -> None:
    results = query_server(explicit(["SetStartupModel", "two"]), ["states"], ["ready"])
    assert results["queries"] == [[["one", ""], ["two", READY]], True]
    results = query_server(explicit(["SetStartupModel", "*"]), ["states"])
    assert results["queries"] == [[["one", READY], ["two", READY]]]
    assert query_server(explicit(["SetStartupModel", "none"]))["created"] == INTERNAL


def test_server_creation_may_survive_a_failed_load(query_server: QueryServer) -> None:
    on = ["SetExitOnError", False]
    results = query_server([on], ["ready"], ["model_ready", "one"], repository="bad")
    assert (results["created"], results["queries"]) == (None, [False, True])
    results = query_server([on, ["SetStrictReadiness", False]], ["ready"], repository="bad")
    assert results["queries"] == [True]


def test_a_failed_load_fails_server_creation_by_default(query_server: QueryServer) -> None:
    assert query_server([], repository="bad")["created"] == INTERNAL


# row: CLI-03
def test_a_server_has_the_given_name(query_server: QueryServer) -> None:
    assert query_server(explicit(["SetServerId", "seven"]), ["name"])["queries"] == ["seven"]
    assert query_server(explicit(), ["name"])["queries"] == ["triton"]


def test_models_may_have_other_configurations(query_server: QueryServer) -> None:
    results = query_server([["SetModelConfigName", "other"]], ["inputs", "one"], ["inputs", "two"])
    assert results["queries"] == [["INPUT1"], ["INPUT0"]]


def test_model_namespacing_can_be_enabled(query_server: QueryServer) -> None:
    both = ["SetModelRepositoryPath", "twin"]
    assert query_server([both])["created"] is not None
    results = query_server([both, ["SetModelNamespacing", True]], ["ready"], ["model_ready", "two"])
    assert (results["created"], results["queries"]) == (None, [True, True])


def test_metrics_are_shown_if_they_are_on(query_server: QueryServer) -> None:
    results = query_server([["SetMetrics", True]], ["has_metric", "nv_inference_count"])
    assert results["queries"] == [True]


def test_metrics_are_configured(query_server: QueryServer) -> None:
    query = ["has_metric", 'nv_inference_request_duration_us{model="one"']
    assert query_server([], query)["queries"] == [True]
    off = ["SetMetricsConfig", "", "counter_latencies", "false"]
    assert query_server([off], query)["queries"] == [False]


# row: BEK-07
def test_a_load_may_carry_files_and_a_configuration(query_server: QueryServer) -> None:
    config = {
        "backend": "identity",
        "max_batch_size": 8,
        "input": [{"name": "INPUT2", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT2", "data_type": "TYPE_INT32", "dims": [-1]}],
    }
    own = {"config": json.dumps(config)}
    results = query_server(
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
    assert results["queries"] == [
        None,
        ["INPUT2"],
        True,
        INTERNAL,
        None,
        ["INPUT0"],
        None,
        ["INPUT2"],
    ]


# row: SAPI-04
def test_options_without_effect_are_accepted(query_server: QueryServer) -> None:
    """The options concern memory, threads, devices and intervals."""
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
    results = query_server(options, ["ready"])
    assert results == {"set": [None] * len(options), "created": None, "queries": [True]}


# row: SAPI-04
def test_invalid_options_are_refused_at_once(query_server: QueryServer) -> None:
    results = query_server(
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
    assert results["set"] == [None, *[INVALID] * 5, UNSUPPORTED]
    assert (results["created"], results["queries"]) == (None, [True])


def test_options_that_only_their_users_can_judge_are_taken(query_server: QueryServer) -> None:
    """A nonexistent format changes nothing; a host policy only binds its own models."""
    options = [
        ["SetLogFormat", 9],
        ["SetHostPolicy", "far", "numa-node", "x"],
        ["SetHostPolicy", "", "numa-node", "0"],
        ["SetHostPolicy", "far", "cpu-cores", ""],
        ["SetHostPolicy", "cpu", "cpu-cores", "1"],
        # Triton's library has no default, and may try forever.
        ["SetModelLoadRetryCount", 0],
        ["SetExitOnError", False],
        ["SetStrictReadiness", False],
    ]
    results = query_server(options, ["ready"], ["model_ready", "one"])
    assert results == {"set": [None] * len(options), "created": None, "queries": [True, False]}


@pytest.mark.parametrize(
    ("configs", "created"),
    [
        (["local", "{"], INVALID),
        (["local", "[]"], INVALID),
        (["local", "{}"], INVALID),
        (["local", "{", "local", '{"size": "1048576"}'], None),
        (["local", '{"size": "1048576"}', "redis", "{}"], INVALID),
    ],
)
def test_cache_configurations_are_judged_when_the_server_is_created(
    query_server: QueryServer, configs: list[str], created: str | None
) -> None:
    """The last configuration of a cache applies, and a server has only one cache."""
    pairs = zip(configs[::2], configs[1::2])
    results = query_server([["SetCacheConfig", *pair] for pair in pairs])
    assert results["set"] == [None] * (len(configs) // 2)
    assert results["created"] == created


def test_a_cache_in_a_library_gets_its_configuration_as_it_was_given(
    query_server: QueryServer, compile: Callable[..., pathlib.Path], folder: pathlib.Path
) -> None:
    built = compile("cc", HERE / "choosy_cache.c", "-std=gnu11", "-shared", "-fPIC")
    (folder / "caches/choosy").mkdir(parents=True)
    built.rename(folder / "caches/choosy/libtritoncache_choosy.so")
    own = ["SetCacheDirectory", str(folder / "caches")]
    for text, expected in ((" no JSON\n", UNSUPPORTED), ("{}", NOT_FOUND)):
        assert query_server([own, ["SetCacheConfig", "choosy", text]])["created"] == expected


def test_metrics_that_are_off_have_no_text(query_server: QueryServer) -> None:
    results = query_server([["SetMetrics", False]], ["has_metric", "nv_"])
    assert (results["created"], results["queries"]) == (None, [False])


# row: PREP-07
def test_unknown_load_parameters_fail_the_load(query_server: QueryServer) -> None:
    """They are not read if they come after a configuration."""
    own = {"config": json.dumps({"backend": "identity", "max_batch_size": 8})}
    results = query_server(
        explicit(),
        ["load", "one", {"colour": "red"}],
        ["load", "one", {"colour": "red", **own}],
        ["load", "one", {**own, "colour": "red"}],
        ["model_ready", "one"],
    )
    assert results["queries"] == [INTERNAL, INTERNAL, None, True]


def test_models_need_resources_if_the_rate_is_limited(
    query_server: QueryServer, folder: pathlib.Path
) -> None:
    need_four(folder)
    limit, four = ["SetRateLimiterMode", 1], ["AddRateLimiterResource", "R", 4, -1]
    results = query_server([["AddRateLimiterResource", "R", 2, -1]], ["ready"])
    assert (results["created"], results["queries"]) == (None, [True])
    results = query_server([limit, four], ["model_ready", "two"])
    assert results["queries"] == [True]


def test_models_do_not_load_without_enough_resources(
    query_server: QueryServer, folder: pathlib.Path
) -> None:
    """If a resource has two counts, the smaller one applies."""
    need_four(folder)
    numbers = [["AddRateLimiterResource", "R", number, -1] for number in (2, 4)]
    results = query_server([["SetRateLimiterMode", 1], *numbers], hangs=True)
    assert results["created"] == INTERNAL


def need_four(folder: pathlib.Path) -> None:
    """Makes the model `two` need four of `R`."""
    limiter = 'rate_limiter { resources { name: "R" count: 4 } }'
    config = f"{CONFIG} instance_group {{ kind: KIND_CPU {limiter} }}"
    (folder / "good/two/config.pbtxt").write_text(config)
