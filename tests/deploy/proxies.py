"""Three servers and a proxy in front of them, which uses the file from `deploy`."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import tritonclient.grpc
import yaml
from conftest import DEPLOY, find_program
from server import Server, free_ports, wait_until
from tritonclient.utils import InferenceServerException

NAMES = "abc"


class Proxy:
    """A running proxy."""

    def __init__(self, servers: list[Server], folder: pathlib.Path) -> None:
        """Starts it in front of the servers a, b and c."""
        self.servers = servers
        self.folder = folder
        self.http_port, self.grpc_port, self.admin_port = free_ports(3)
        self.log_path = folder / "proxy.log"
        command, environment = self.command()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment."""
        raise NotImplementedError

    def statistics(self) -> str:
        """The proxy's own Prometheus metrics."""
        raise NotImplementedError

    def retries(self) -> int:
        """The number of requests that were sent a second time."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Returns true if requests get through."""
        assert self.process.poll() is None, self.log_path.read_text()
        url = f"http://127.0.0.1:{self.http_port}/v2/health/ready"
        names: list[dict[str, str]] = [{}, {"x-sequence-id": "1"}]
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
            try:
                for headers in names:
                    request = urllib.request.Request(url, headers=headers)
                    with urllib.request.urlopen(request, timeout=5) as reply:
                        assert reply.status == 200
                return all(client.is_server_ready(headers=headers) for headers in names)
            except (OSError, InferenceServerException):
                return False

    def stop(self) -> None:
        """Ends it immediately."""
        self.process.kill()
        self.process.wait()

    def _page(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.read().decode()


class HAProxy(Proxy):
    """HAProxy, whose file takes addresses from the environment."""

    def command(self) -> tuple[list[str], dict[str, str]]:
        environment = {
            "GALATEA_HTTP_BIND": f"127.0.0.1:{self.http_port}",
            "GALATEA_GRPC_BIND": f"127.0.0.1:{self.grpc_port}",
            "GALATEA_STATISTICS_BIND": f"127.0.0.1:{self.admin_port}",
            "GALATEA_ADMIN_SOCKET": str(self.folder / "admin"),
        }
        for name, server in zip(NAMES.upper(), self.servers, strict=True):
            environment[f"GALATEA_{name}_HTTP"] = server.http_url
            environment[f"GALATEA_{name}_GRPC"] = server.grpc_url
        file = DEPLOY / "haproxy" / "haproxy.cfg"
        return [find_program("haproxy"), "-f", str(file)], environment

    def statistics(self) -> str:
        return self._page("/metrics")

    def retries(self) -> int:
        lines = re.findall(r"haproxy_server_redispatch_warnings_total\{.*\} (\d+)", self.statistics())
        lines += re.findall(r"haproxy_server_retry_warnings_total\{.*\} (\d+)", self.statistics())
        return sum(map(int, lines))

    def order(self, text: str) -> str:
        """The response to a line on the administration socket."""
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(self.folder / "admin"))
            one.sendall(text.encode() + b"\n")
            return b"".join(iter(lambda: one.recv(4096), b"")).decode()


class Envoy(Proxy):
    """Envoy, in whose file the addresses are replaced."""

    def command(self) -> tuple[list[str], dict[str, str]]:
        shared = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
        # Parts that are used several times are copied.
        document = json.loads(json.dumps(shared))
        self._replace(document)
        file = self.folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(document))
        command = [find_program("envoy"), "-c", str(file), "--disable-hot-restart"]
        return [*command, "--concurrency", "2", "--log-level", "warn"], {}

    def _replace(self, part: object) -> None:
        """Puts the addresses of this test into every part of the document."""
        if isinstance(part, dict):
            if "address" in part and "port_value" in part:
                part["address"], part["port_value"] = self._place(
                    part["address"], part["port_value"]
                )
            check = part.get("health_check_config", {})
            if "port_value" in check:
                endpoint = part["address"]["socket_address"]["address"]
                check["port_value"] = self._place(endpoint, 8000)[1]
            for inner in part.values():
                self._replace(inner)
        elif isinstance(part, list):
            for inner in part:
                self._replace(inner)

    def _place(self, address: str, port: int) -> tuple[str, int]:
        if not address.startswith("10.0.0."):
            own = {8000: self.http_port, 8001: self.grpc_port, 9901: self.admin_port}
            return "127.0.0.1", own[port]
        server = self.servers[int(address.rsplit(".", 1)[1]) - 1]
        return "127.0.0.1", server.http_port if port == 8000 else server.grpc_port

    def is_ready(self) -> bool:
        """All servers are known in all four clusters."""
        serving = sum(server.is_ready() for server in self.servers)
        try:
            text = self.statistics()
        except OSError:
            return False
        healthy = re.findall(r"^envoy_cluster_membership_healthy\{.*\} (\d+)", text, re.M)
        return healthy == [str(serving)] * 4 and super().is_ready()

    def statistics(self) -> str:
        return self._page("/stats/prometheus")

    def retries(self) -> int:
        lines = re.findall(r"^envoy_cluster_upstream_rq_retry\{.*\} (\d+)", self.statistics(), re.M)
        return sum(map(int, lines))


KINDS: dict[str, type[Proxy]] = {"haproxy": HAProxy, "envoy": Envoy}


def restart(server: Server) -> None:
    """Starts the server again on the same ports."""
    with server.log_path.open("ab") as log:
        server.process = subprocess.Popen(server.process.args, stdout=log, stderr=log)
    server.wait_until_ready()


def kill(server: Server) -> None:
    """Ends the server as the kernel does when memory runs out."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


@contextlib.contextmanager
def in_front_of(
    kind: str, servers: list[Server], folder: pathlib.Path
) -> Iterator[Proxy]:
    """A proxy of this kind."""
    proxy = KINDS[kind](servers, folder)
    try:
        wait_until(proxy.is_ready, 60, "the proxy serves")
        yield proxy
    finally:
        proxy.stop()


def executed(server: Server, model: str) -> int:
    """The number of requests to the model that this server has responded to."""
    if server.process.poll() is not None:
        return 0
    return server.statistics(model)["inference_stats"]["success"]["count"]


def spread(servers: list[Server], model: str) -> list[int]:
    """The number of requests that each server has responded to."""
    return [executed(server, model) for server in servers]


def wait_for_use(server: Server, model: str, count: Callable[[Server, str], int] = executed) -> None:
    """Waits until the server responds to requests."""
    before = count(server, model)
    wait_until(lambda: count(server, model) > before, 60, f"requests reach {server.http_url}")
