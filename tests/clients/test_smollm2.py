"""SmolLM2 in ONNX, token by token beside the same weights in NumPy."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from example_models import smollm2
from example_models.repository import write_example

from conftest import StartServer
from decoder_reference import GREEDY, ReferenceDecoder, Sampling
from test_continuous_batching import inputs, receive
from transports import GrpcStream

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("gguf", smollm2.PACKAGE))),
        reason=f"needs the weights of smollm2: {smollm2.INSTALL_COMMAND}",
    ),
]

DRAWN = Sampling(temperature=0.8, top_p=0.9, seed=7)
#: Prompts of different lengths, with the most tokens to follow each of them.
GENERATIONS = {
    "one": ([504], 10, GREEDY),
    "short": ([504, 3575, 282, 4649, 314], 16, GREEDY),
    "drawn": ([504, 3575, 282, 4649, 314], 16, DRAWN),
    "long": (list(range(1000, 1060)), 6, GREEDY),
}


def test_tokens_are_those_of_numpy(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Prompts of different lengths are generated one by one, then all at once."""
    sizes = smollm2.sizes()
    reference = ReferenceDecoder(smollm2.read_weights(sizes), sizes)
    expected = {name: reference.tokens(*given) for name, given in GENERATIONS.items()}
    assert len(set(map(tuple, expected.values()))) == len(expected)
    write_example(tmp_path / "models", "smollm2_decoder", smollm2.smollm2_decoder())
    with (
        start_server(tmp_path / "models") as running,
        GrpcStream(running.wait_until_ready()) as stream,
    ):
        for name, tokens in expected.items():
            stream.send("smollm2_decoder", inputs(*GENERATIONS[name]), request_id=name)
            assert receive(stream, {name: tokens}) == {name: tokens}
        for name, given in GENERATIONS.items():
            stream.send("smollm2_decoder", inputs(*given), request_id=name)
        assert receive(stream, expected) == expected
