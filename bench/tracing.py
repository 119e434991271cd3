"""Measures the cost of tracing at full load, in CPU time per request.

    python bench/tracing.py --galatea target/release/galatea [--triton COMMAND]

The server traces nothing, or one of 1,000 requests, to files or to a collector. The collector is a
thread of this program, on the load's core. This program accepts the options of run.py. See
bench/README.md and harness/variants.py.
"""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import variants  # noqa: E402
from harness.server import Program  # noqa: E402

ONE_OF = 1000
TRACES_IN_FILE = 100


class Collector(http.server.BaseHTTPRequestHandler):
    """Receives batches of spans, and counts their bytes."""

    received = 0

    def do_POST(self) -> None:  # noqa: N802
        """Receives a batch."""
        type(self).received += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@contextlib.contextmanager
def collecting() -> Iterator[str]:
    """Runs a collector, and provides its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of(program: Program, work: pathlib.Path, url: str) -> tuple[Program, ...]:
    """The server without tracing, with tracing to files, and with tracing to the collector."""
    settings = {
        "off": (),
        "files": (
            f"triton,file={work / program.name}.traces",
            f"triton,log-frequency={TRACES_IN_FILE}",
        ),
        "collector": ("mode=opentelemetry", f"opentelemetry,url={url}"),
    }
    return tuple(
        Program(
            f"{program.name}-{name}",
            (
                *program.command,
                *(f"--trace-config={each}" for each in given),
                *((f"--trace-config=rate={ONE_OF}", "--trace-config=level=TIMESTAMPS")
                  if given else ()),
            ),
        )
        for name, given in settings.items()
    )


def check_traces(work: pathlib.Path, programs: list[Program]) -> None:
    """If no traces were written, the figures would be those of a server that doesn't trace."""
    for program in programs:
        if not any(work.glob(f"{program.name}.traces.*")):
            sys.exit(f"{program.name} wrote no files of traces")
    if Collector.received == 0:
        sys.exit("the collector received nothing")


def main() -> None:
    """Compares them for each server."""
    options = run.parse_arguments(None)
    with collecting() as url, tempfile.TemporaryDirectory(prefix="galatea-bench-") as folder:
        work = pathlib.Path(folder)
        programs = run.programs(options, work)
        variants.compare(options, work, [of(program, work, url) for program in programs])
        check_traces(work, programs)


if __name__ == "__main__":
    main()
