"""Checks that docs/configuration_reference.md has every field of the format as the
server reads it."""

from __future__ import annotations

import pathlib
import sys

from conftest import ROOT, StartServer

sys.path.insert(0, str(ROOT / "tests"))

import configuration_reference as reference  # noqa: E402


def test_every_field_has_a_meaning() -> None:
    """No meaning exists without its field."""
    assert reference.mistakes() == []


def test_the_page_is_up_to_date() -> None:
    """`python tests/configuration_reference.py` writes the page."""
    assert reference.PAGE.read_text() == reference.page()


def test_what_is_refused_and_what_has_no_effect_is_found() -> None:
    """The server's table is read to its end."""
    found = reference.limits(reference.schema())
    ignored = reference.WITHOUT_EFFECT.read_text().count("IgnoredSetting {\n        name: ")
    assert ignored == 9
    assert sum("effect" in text for text in found.values()) == ignored - 1
    # The fields for TensorRT's inputs, outputs and profiles.
    assert sum("Refused" in text for text in found.values()) == 5


def test_defaults(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The fields that the server completes, as it displays them."""
    for name, scheduler in (
        ("direct", "sequence_batching { direct { } }"),
        ("dynamic", "dynamic_batching { } instance_group { } instance_group { }"),
        ("oldest", "sequence_batching { oldest { } }"),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(
            'backend: "identity" max_batch_size: 4 '
            'input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 } '
            f'output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }} {scheduler}'
        )
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        direct, dynamic, oldest = (
            server.get(f"/v2/models/{name}/config").json()
            for name in ("direct", "dynamic", "oldest")
        )
    assert direct["name"] == "direct"
    assert direct["version_policy"] == {"latest": {"num_versions": 1}}
    assert direct["sequence_batching"]["max_sequence_idle_microseconds"] == 1_000_000
    assert direct["optimization"]["input_pinned_memory"] == {"enable": True}
    assert direct["optimization"]["output_pinned_memory"] == {"enable": True}
    groups = [*direct["instance_group"], *dynamic["instance_group"]]
    assert [group["name"] for group in groups] == ["direct", "dynamic_0", "dynamic_1"]
    assert {(group["kind"], group["count"]) for group in groups} == {("KIND_CPU", 1)}
    assert dynamic["dynamic_batching"]["preferred_batch_size"] == [4]
    assert oldest["sequence_batching"]["oldest"]["preferred_batch_size"] == [4]
