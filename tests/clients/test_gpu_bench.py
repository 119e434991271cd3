"""Checks that bench/gpu.py runs to completion with the stand-ins instead of a GPU. Its figures
have no meaning here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from compiling import ROOT, compile_library
from gpus import StandIn, build_driver
from server import Program

pytestmark = pytest.mark.galatea_only
SECONDS_MAX = 300


def test_the_benchmark_of_gpus_completes(program: Program, tmp_path: pathlib.Path) -> None:
    assert program.onnxruntime_library is not None
    folder = build_driver(tmp_path / "libraries")
    library = folder / "libonnxruntime.so"
    compile_library(ROOT / "tests/onnxruntime_gpu/stand_in.c", library, "-fvisibility=hidden")
    stand_in = StandIn(folder, tmp_path / "reports")
    real = str(program.onnxruntime_library)
    environment = stand_in.environment(STAND_IN_ONNXRUNTIME=real, STAND_IN_DELAY_US="0")
    output = tmp_path / "output"
    command = [sys.executable, str(ROOT / "bench" / "gpu.py"), "--galatea", str(program.path.resolve())]
    command += ["--onnxruntime-library", str(library), "--output", str(output)]
    command += ["--seconds", "1", "--models", "convnet", "--instances", "1", "2"]
    command += ["--concurrency", "2", "--batch", "1", "--provider", "CPUExecutionProvider"]
    command += ["--parts", "networks", "memory", "states"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert done.returncode == 0, done.stdout
    rows = {(row["part"], row["what"]): row for row in json.loads((output / "results.json").read_text())}
    assert "inferences_per_second" in rows["instances", "convnet, 2 instances"]
    assert "p50_ms" in rows["instances", "convnet, 1 instance, default convolutions"]
    assert rows["library alone", "convnet"]["inferences_per_second"] > 0
    assert rows["timeline", "timeline-convnet-2"]["executions"] > 0
    for size in (1, 16):
        for way in ("http", "system", "cuda"):
            assert rows["memory", f"{size} MiB, {way}"]["p50_ms"] > 0
    assert rows["states", "64 steps to 16 MiB, in place"]["p50_ms"] > 0
    assert (output / "timeline-convnet-2.svg").read_text().startswith("<svg")
    assert "| memory |" in (output / "report.md").read_text()
    assert stand_in.violations() == []
