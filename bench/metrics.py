"""Measures the CPU time per request with all metrics and with none, at full load.

    python bench/metrics.py --galatea target/release/galatea [--triton COMMAND]

It accepts the options of run.py. See bench/README.md and harness/variants.py.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import report, variants  # noqa: E402
from harness.server import Program  # noqa: E402

NONE = ("--allow-metrics=false",)
ALL = tuple(
    f"--metrics-config={setting}=true" for setting in ("histogram_latencies", "summary_latencies")
)
#: Triton takes unknown settings, but has no use for this one.
OWN = "--metrics-config=galatea_histograms=true"


def of(program: Program) -> tuple[Program, Program]:
    """The server without metrics, and with all of them."""
    every = (*ALL, OWN) if program.name == report.OURS else ALL
    return (
        Program(f"{program.name}-none", (*program.command, *NONE)),
        Program(f"{program.name}-all", (*program.command, *every)),
    )


def main() -> None:
    """Compares them for each server."""
    options = run.parse_arguments(None)
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as folder:
        work = pathlib.Path(folder)
        servers = [of(program) for program in run.programs(options, work)]
        variants.compare(options, work, servers)


if __name__ == "__main__":
    main()
