"""Galatea refuses missing features by name and never ignores them.

Adding a feature removes its test here, and the mark `not_yet` from the tests of
that feature.
"""

from __future__ import annotations

import pathlib

import pytest
from conftest import StartServer

pytestmark = pytest.mark.galatea_only


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (
            "instance_group [ { kind: KIND_GPU } ]",
            "has kind KIND_GPU but no GPUs are available",
        ),
    ],
)
# row: INST-13
def test_configurations(
    start_server: StartServer, tmp_path: pathlib.Path, field: str, reason: str
) -> None:
    """Unsupported fields that would change a model's behaviour are refused."""
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8 '
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        f'output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ] {field}'
    )
    with start_server(tmp_path) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()
