"""Tests of HAProxy and Envoy in front of three servers: nothing is lost, and sequences stay
together."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest
from conftest import DEPLOY, StartServer, find_program, write_models
from ledger import Client, Ledger, load
from proxies import KINDS, HAProxy, Proxy, executed, in_front_of, kill, restart, spread, wait_for_use
from server import Server, wait_until
from tritonclient.utils import InferenceServerException

#: Its batch size is also the number of sequences that a server takes at the same time.
MODEL = (
    'backend: "identity" max_batch_size: 64 '
    'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ] '
    'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ] '
)
SLOW = (
    'parameters { key: "execute_delay_ms" value { string_value: "500" } } '
    "instance_group { count: 8 kind: KIND_CPU } "
)
MODELS = {
    "plain": MODEL,
    "slow": MODEL + SLOW,
    "sequence": MODEL + "sequence_batching { max_sequence_idle_microseconds: 100000000 }",
}

#: More than HAProxy's buffer.
LARGE = 100_000

#: What a client of a sequence model does to stay on one server.
HEADER = "header"
BODY = "body"

StartProxy = Callable[[str], contextlib.AbstractContextManager[Proxy]]

everywhere = pytest.mark.parametrize("protocol", ["http", "grpc"])
both = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository for every server."""
    return write_models(tmp_path_factory.mktemp("models"), MODELS)


@pytest.fixture
def servers(start_server: StartServer, models: pathlib.Path) -> Iterator[list[Server]]:
    """Three servers."""
    with contextlib.ExitStack() as stack:
        flags = "--exit-timeout-secs=5"
        yield [stack.enter_context(start_server(models, flags)) for _ in range(3)]


@pytest.fixture
def start_proxy(servers: list[Server], tmp_path: pathlib.Path) -> StartProxy:
    """Starts a proxy in front of them."""
    return lambda kind: in_front_of(kind, servers, tmp_path)


def test_haproxy_accepts_its_file_as_it_is() -> None:
    """This doesn't use the tests' variables."""
    command = [find_program("haproxy"), "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr


def test_envoy_accepts_its_file_as_it_is() -> None:
    file = str(DEPLOY / "envoy" / "envoy.yaml")
    command = [find_program("envoy"), "--mode", "validate", "-c", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "deprecated" not in done.stderr.lower(), done.stderr


@both
@everywhere
def test_a_stopped_server_loses_nothing(
    kind: str, protocol: str, servers: list[Server], start_proxy: StartProxy
) -> None:
    """The server gets SIGTERM under load. When it is started again, it is used again."""
    stopped = servers[0]
    with start_proxy(kind) as proxy, load(protocol, proxy, "plain"):
        for server in servers:
            wait_for_use(server, "plain")
        with load(protocol, proxy, "slow", clients=6):
            wait_until(lambda: stopped.is_executing("slow"), 60, "a request is in progress")
            if isinstance(proxy, HAProxy) and protocol == "grpc":
                # It can't see that a call was refused in the moment before it learns of the stop.
                proxy.order("set server http_stateless/a state drain")
            stopped.terminate()
            assert stopped.wait_for_exit() == 0
        restart(stopped)
        if isinstance(proxy, HAProxy):
            proxy.order("set server http_stateless/a state ready")
        wait_for_use(stopped, "plain")


@both
@everywhere
def test_a_killed_server_loses_nothing(
    kind: str, protocol: str, servers: list[Server], start_proxy: StartProxy
) -> None:
    """Another server executes the requests that it was executing."""
    killed = servers[0]
    with start_proxy(kind) as proxy, load(protocol, proxy, "plain"):
        for server in servers:
            wait_for_use(server, "plain")
        with load(protocol, proxy, "slow", clients=6):
            wait_until(lambda: killed.is_executing("slow"), 60, "a request is in progress")
            kill(killed)
            wait_until(lambda: proxy.retries() > 0, 60, "the proxy tries again")
        restart(killed)
        wait_for_use(killed, "plain")


def test_clients_of_grpc_may_repeat_what_a_stopped_server_refuses(
    servers: list[Server], start_proxy: StartProxy
) -> None:
    """In this case, HAProxy doesn't need a command to drain the server."""
    with start_proxy("haproxy") as proxy, load("grpc", proxy, "plain", repeat=True):
        for server in servers:
            wait_for_use(server, "plain")
        servers[0].terminate()
        assert servers[0].wait_for_exit() == 0
        for server in servers[1:]:
            wait_for_use(server, "plain")


@pytest.mark.parametrize(("kind", "is_repeated"), [("haproxy", False), ("envoy", True)])
def test_large_requests_are_repeated_by_envoy_alone(
    kind: str, is_repeated: bool, servers: list[Server], start_proxy: StartProxy
) -> None:
    """They don't fit into HAProxy's buffer."""
    with start_proxy(kind) as proxy:
        ledger = Ledger("http", proxy, "slow", clients=6, size=600_000)
        wait_until(lambda: servers[0].is_executing("slow"), 60, "a request is in progress")
        kill(servers[0])
        if is_repeated:
            wait_until(lambda: proxy.retries() > 0, 60, "the proxy tries again")
            ledger.close()
        else:
            wait_until(lambda: ledger.failures != [], 60, "a request fails")
            with pytest.raises(AssertionError):
                ledger.close()


@both
@everywhere
def test_a_server_that_is_not_ready_gets_nothing(
    kind: str, protocol: str, start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """If the repository is gone, the server responds with 503."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(start_server(models)) for _ in range(3)]
        unready = servers[0]
        unready.stop()
        command = list(unready.process.args)
        wrong = [flag.replace(str(models), str(tmp_path / "missing")) for flag in command]
        unready.process = subprocess.Popen([*wrong, "--exit-on-error=false"], stderr=subprocess.DEVNULL)
        wait_until(lambda: unready_answers(unready), 60, "it answers")
        with in_front_of(kind, servers, tmp_path) as proxy:
            # The first check may still be in progress, and its requests aren't counted.
            wait_until(lambda: asks_without_failure(protocol, proxy), 30, "it is taken out")
            with load(protocol, proxy, "plain") as ledger:
                wait_until(lambda: len(ledger.answers) > 100, 60, "requests")
        assert unready.process.poll() is None


def unready_answers(server: Server) -> bool:
    """Returns true if the server reports that it isn't ready."""
    try:
        return server.get("/v2/health/ready").status != 200
    except OSError:
        return False


def asks_without_failure(protocol: str, proxy: Proxy) -> bool:
    """Returns true if more requests than there are servers get a response."""
    with contextlib.closing(Client(protocol, proxy)) as client:
        try:
            return all(client.ask("plain", [value]) == [value] for value in range(12))
        except InferenceServerException:
            return False


class Sequence:
    """A sequence of requests from one client."""

    def __init__(self, client: Client, number: int, by: str) -> None:
        """Sends its correlation ID in the body, and optionally in a header."""
        self.client = client
        self.options = {"sequence_id": number}
        if by == HEADER:
            self.options["headers"] = {"x-sequence-id": str(number)}

    def ask(self, start: bool = False, end: bool = False, size: int = 1) -> None:
        """Sends one request, whose response must be correct."""
        values = list(range(size))
        answer = self.client.ask(
            "sequence", values, sequence_start=start, sequence_end=end, **self.options
        )
        assert answer == values


#: Small ones, those of programs that count in millions, and those beyond 53 bits.
NUMBERS = [*range(1, 6), *range(1_000_001, 1_000_006), *range(2**62, 2**62 + 3)]


@contextlib.contextmanager
def sequences(proxy: Proxy, protocol: str, by: str, numbers: list[int]) -> Iterator[list[Sequence]]:
    """Sequences that haven't started, whose requests use many connections."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(contextlib.closing(Client(protocol, proxy))) for _ in range(4)
        ]
        yield [
            Sequence(clients[index % len(clients)], number, by)
            for index, number in enumerate(numbers)
        ]


@pytest.mark.parametrize(
    ("kind", "protocol", "by"),
    [
        ("haproxy", "http", BODY),
        ("haproxy", "http", HEADER),
        ("haproxy", "grpc", HEADER),
        ("envoy", "http", HEADER),
        ("envoy", "grpc", HEADER),
    ],
)
def test_sequences_stay_on_one_server(
    kind: str, protocol: str, by: str, servers: list[Server], start_proxy: StartProxy
) -> None:
    """A different server would refuse the request, because it doesn't know the sequence."""
    with start_proxy(kind) as proxy, sequences(proxy, protocol, by, NUMBERS) as all_of_them:
        for step in range(4):
            for one in all_of_them:
                one.ask(start=step == 0, end=step == 3, size=LARGE if step == 2 else 1)
    counts = spread(servers, "sequence")
    assert sum(counts) == 4 * len(NUMBERS)
    assert all(count % 4 == 0 for count in counts)
    assert sum(count > 0 for count in counts) > 1, counts


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequences_without_a_header_need_haproxy_and_http(
    protocol: str, servers: list[Server], start_proxy: StartProxy
) -> None:
    """Envoy doesn't read bodies, and distributes the requests."""
    with (
        start_proxy("envoy") as proxy,
        sequences(proxy, protocol, BODY, NUMBERS) as all_of_them,
        pytest.raises(InferenceServerException, match="must specify the START flag"),
    ):
        for step in range(1000):
            for one in all_of_them:
                one.ask(start=step == 0)


def test_haproxy_keeps_sequences_where_they_are_when_a_server_comes_back(
    servers: list[Server], start_proxy: StartProxy
) -> None:
    """Its hash alone would move a third of them."""
    kill(servers[0])
    with start_proxy("haproxy") as proxy, sequences(proxy, "http", BODY, NUMBERS) as all_of_them:
        wait_until(lambda: "DOWN" in proxy_state(proxy, "a"), 30, "a is out")
        for one in all_of_them:
            one.ask(start=True)
        restart(servers[0])
        wait_until(lambda: "UP" in proxy_state(proxy, "a"), 30, "a is back")
        for one in all_of_them:
            one.ask(end=True)
        assert executed(servers[0], "sequence") == 0


def proxy_state(proxy: Proxy, name: str) -> str:
    """HAProxy's name for the state of a server."""
    assert isinstance(proxy, HAProxy)
    (line,) = (
        line
        for line in proxy.order("show stat").splitlines()
        if line.startswith(f"http_stateless,{name},")
    )
    return line.split(",")[17]


def test_haproxy_drains_a_server(servers: list[Server], start_proxy: StartProxy) -> None:
    """Its sequences continue until they end; new ones and other requests go to other servers."""
    with start_proxy("haproxy") as proxy, sequences(proxy, "http", BODY, NUMBERS) as all_of_them:
        assert isinstance(proxy, HAProxy)
        for one in all_of_them:
            one.ask(start=True)
        before = spread(servers, "sequence")
        drained = before.index(max(before))
        proxy.order(f"set server http_stateless/{'abc'[drained]} state drain")
        for one in all_of_them:
            one.ask(end=True)
        assert spread(servers, "sequence") == [2 * count for count in before]
        plain = executed(servers[drained], "plain")
        with load("http", proxy, "plain") as ledger:
            wait_until(lambda: len(ledger.answers) > 50, 60, "requests")
        with sequences(proxy, "http", BODY, list(range(100, 120))) as others:
            for one in others:
                one.ask(start=True, end=True)
        assert executed(servers[drained], "plain") == plain
        assert executed(servers[drained], "sequence") == 2 * before[drained]


def test_the_ledger_notices_what_is_lost(servers: list[Server], start_proxy: StartProxy) -> None:
    """Without servers, requests fail, and the check in the other tests must report this."""
    with start_proxy("haproxy") as proxy:
        ledger = Ledger("http", proxy, "plain", clients=2)
        wait_until(lambda: len(ledger.answers) > 10, 60, "requests")
        for server in servers:
            kill(server)
        wait_until(lambda: ledger.failures != [], 60, "a failure")
        with pytest.raises(AssertionError):
            ledger.close()
