"""English text as tokens: sentences and paragraphs from Python's own reference manual.

The text is part of every Python installation, because `help()` displays it. It doesn't change
within a Python release. The sentences have 30 tokens on average, and the paragraphs have up to 250.
"""

from __future__ import annotations

import random
import re
from pydoc_data.topics import topics

import tokenizers
from example_models import minilm

SHORTEST, LONGEST = 5, 256
#: Of this number one is a paragraph.
PARAGRAPH_EVERY = 12
#: Each part of this number of texts has about the same lengths.
PART = 40
SEED = 20


def texts() -> tuple[list[str], list[str]]:
    """All sentences and all paragraphs, in a fixed order."""
    found = set()
    for name in sorted(topics):
        for part in topics[name].split("\n\n"):
            # The text without code, grammar and tables.
            if part.startswith("    ") or part.lstrip().startswith(("|", "+-", ">>>", "..", "::=")):
                continue
            text = " ".join(part.split())
            if re.search(r"[A-Za-z]{3}.*[.?!]$", text):
                found.add(text)
    paragraphs = sorted(found)
    sentences = {
        sentence for text in paragraphs for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text)
    }
    return sorted(sentences), paragraphs


def corpus(count: int) -> list[list[int]]:
    """The tokens of the texts, in a random order that is always the same."""
    path = minilm.model_directory() / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    drawn = random.Random(SEED)
    sentences, paragraphs = texts()
    drawn.shuffle(sentences)
    drawn.shuffle(paragraphs)
    chosen: list[list[int]] = []
    while len(chosen) < count:
        source = paragraphs if len(chosen) % PARAGRAPH_EVERY == 0 else sentences
        tokens = tokenizer.encode(source.pop()).ids
        if len(tokens) >= SHORTEST:
            chosen.append(tokens)
    return mix(chosen, drawn)


def mixed(count: int) -> list[str]:
    """Sentences and paragraphs in the same proportion as in the corpus, in a fixed order."""
    drawn = random.Random(SEED)
    sentences, paragraphs = texts()
    drawn.shuffle(sentences)
    drawn.shuffle(paragraphs)
    chosen: list[str] = []
    while len(chosen) < count:
        source = paragraphs if len(chosen) % PARAGRAPH_EVERY == 0 else sentences
        text = source.pop()
        if len(text.split()) >= SHORTEST:
            chosen.append(text)
    drawn.shuffle(chosen)
    return chosen


def mix(texts_: list[list[int]], drawn: random.Random) -> list[list[int]]:
    """A random order in which all parts are similar, so that loads that last a few seconds are
    similar too."""
    ordered = sorted(texts_, key=len)
    count = max(1, len(ordered) // PART)
    parts: list[list[list[int]]] = [[] for _ in range(count)]
    for first in range(0, len(ordered), count):
        alike = ordered[first : first + count]
        drawn.shuffle(alike)
        for part, tokens in zip(parts, alike, strict=False):
            part.append(tokens)
    for part in parts:
        drawn.shuffle(part)
    return [tokens for part in parts for tokens in part]
