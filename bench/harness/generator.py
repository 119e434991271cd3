"""A running load generator of any kind."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
from collections.abc import Callable, Mapping

# The time in addition to the measured time, for generating the inputs and for the first
# and the last requests.
START_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True)
class ClientView:
    """The clients' results, with latencies in microseconds."""

    throughput: float
    p50: float
    p99: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The command to run, the file that it writes, and its parser."""

    command: tuple[str, ...]
    report: pathlib.Path
    parse: Callable[[str], ClientView]
    environment: Mapping[str, str] | None = None


class Generator:
    """A load generator that is running."""

    def __init__(self, plan: Plan, core: int) -> None:
        plan.report.unlink(missing_ok=True)
        self._plan = plan
        self._output = plan.report.with_suffix(".out").open("w+")
        self._child = subprocess.Popen(
            ["taskset", "-c", str(core), *plan.command],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=plan.environment,
        )

    def ended(self) -> bool:
        """Returns true if it has ended by itself."""
        return self._child.poll() is not None

    def finish(self, duration: float) -> ClientView:
        """Waits until it ends, and reads its report."""
        try:
            status = self._child.wait(duration + START_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{self._plan.command[0]} did not end") from error
        if status != 0 or not self._plan.report.exists():
            self._output.seek(0)
            name = pathlib.Path(self._plan.command[0]).name
            tail = " / ".join(self._output.read().split("\n")[-4:]).strip(" /")
            raise RuntimeError(f"{name} ended with status {status}: {tail}")
        return self._plan.parse(self._plan.report.read_text())

    def close(self) -> None:
        """Ends it if it is still running."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._output.close()

    @property
    def pid(self) -> int:
        """The process whose CPU time shows whether the client limited the
        throughput."""
        return self._child.pid
