"""Tests of the effects of changed models, configurations and versions, including those on
dependent models."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest
import tritonclient.grpc

from conftest import StartServer
from constant_models import added_value, replace_file, request_body, write_model
from server import Reply, Server, wait_until

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
POLL_SECONDS_MAX = 60

READY = ("READY", "")
UNLOADED = ("UNAVAILABLE", "unloaded")
#: The index lists it, but it was never loaded.
KNOWN = ("", "")

ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 4
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
ensemble_scheduling {{ step [
  {{ model_name: "{0}" model_version: -1
    input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "x" }} }},
  {{ model_name: "{1}" model_version: -1
    input_map {{ key: "INPUT0" value: "x" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }}
] }}
"""


def onnx(more: str = "", batch: int = 4) -> str:
    """A configuration of an ONNX model."""
    return f'backend: "onnxruntime" max_batch_size: {batch} {more}'


def write_config(repository: pathlib.Path, model: str, text: str) -> None:
    """Replaces a configuration with another."""
    replace_file(repository / model / "config.pbtxt", text.encode())


def write_ensemble(repository: pathlib.Path, model: str, first: str, second: str) -> None:
    """Writes an ensemble of two models."""
    (repository / model / "1").mkdir(parents=True)
    write_config(repository, model, ENSEMBLE.format(first, second))


def control(server: Server, action: str, model: str, **parameters: Any) -> Reply:
    """Requests a load or an unload."""
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    return server.request("POST", f"/v2/repository/models/{model}/{action}", body)


def load(server: Server, model: str) -> None:
    """Loads a model successfully."""
    assert control(server, "load", model).status == 200


def states(server: Server) -> dict[str, tuple[str, str]]:
    """The state and reason by name, which includes the version after a colon if there is one."""
    entries = server.request("POST", "/v2/repository/index", b"").json()
    return {
        ":".join([entry["name"], entry["version"]] if "version" in entry else [entry["name"]]): (
            entry.get("state", ""),
            entry.get("reason", ""),
        )
        for entry in entries
    }


def wait_for_states(server: Server, **expected: tuple[str, str]) -> None:
    """Waits for the states of version 1 of these models."""

    def is_so() -> bool:
        known = states(server)
        return all(known.get(f"{name}:1") == state for name, state in expected.items())

    wait_until(is_so, 30, f"the states are {expected}")


def batch_size(server: Server, model: str) -> int:
    """The maximum batch size in the configuration that is being served."""
    return server.get(f"/v2/models/{model}/config").json()["max_batch_size"]


def served_value(server: Server, model: str) -> int | None:
    """The value that a model adds, if it is served."""
    reply = server.infer(model, request_body())
    return reply.json()["outputs"][0]["data"][0] if reply.status == 200 else None


# row: PREP-09
def test_unloading_dependents(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """An unload leaves models that an ensemble needs, unless dependents are unloaded too and no
    other model needs them."""
    for value, name in enumerate("abc", 1):
        write_model(tmp_path, name, value)
    write_ensemble(tmp_path, "ab", "a", "b")
    write_ensemble(tmp_path, "bc", "b", "c")
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        assert set(states(server).values()) == {KNOWN}
        load(server, "ab")
        assert added_value(server, "ab") == 3
        assert states(server)["c"] == KNOWN
        assert control(server, "unload", "ab").status == 200
        wait_for_states(server, ab=UNLOADED, a=READY, b=READY)
        load(server, "ab")
        assert control(server, "unload", "ab", unload_dependents=True).status == 200
        wait_for_states(server, ab=UNLOADED, a=UNLOADED, b=UNLOADED)
        for model in ("c", "ab", "bc"):
            load(server, model)
        # The other ensemble needs b, and c was loaded by name.
        assert control(server, "unload", "bc", unload_dependents=True).status == 200
        wait_for_states(server, ab=READY, a=READY, b=READY, bc=UNLOADED, c=READY)


# row: MR-14
def test_ensembles_unload_and_reload_with_their_models(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """An ensemble is served with the current versions of its models, or not at all."""
    write_model(tmp_path, "a", 1, config=onnx())
    write_model(tmp_path, "b", 2, config=onnx())
    write_ensemble(tmp_path, "ab", "a", "b")
    with start_server(tmp_path, EXPLICIT, "--load-model=ab") as server:
        server.wait_until_ready()
        assert control(server, "unload", "a").status == 200
        wait_for_states(server, ab=UNLOADED, a=UNLOADED, b=READY)
        assert server.get("/v2/health/ready").status == 200
        load(server, "a")
        load(server, "ab")
        assert added_value(server, "ab") == 3
        write_model(tmp_path, "a", 10)
        load(server, "a")
        wait_until(lambda: served_value(server, "ab") == 12, 30, "the ensemble has the new model")
        replace_file(tmp_path / "a" / "1" / "model.onnx", b"this is no model")
        assert control(server, "load", "a").status == 400
        assert (added_value(server, "a"), added_value(server, "ab")) == (10, 12)


# row: MR-03
def test_versions_follow_the_policy(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The index remembers the versions that were served, over both protocols."""
    for version in (1, 2, 3):
        write_model(tmp_path, "m", version, versions=(version,), config=onnx())
    with start_server(tmp_path, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        assert states(server) == {"m:3": READY}
        assert server.infer("m/versions/2", request_body()).status == 404
        write_config(tmp_path, "m", onnx("version_policy { all { } }"))
        load(server, "m")
        assert set(states(server).values()) == {READY}
        assert [added_value(server, "m", version) for version in (1, 2, 3)] == [1, 2, 3]
        write_config(tmp_path, "m", onnx("version_policy { specific { versions: [ 1, 2 ] } }"))
        load(server, "m")
        wait_until(
            lambda: states(server) == {"m:1": READY, "m:2": READY, "m:3": UNLOADED}, 30, "so"
        )
        assert added_value(server, "m") == 2
        assert server.infer("m/versions/3", request_body()).status == 503
        assert server.get("/v2/models/m").json()["versions"] == ["1", "2"]
        assert server.get("/v2/models/m/versions/1").json()["versions"] == ["1"]
        write_config(tmp_path, "m", onnx("version_policy { specific { versions: [ 7 ] } }"))
        assert control(server, "load", "m").status == 400
        assert added_value(server, "m") == 2
        write_config(tmp_path, "m", onnx("version_policy { latest { num_versions: 2 } }"))
        load(server, "m")
        wait_until(
            lambda: states(server) == {"m:1": UNLOADED, "m:2": READY, "m:3": READY}, 30, "so"
        )
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            models = client.get_model_repository_index().models
        assert {f"{one.name}:{one.version}": (one.state, one.reason) for one in models} == states(
            server
        )
        shutil.rmtree(tmp_path / "m")
        assert control(server, "load", "m").status == 500
        assert added_value(server, "m") == 3


# row: MR-08
def test_polling_follows_every_change(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Configurations, versions, and files that are damaged and repaired; ensembles follow their
    models."""
    write_model(tmp_path, "m", 1, config=onnx())
    write_model(tmp_path, "n", 5, config=onnx())
    write_ensemble(tmp_path, "mn", "m", "n")
    with start_server(tmp_path, *POLL) as server:
        server.wait_until_ready()

        def wait(model: str, value: int | None) -> None:
            wait_until(
                lambda: served_value(server, model) == value,
                POLL_SECONDS_MAX,
                f"{model} adds {value}",
            )

        def wait_for_batch(size: int) -> None:
            wait_until(lambda: batch_size(server, "m") == size, POLL_SECONDS_MAX, f"it is {size}")

        wait("mn", 6)
        write_config(tmp_path, "m", onnx(batch=7))
        wait_for_batch(7)
        write_model(tmp_path, "m", 2, versions=(2,))
        wait("m", 2)
        wait("mn", 7)
        shutil.rmtree(tmp_path / "m" / "2")
        wait("m", 1)
        wait("mn", 6)
        write_config(tmp_path, "m", "nonsense {")
        # The load of the next model shows that the repository was polled again.
        write_model(tmp_path, "later", 9)
        wait("later", 9)
        assert (batch_size(server, "m"), added_value(server, "m"), added_value(server, "mn")) == (
            7,
            1,
            6,
        )
        write_config(tmp_path, "m", onnx(batch=6))
        wait_for_batch(6)
        replace_file(tmp_path / "m" / "1" / "model.onnx", b"this is no model")
        write_model(tmp_path, "later", 10)
        wait("later", 10)
        assert (added_value(server, "m"), added_value(server, "mn")) == (1, 6)
        write_model(tmp_path, "m", 3)
        wait("m", 3)
        wait("mn", 8)
        shutil.rmtree(tmp_path / "n")
        wait("n", None)
        wait("mn", None)
        assert added_value(server, "m") == 3
        write_model(tmp_path, "n", 50, config=onnx())
        wait("mn", 53)


# row: CLI-10 MR-06
def test_a_named_configuration(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """It takes precedence if it exists, and the next load notices its addition or removal."""
    for model in ("has", "lacks"):
        write_model(tmp_path, model, 1, config=onnx())
    named = tmp_path / "has" / "configs" / "large.pbtxt"
    replace_file(named, onnx(batch=99).encode())
    flags = ["--model-config-name=large", EXPLICIT, "--load-model=*"]
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        assert (batch_size(server, "has"), batch_size(server, "lacks")) == (99, 4)
        named.unlink()
        replace_file(tmp_path / "lacks" / "configs" / "large.pbtxt", onnx(batch=98).encode())
        load(server, "has")
        load(server, "lacks")
        assert (batch_size(server, "has"), batch_size(server, "lacks")) == (4, 98)


# row: MR-11
def test_the_served_configuration_with_other_instances_changes_them_in_place(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A load adds or removes instances of a model whose other settings are unchanged."""
    write_model(tmp_path, "m", 1)
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()
        load(server, "m")
        assert added_value(server, "m") == 1
        for count in (3, 1, 2):
            config = server.get("/v2/models/m/config").json()
            config["instance_group"][0]["count"] = count
            assert control(server, "load", "m", config=json.dumps(config)).status == 200
            shown = server.get("/v2/models/m/config").json()
            assert [group["count"] for group in shown["instance_group"]] == [count]
            # A model that was loaded again has no statistics.
            assert server.statistics("m")["inference_count"] == 1


# row: PREP-05
def test_a_configuration_that_came_with_a_load_stays(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """It stays until the model in the repository changes, or the model is unloaded."""
    write_model(tmp_path, "m", 1)
    write_config(tmp_path, "m", onnx())
    with start_server(tmp_path, EXPLICIT) as server:
        server.wait_until_ready()

        def load_with_batches_of(size: int) -> None:
            config = {"backend": "onnxruntime", "max_batch_size": size}
            assert control(server, "load", "m", config=json.dumps(config)).status == 200
            assert batch_size(server, "m") == size

        load(server, "m")
        assert batch_size(server, "m") == 4
        load_with_batches_of(8)
        load(server, "m")
        assert batch_size(server, "m") == 8
        write_config(tmp_path, "m", onnx(batch=2))
        load(server, "m")
        assert batch_size(server, "m") == 2
        load_with_batches_of(8)
        assert control(server, "unload", "m").status == 200
        load(server, "m")
        assert batch_size(server, "m") == 2


BROKEN = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 1 ] }
"""


@pytest.mark.galatea_only
# row: MR-08
def test_a_failure_is_logged_once_as_long_as_the_files_are_the_same(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each poll tries again, without success. Load requests are logged each time."""
    repository = tmp_path / "models"
    (repository / "broken" / "1").mkdir(parents=True)
    write_config(repository, "broken", BROKEN)
    failed = "failed to load 'broken' version 1"

    def logged(server: Server, text: str) -> int:
        return sum(text in line for line in server.log().splitlines() if line[:1] in ("I", "E"))

    def tried(server: Server, count: int) -> None:
        wait_until(
            lambda: logged(server, "loading: broken:1") >= count, POLL_SECONDS_MAX, "it is tried"
        )

    with start_server(repository, *POLL, "--exit-on-error=false") as server:
        server.wait_until_live()
        tried(server, 4)
        assert logged(server, failed) == 1
        write_config(repository, "broken", BROKEN + "# the same mistake\n")
        wait_until(lambda: logged(server, failed) == 2, POLL_SECONDS_MAX, "it is told again")
    with start_server(repository, EXPLICIT) as server:
        server.wait_until_ready()
        for count in (1, 2):
            assert control(server, "load", "broken").status == 400
            assert logged(server, failed) == count
