"""Measures how long models from a slow bucket take to become ready, compared with a local disk.

    .cache/venv-tests/bin/python bench/buckets.py --galatea target/release/galatea

There are 105 identity models, each with a configuration and a file. Each response of the store
is delayed. It needs `moto_server` (tests/buckets.txt, or GALATEA_MOTO_SERVER). See
bench/README.md.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples")]

# pylint: disable=wrong-import-position
from buckets import BUCKET, KEYS, moto, proxy  # noqa: E402
from conftest import find_onnxruntime_library  # noqa: E402
from server import Program, Server  # noqa: E402

CONFIG = """\
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def write_models(folder: pathlib.Path, count: int, weights: int) -> None:
    """Writes the models."""
    for number in range(count):
        version = folder / f"m{number}" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "weights").write_bytes(bytes(weights))


def ready_seconds(
    program: Program, repository: Any, work: pathlib.Path, environment: dict[str, str]
) -> float:
    """The time from the start of the process until all models are ready."""
    begin = time.monotonic()
    server = Server(program, repository, work / "log", environment=environment)
    try:
        server.wait_until_ready()
        return time.monotonic() - begin
    finally:
        server.stop()


def show(name: str, seconds: list[float]) -> None:
    """Prints a row of the table."""
    print(f"| {name} | {statistics.median(seconds) * 1e3:,.0f} | {min(seconds) * 1e3:,.0f} to "
          f"{max(seconds) * 1e3:,.0f} |", flush=True)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--galatea", type=pathlib.Path, required=True)
    add("--onnxruntime-library", type=pathlib.Path, default=find_onnxruntime_library())
    add("--models", type=int, default=105)
    add("--weights", type=int, default=1 << 20, help="bytes of each model's file")
    add("--delays", type=float, nargs="*", default=[0, 20, 100], help="milliseconds")
    add("--rounds", type=int, default=5)
    options = parser.parse_args()
    program = Program(options.galatea.resolve(), options.onnxruntime_library, False)
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        local = work / "models"
        write_models(local, options.models, options.weights)
        print(f"| {options.models} models | ready ms | range |\n|---|---|---|")
        with moto(work) as store:
            store.upload(local, "models/")
            rounds = range(options.rounds)
            show("local disk", [ready_seconds(program, local, work, {}) for _ in rounds])
            for delay in options.delays:
                with proxy(store, delay_seconds=delay / 1e3) as between:
                    url = f"s3://127.0.0.1:{between.port}/{BUCKET}/models"
                    times = [ready_seconds(program, url, work, KEYS) for _ in rounds]
                show(f"bucket, {delay:g} ms", times)


if __name__ == "__main__":
    main()
