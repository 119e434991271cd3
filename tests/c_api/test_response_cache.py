"""Tests of the response cache's options."""

from __future__ import annotations

import ctypes
import pathlib
import re
import sys
from collections.abc import Callable

import pytest

from conftest import CONFIG

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/c_api"))

from in_process import Server  # noqa: E402


class CachedServer(Server):
    """Creates a server with additional options."""

    def __init__(
        self, library: pathlib.Path, repository: pathlib.Path, *options: tuple[object, ...]
    ) -> None:
        self._more = options
        super().__init__(str(library), str(repository))

    def _call(self, name: str, *arguments: object) -> None:
        if name == "ServerNew":
            for option, *values in self._more:
                super()._call(f"ServerOptionsSet{option}", arguments[1], *values)
        super()._call(name, *arguments)

    def hits(self) -> float | None:
        """The number of the model's hits, if it uses a cache."""
        metrics, text, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
        self._call("ServerMetrics", self._server, ctypes.byref(metrics))
        self._call(
            "MetricsFormatted", metrics, ctypes.c_uint(0), ctypes.byref(text), ctypes.byref(size)
        )
        shown = ctypes.string_at(text, size.value).decode()
        self._call("MetricsDelete", metrics)
        found = re.search(r"^nv_cache_num_hits_per_model\{.*\} (\S+)$", shown, re.MULTILINE)
        return float(found[1]) if found else None


@pytest.fixture
def cached(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with a model that uses the cache."""
    folder = tmp_path / "models"
    (folder / "identity" / "1").mkdir(parents=True)
    text = CONFIG + "response_cache { enable: true }\n"
    (folder / "identity" / "config.pbtxt").write_text(text)
    return folder


@pytest.fixture
def caches(compile: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory of caches that contains the example."""
    built = compile("cc", ROOT / "examples/caches/fifo.c", "-shared", "-fPIC", "-lpthread")
    library = tmp_path / "caches" / "fifo" / "libtritoncache_fifo.so"
    library.parent.mkdir(parents=True)
    built.rename(library)
    return library.parents[1]


def hits_after_two_requests(server: CachedServer) -> float | None:
    """The number of hits after two identical requests."""
    server.load("identity")
    for _ in range(2):
        assert server.infer("identity", [1, 2]) == [1, 2]
    hits = server.hits()
    server.close()
    return hits


def test_a_library(library: pathlib.Path, cached: pathlib.Path, caches: pathlib.Path) -> None:
    """The cache gets the JSON unchanged, and finds the server's functions."""
    directory = ("CacheDirectory", str(caches).encode())
    config = ("CacheConfig", b"fifo", b'{"of": [1, {}], "entries": 3}')
    assert hits_after_two_requests(CachedServer(library, cached, directory, config)) == 1


@pytest.mark.parametrize(
    ("option", "hits"),
    [
        (("CacheConfig", b"local", b'{"size": "100000"}'), 1),
        (("CacheConfig", b"local", b'{"size": 100000}'), 1),
        (("ResponseCacheByteSize", ctypes.c_uint64(100_000)), 1),
        (("ResponseCacheByteSize", ctypes.c_uint64(0)), 0),
    ],
)
def test_the_local_cache(
    library: pathlib.Path, cached: pathlib.Path, option: tuple[object, ...], hits: float
) -> None:
    """Its size can be given in each form. Without a size, there is no cache, but the model
    still has a cache's counters."""
    assert hits_after_two_requests(CachedServer(library, cached, option)) == hits


def test_invalid_cache_options(
    library: pathlib.Path, cached: pathlib.Path, caches: pathlib.Path
) -> None:
    """Wrong options and an unavailable cache fail with a reason."""
    directory = ("CacheDirectory", str(caches).encode())
    for options, reason in (
        ([("CacheConfig", b"local", b"[]")], "config didn't contain a valid 'size' field."),
        ([("CacheConfig", b"local", b"{")], "config didn't contain a valid 'size' field."),
        ([directory, ("CacheConfig", b"fifo", b"[]")], "the setting 'entries' must be"),
        ([directory, ("CacheConfig", b"fifo", b"{")], "the setting 'entries' must be"),
        ([directory, ("CacheConfig", b"none", b"{}")], "libtritoncache_none.so"),
        ([directory, ("CacheConfig", b"fifo", b"{}")], "the setting 'entries' must be"),
        ([("CacheConfig", b"local", b"{}")], "config didn't contain a valid 'size' field."),
    ):
        with pytest.raises(RuntimeError, match=re.escape(reason)):
            CachedServer(library, cached, *options)
