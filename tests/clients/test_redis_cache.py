"""Tests of Triton's own cache for Redis, unmodified.

Skipped unless GALATEA_REDIS_CACHES names a directory that contains it as
`redis/libtritoncache_redis.so`, and there is a `redis-server`; docs/response_cache.md describes
how to build it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import BinaryIO

import numpy
import pytest

from conftest import StartServer
from server import Server, free_ports, wait_until
from test_cache_libraries import CACHED, KINDS, infer, counts, full
from transports import TRANSPORTS

CACHES = os.environ.get("GALATEA_REDIS_CACHES", "")
PROGRAM = shutil.which("redis-server")

pytestmark = pytest.mark.skipif(
    not CACHES or PROGRAM is None,
    reason="needs Triton's cache for Redis in GALATEA_REDIS_CACHES, and redis-server",
)

START_SECONDS_MAX = 30


class Redis:
    """A Redis server for the test, which keeps its data in memory."""

    def __init__(self) -> None:
        """Starts it, without data."""
        (self.port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        """Starts it, on the same port every time."""
        assert PROGRAM is not None
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self._is_ready, START_SECONDS_MAX, "Redis answers")

    def stop(self) -> None:
        """Stops it; its data is lost."""
        self.process.terminate()
        self.process.wait(START_SECONDS_MAX)

    def infer(self, *words: str | bytes) -> list[bytes]:
        """Sends a command and returns the reply, a value or a list of values."""
        coded = [word.encode() if isinstance(word, str) else word for word in words]
        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in coded]
        with socket.create_connection(("127.0.0.1", self.port), START_SECONDS_MAX) as connection:
            connection.sendall(b"*%d\r\n%s" % (len(parts), b"".join(parts)))
            with connection.makefile("rb") as response:
                return self._value(response)

    def _value(self, response: BinaryIO) -> list[bytes]:
        line = response.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [one for _ in range(int(rest)) for one in self._value(response)]
        if kind == b"$":
            return [response.read(int(rest) + 2)[:-2]]
        assert kind in b"+:", line
        return [rest]

    def _is_ready(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.infer("PING") == [b"PONG"]
        except OSError:
            return False


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis that runs."""
    one = Redis()
    yield one
    one.stop()


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    """Models that use the cache."""
    for name, config in {"cached": CACHED, "kinds": KINDS}.items():
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    return tmp_path / "models"


@contextlib.contextmanager
def serving(
    start_server: StartServer, models: pathlib.Path, redis: Redis, *settings: str
) -> Iterator[Server]:
    """A server that uses it; its exit code must be 0."""
    settings = ("host=127.0.0.1", f"port={redis.port}", *settings)
    flags = [f"--cache-config=redis,{setting}" for setting in settings]
    with start_server(models, f"--cache-directory={CACHES}", *flags) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.mark.parametrize(
    "transport",
    # On a stream, Triton responds to hits with "response output count mismatch".
    [
        pytest.param(name, marks=[pytest.mark.galatea_only] if "stream" in name else [])
        for name in TRANSPORTS
    ],
)
# row: CACHE-03
def test_hits_equal_the_responses_of_the_model(
    start_server: StartServer, models: pathlib.Path, redis: Redis, transport: str
) -> None:
    """Hits with one row and with several, small and large, over each protocol."""
    with serving(start_server, models, redis) as server:
        with contextlib.closing(TRANSPORTS[transport](server)) as connection:
            for tensors in (full(1, 1), full(3, 5), full(8, 50_000), full(2, 2)):
                first = connection.infer("kinds", tensors)
                again = connection.infer("kinds", tensors)
                for name, array in first.items():
                    assert array.dtype == again[name].dtype
                    numpy.testing.assert_array_equal(array, again[name])
        assert counts(server, "kinds") == (4, 4, 4)
    assert redis.infer("DBSIZE") == [b"4"]


def test_many_clients_share_few_connections(
    start_server: StartServer, models: pathlib.Path, redis: Redis
) -> None:
    """Each client gets its own responses."""
    with serving(start_server, models, redis, "pool_size=2") as server:

        def client(number: int) -> None:
            for turn in range(40):
                value = float(number % 4 * 10 + turn % 10)
                assert infer(server, value, value) == [value, value]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))
        hits, misses, executions = counts(server)
        assert hits + misses == 320
        assert executions == misses >= 40
    assert redis.infer("DBSIZE") == [b"40"]


def test_the_next_server_finds_cached_responses(
    start_server: StartServer, models: pathlib.Path, redis: Redis
) -> None:
    """A second server at the same time finds them too."""
    with serving(start_server, models, redis) as server:
        assert infer(server, 1, 2) == [1, 2]
    with serving(start_server, models, redis) as one, serving(start_server, models, redis) as two:
        assert infer(one, 1, 2) == [1, 2]
        assert counts(one) == (1, 0, 0)
        assert infer(one, 3) == infer(two, 3) == [3]
        assert counts(two) == (1, 0, 0)


@pytest.mark.galatea_only
# row: CACHE-03
def test_redis_restarts(start_server: StartServer, models: pathlib.Path, redis: Redis) -> None:
    """Requests succeed without Redis. Triton doesn't log failed lookups."""
    with serving(start_server, models, redis) as server:
        redis.stop()
        for _ in range(3):
            assert infer(server, 1, 2) == [1, 2]
        assert counts(server) == (0, 3, 3)
        log = server.log()
        assert "response cache 'redis': a lookup failed, for the 2. time: Failed to" in log
        assert "response cache 'redis': an insertion failed, for the 2. time: Failed to" in log
        redis.start()
        for _ in range(2):
            assert infer(server, 1, 2) == [1, 2]
        hits, _, _ = counts(server)
        assert hits == 1


@pytest.mark.galatea_only
def test_damaged_entries_are_not_used(
    start_server: StartServer, models: pathlib.Path, redis: Redis
) -> None:
    """Another value's bytes, or random bytes of the same size."""
    with serving(start_server, models, redis) as server:
        for value in (1, 2):
            infer(server, value)
        one, two = redis.infer("KEYS", "*")
        (field,) = (field for field in redis.infer("HKEYS", one) if field.endswith(b"b"))
        (bytes_of_one,) = redis.infer("HGET", one, field)
        redis.infer("HSET", two, field, bytes_of_one)
        redis.infer("HSET", one, field, b"\7" * len(bytes_of_one))
        for value in (1, 2):
            assert infer(server, value) == [value]
        assert counts(server) == (0, 4, 4)
        for value in (1, 2):
            assert infer(server, value) == [value]
        assert counts(server) == (2, 4, 4)


# row: CACHE-03
def test_a_server_needs_its_redis_at_start(
    start_server: StartServer, models: pathlib.Path, redis: Redis
) -> None:
    """It doesn't start, and logs the reason."""
    redis.stop()
    with pytest.raises(AssertionError, match="Failed to initialize RedisCache: failed to connect"):
        with serving(start_server, models, redis):
            pass
    redis.start()
    with pytest.raises(AssertionError, match="the server ended"):
        flags = [f"--cache-directory={CACHES}", f"--cache-config=redis,port={redis.port}"]
        with start_server(models, *flags) as server:
            server.wait_until_ready()
    assert "Must at a minimum specify 'host' and 'port'" in server.log()
