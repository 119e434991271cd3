"""Tests that every Triton flag is accepted, and that one without a meaning here is reported
once."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess

import pytest

from conftest import StartServer
from server import Program
from test_command_line import run

#: The flags of Triton's command line (command_line_parser.cc, August 2026) with a value that a
#: server starts with; `None` for a switch. `help` ends the program, and is tested elsewhere.
FLAGS: dict[str, str | None] = {
    "id": "name",
    "exit-timeout-secs": "5",
    "model-store": "{models}",
    "model-repository": "{models}",
    "exit-on-error": "true",
    "disable-auto-complete-config": None,
    "strict-readiness": "true",
    "model-control-mode": "explicit",
    "repository-poll-secs": "5",
    "load-model": "*",
    "model-config-name": "custom",
    "model-load-thread-count": "2",
    "model-load-retry-count": "1",
    "model-namespacing": "false",
    "enable-peer-access": "false",
    "allow-http": "true",
    "http-address": "127.0.0.1",
    "http-port": "0",
    "reuse-http-port": "true",
    "http-header-forward-pattern": "x-.*",
    "http-thread-count": "2",
    "http-max-input-size": "1000000",
    "http-restricted-api": "trace:key=value",
    "allow-grpc": "true",
    "grpc-address": "127.0.0.1",
    "grpc-port": "0",
    "reuse-grpc-port": "true",
    "grpc-header-forward-pattern": "x-.*",
    "grpc-infer-thread-count": "2",
    "grpc-infer-allocation-pool-size": "8",
    "grpc-max-response-pool-size": "4",
    "grpc-use-ssl": "false",
    "grpc-use-ssl-mutual": "false",
    "grpc-server-cert": "{models}/cert",
    "grpc-server-key": "{models}/key",
    "grpc-root-cert": "{models}/root",
    "grpc-infer-response-compression-level": "low",
    "grpc-keepalive-time": "7200000",
    "grpc-keepalive-timeout": "20000",
    "grpc-keepalive-permit-without-calls": "false",
    "grpc-http2-max-pings-without-data": "2",
    "grpc-http2-min-recv-ping-interval-without-data": "300000",
    "grpc-http2-max-ping-strikes": "2",
    "grpc-max-connection-age": "60000",
    "grpc-max-connection-age-grace": "1000",
    "grpc-restricted-protocol": "trace:key=value",
    "log-verbose": "0",
    "log-info": "true",
    "log-warning": "true",
    "log-error": "true",
    "log-format": "default",
    "log-file": "",
    "allow-sagemaker": "true",
    "sagemaker-port": "0",
    "sagemaker-safe-port-range": "0-65535",
    "sagemaker-thread-count": "2",
    "allow-vertex-ai": "false",
    "vertex-ai-port": "0",
    "vertex-ai-thread-count": "2",
    "vertex-ai-default-model": "model",
    "allow-metrics": "true",
    "allow-gpu-metrics": "true",
    "allow-cpu-metrics": "true",
    "metrics-address": "127.0.0.1",
    "metrics-port": "0",
    "metrics-interval-ms": "2000",
    "metrics-config": "summary_latencies=true",
    "trace-config": "rate=1000",
    "cache-config": "local,size=1048576",
    "cache-directory": "{models}",
    "rate-limit": "execution_count",
    "rate-limit-resource": "R1:2:0",
    "pinned-memory-pool-byte-size": "1024",
    "cuda-memory-pool-byte-size": "0:1024",
    "cuda-virtual-address-size": "0:1024",
    "min-supported-compute-capability": "6.0",
    "buffer-manager-thread-count": "2",
    "host-policy": "cpu_0,numa-node=0",
    "model-load-gpu-limit": "0:0.5",
    "allow-client-shm": "true",
    "backend-directory": "{models}",
    "backend-config": "identity,key=value",
    "repoagent-directory": "{models}",
    "strict-model-config": "false",
    "response-cache-byte-size": "1048576",
    "trace-file": "{models}/trace",
    "trace-level": "OFF",
    "trace-rate": "1000",
    "trace-count": "-1",
    "trace-log-frequency": "0",
}
#: Flags that the recorded release doesn't have.
LATER = {"allow-client-shm", "http-max-input-size", "model-load-retry-count",
         "grpc-max-response-pool-size", "grpc-infer-thread-count"}  # fmt: skip
#: Flags that may not name the same twice.
ONCE = {"http-restricted-api", "grpc-restricted-protocol"}
#: What changes nothing here: there is no GPU, and no TLS.
WITHOUT_EFFECT = {
    "enable-peer-access",
    "grpc-server-cert",
    "grpc-server-key",
    "grpc-root-cert",
    "grpc-http2-max-pings-without-data",
    "allow-gpu-metrics",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "min-supported-compute-capability",
    "model-load-gpu-limit",
}
#: What another flag must come with.
COMPANIONS = {
    "load-model": ["--model-control-mode=explicit"],
    "rate-limit-resource": ["--rate-limit=execution_count"],
}
#: What can't be together with others: a second cache, deprecated and new flags of traces, and a
#: key of TLS that isn't there.
ALONE = {
    "model-store", "model-repository", "response-cache-byte-size", "grpc-use-ssl-mutual",
    "trace-file", "trace-level", "trace-rate", "trace-count", "trace-log-frequency",
    "http-port", "grpc-port", "metrics-port", "model-config-name", "cache-directory",
    "backend-directory", "repoagent-directory", "http-address", "grpc-address",
}  # fmt: skip


def argument(name: str, models: pathlib.Path) -> str:
    """A flag as it is given on the command line."""
    value = FLAGS[name]
    return f"--{name}" if value is None else f"--{name}={value.format(models=models)}"


def remarks(text: str) -> list[str]:
    """The flags that are reported as having no effect, in order."""
    return re.findall(r"'--([a-z0-9-]+)' has no effect", text)


@pytest.mark.parametrize("name", FLAGS)
def test_each_flag_is_taken(program: Program, tmp_path: pathlib.Path, name: str) -> None:
    """The command line is parsed to its end, so the missing repository is what stops the
    startup."""
    if program.is_triton and name in LATER:
        pytest.skip("the recorded release doesn't have it")
    missing = f"--model-repository={tmp_path / 'missing'}"
    given = [argument(name, tmp_path)] * (1 if name in ONCE else 2)
    done = run(program, missing, *COMPANIONS.get(name, []), *given)
    output = done.stdout + done.stderr
    tail = output[-2000:]
    assert "/missing" in tail and "Bad option" not in tail, tail
    assert done.returncode == 1
    if not program.is_triton:
        expected = [name] if name in WITHOUT_EFFECT else []
        assert remarks(output) == expected, output


@pytest.mark.galatea_only
# row: CLI-11 CLI-12 CLI-13 CLI-20 CLI-22
def test_a_server_starts_with_all_of_them(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Flags without effect are reported once in the log, although each flag is given twice."""
    names = [name for name in FLAGS if name not in ALONE]
    once = [argument(name, tmp_path) for name in names]
    flags = [*once, *(argument(name, tmp_path) for name in names if name not in ONCE)]
    models = tmp_path / "models"
    models.mkdir()
    with start_server(models, *flags) as server:
        server.wait_until_ready()
        assert sorted(remarks(server.log())) == sorted(WITHOUT_EFFECT)
    assert server.process.returncode == 0


@pytest.mark.galatea_only
# row: DEP-08
def test_the_flags_mean_the_same_under_tritons_name(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """The output is the same, except for times and process IDs."""
    link = tmp_path / "tritonserver"
    link.symlink_to(program.path)
    flags = [argument(name, tmp_path) for name in FLAGS if name not in ALONE]
    missing = f"--model-repository={tmp_path / 'missing'}"

    def output(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
        text = re.sub(r"([IWE])\d{4} [\d:.]+ \d+ ", r"\1 ", done.stdout + done.stderr)
        return done.returncode, text

    ours = output(run(program, missing, *flags))
    assert ours == output(run(dataclasses.replace(program, path=link), missing, *flags))
    assert ours[0] == 1 and "has no effect" in ours[1]
