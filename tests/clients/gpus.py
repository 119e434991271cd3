"""A server with simulated GPUs: the driver in tests/devices stands in for NVIDIA's."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess

from compiling import FLAGS, ROOT, compile_library

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "devices"

UUIDS = [
    "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
    "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f",
]


def build_driver(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the stand-in under the names of both libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        options = ["-fvisibility=hidden", *sources, "-o", str(folder / name), "-lpthread"]
        subprocess.run(["cc", *FLAGS, *options], check=True)
    return folder


@dataclasses.dataclass(frozen=True)
class StandIn:
    """The report of one process that uses the stand-in."""

    libraries: pathlib.Path
    reports: pathlib.Path

    def environment(self, **variables: str) -> dict[str, str]:
        """The variables with which a process finds the stand-in; see
        tests/devices/README.md."""
        self.reports.mkdir(parents=True, exist_ok=True)
        return {
            "LD_LIBRARY_PATH": str(self.libraries),
            "STAND_IN_DIRECTORY": str(self.reports),
            **variables,
        }

    def lose(self, gpu: int) -> None:
        """Makes a GPU unavailable from now on."""
        (self.reports / f"lost-{gpu}").touch()

    def violations(self) -> list[str]:
        """The rules that the process broke, and the resources that it didn't release."""
        path = self.reports / "violations"
        return path.read_text().splitlines() if path.exists() else []

    def calls(self) -> dict[str, int]:
        """The number of the process's calls of each function, which is complete once the
        process has ended."""
        counts: dict[str, int] = {}
        for line in (self.reports / "calls").read_text().splitlines():
            name, count = line.split()
            counts[name] = counts.get(name, 0) + int(count)
        return counts


def build_libraries(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the stand-ins for the driver and for ONNX Runtime with CUDA."""
    build_driver(folder)
    source = ROOT / "tests" / "onnxruntime_gpu" / "stand_in.c"
    compile_library(source, folder / "libonnxruntime.so", "-fvisibility=hidden")
    return folder


@dataclasses.dataclass(frozen=True)
class Gpus:
    """Both stand-ins, for one server."""

    driver: StandIn
    library: pathlib.Path
    real_library: pathlib.Path

    def environment(self, **variables: str) -> dict[str, str]:
        real = str(self.real_library)
        return self.driver.environment(STAND_IN_ONNXRUNTIME=real, **variables)

    def flag(self) -> str:
        return f"--onnxruntime-library={self.library}"

    def sessions(self) -> list[str]:
        """The lines that the sessions have written so far."""
        lines = (self.driver.reports / "onnxruntime").read_text().splitlines()
        return [line for line in lines if line.startswith("session ")]
