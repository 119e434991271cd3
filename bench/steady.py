"""Runs mixed traffic for hours, and records whether the server's behaviour changes.

    .cache/venv-tests/bin/python bench/steady.py --minutes 120 --output FOLDER

The traffic consists of good, hostile and interrupted requests from galatea-load over both
protocols, and of ensembles, sequences, streams, Python models whose workers are killed, reloads
and scrapes. Every request has exactly one outcome in a ledger. The server's memory, descriptors,
threads and CPU time are recorded every ten seconds. steady_report.py, which is called at the end,
can also read a run in progress. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples"), str(ROOT / "bench")]

# pylint: disable=wrong-import-position
import steady_report  # noqa: E402
import steady_traffic as traffic  # noqa: E402
from conftest import find_onnxruntime_library  # noqa: E402
from harness import process  # noqa: E402
from python_backend import interpreter_flag  # noqa: E402
from server import Program, Server  # noqa: E402

RECORD_SECONDS = 10
#: After the last request, until what is left is recorded.
REST_SECONDS = 10
#: For the last answers of a generator.
END_SECONDS_MAX = 600
#: Of galatea-load: a protocol, a model, and requests a second, of which a twentieth is hostile
#: and a twentieth interrupted.
LOADS = [
    ("http", "identity", 60),
    ("grpc", "identity", 60),
    ("http", "ensemble", 20),
    ("grpc", "ensemble", 20),
    ("http", traffic.RELOADED, 20),
    ("grpc", traffic.RELOADED, 20),
    ("http", traffic.PYTHON, 10),
    ("grpc", traffic.PYTHON, 10),
]
CONNECTIONS, HOSTILE, DISCONNECTS = 16, 5, 5


def generator(
    program: pathlib.Path, server: Server, load: tuple[str, str, int], options: argparse.Namespace
) -> subprocess.Popen[str]:
    """Starts a load generator, which writes its report to a file."""
    protocol, model, rate = load
    port = server.http_port if protocol == "http" else server.grpc_port
    name = f"{protocol}-{model}"
    command = [str(program), f"--{protocol}", f"127.0.0.1:{port}", "--model", model]
    for option, value in (
        ("connections", CONNECTIONS),
        ("rate", rate * options.scale),
        ("seconds", round(options.minutes * 60)),
        ("hostile", HOSTILE),
        ("disconnects", DISCONNECTS),
        ("seed", options.seed),
        ("samples", options.output / f"{name}.samples"),
    ):
        command += [f"--{option}", str(value)]
    with (options.output / f"{name}.json").open("w") as report:
        return subprocess.Popen(command, stdout=report, text=True)


def ended(load: subprocess.Popen[str]) -> bool:
    """Returns true if a generator has ended; otherwise kills it."""
    try:
        load.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        load.kill()
        load.wait()
        return False
    return True


def belongings(server: Server) -> dict[str, Any]:
    """The current memory, descriptors, threads and CPU time of the server and its workers, with
    sizes in KiB."""
    pid = server.process.pid
    own, usage = process.memory([pid]), process.usage(pid)
    workers: list[process.Memory] = []
    for child in process.descendants(pid):
        try:
            workers.append(process.memory([child]))
        except (OSError, KeyError):
            continue  # It ended meanwhile.
    return {
        "rss": own.resident,
        "pss": own.proportional,
        "workers": len(workers),
        "workers_pss": sum(each.proportional for each in workers),
        "descriptors": len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())),
        "threads": usage.threads,
        "cpu": usage.user + usage.kernel,
    }


class Recorder(threading.Thread):
    """Records until it is stopped."""

    def __init__(self, server: Server, file: pathlib.Path) -> None:
        super().__init__(daemon=True)
        self._server, self._file = server, file
        self._stopped = threading.Event()
        self._begin = time.monotonic()

    def run(self) -> None:
        """Writes a line of JSON every ten seconds."""
        with self._file.open("w") as file:
            while not self._stopped.wait(RECORD_SECONDS):
                if self._server.process.poll() is not None:
                    return
                seconds = time.monotonic() - self._begin
                line = {"seconds": round(seconds, 1), **belongings(self._server)}
                file.write(json.dumps(line) + "\n")
                file.flush()

    def stop(self) -> None:
        """Ends the recording."""
        self._stopped.set()
        self.join()


def statistics(server: Server, model: str) -> dict[str, int]:
    """The number of a model's requests that the server counted."""
    found = server.statistics(model)["inference_stats"]
    return {kind: int(found[kind].get("count", 0)) for kind in ("success", "fail")}


def problems(server: Server, clients: traffic.Traffic, reports: dict[str, Any]) -> Iterator[str]:
    """Describes what went wrong."""
    yield from clients.ledger.failures
    yield from (f"{name} has no answer" for name in clients.ledger.unanswered())
    for name, report in reports.items():
        if report["failed"]:
            yield f"{name}: {report['failures']}"
        served = {one for one in report["hostile"] if one.endswith((": 200", "code 0", "in time"))}
        if served:
            yield f"{name}: hostile requests got {served}"
    for model, counts in clients.ledger.counts.items():
        seen = statistics(server, model)
        if seen != {"success": counts["answered"], "fail": counts["failed"]}:
            yield f"{model}: the clients counted {dict(counts)}, the server {seen}"
    if "panicked" in server.log():
        yield "the log has a panic"


def run(options: argparse.Namespace, server: Server) -> dict[str, Any]:
    """The whole run, on a server that is ready."""
    before = belongings(server)
    recorder = Recorder(server, options.output / "record.jsonl")
    recorder.start()
    loads = {
        f"{protocol}-{model}": generator(
            options.load_generator, server, (protocol, model, rate), options
        )
        for protocol, model, rate in LOADS
    }
    clients = traffic.Traffic(server, options.minutes * 60, options.seed)
    clients.run()
    late = [name for name, load in loads.items() if not ended(load)]
    recorder.stop()
    time.sleep(REST_SECONDS)
    reports = {
        name: json.loads((options.output / f"{name}.json").read_text())
        for name in loads
        if name not in late
    }
    return {
        "minutes": options.minutes,
        "machine": f"{platform.machine()}, Linux {platform.release().split('-')[0]}",
        "at_rest_before": before,
        "at_rest_after": belongings(server),
        "generators": reports,
        "clients": {model: dict(counts) for model, counts in clients.ledger.counts.items()},
        "crowd": {model: dict(counts) for model, counts in clients.crowd.by_model.items()},
        "reloads": dict(clients.reloads),
        "problems": [f"{name} did not end" for name in late]
        + list(problems(server, clients, reports)),
    }


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    release = ROOT / "target" / "release"
    add("--galatea", type=pathlib.Path, default=release / "galatea")
    add("--load-generator", type=pathlib.Path, default=release / "galatea-load")
    add("--onnxruntime-library", type=pathlib.Path, default=find_onnxruntime_library())
    add("--minutes", type=float, default=120)
    add("--scale", type=float, default=1.0, help="multiplies the rates of galatea-load")
    add("--seed", type=int, default=1)
    add("--output", type=pathlib.Path, required=True, help="a new folder for all that is measured")
    add("--docs", type=pathlib.Path, help="a folder for the report's plots, such as docs/images")
    return parser.parse_args()


def main() -> int:
    """Runs the command, and returns the exit status."""
    options = parse_arguments()
    options.output = options.output.resolve()
    options.output.mkdir(parents=True)
    repository = options.output / "models"
    traffic.write_models(repository)
    program = Program(options.galatea.resolve(), options.onnxruntime_library, False)
    flags = ["--model-control-mode=explicit", "--load-model=*", interpreter_flag()]
    server = Server(program, repository, options.output / "server.log", flags)
    try:
        server.wait_until_ready()
        result = run(options, server)
    finally:
        code = server.stop()
    result["exit_code"] = code
    if code != 0:
        result["problems"].append(f"the server ended with {code}")
    (options.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return steady_report.report(options.output, options.docs)


if __name__ == "__main__":
    sys.exit(main())
