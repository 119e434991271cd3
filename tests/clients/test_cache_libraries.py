"""Response caches in libraries: the example, small ones that break their contract, and
Triton's own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

import numpy
import pytest

from compiling import build_examples, compile_library
from conftest import ROOT, StartServer
from server import Server, wait_until
from transports import TRANSPORTS, Grpc, Http, Tensors

EXAMPLES = ROOT / "examples" / "caches"
PACKAGES = os.environ.get("GALATEA_TRITON_PACKAGES")

IDENTITY = """\
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
CACHED = IDENTITY + "response_cache { enable: true }\n"
KINDS = CACHED + """\
input [
  { name: "INPUT1" data_type: TYPE_STRING dims: [ 2 ] },
  { name: "INPUT2" data_type: TYPE_BOOL dims: [ 3 ] }
]
output [
  { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] },
  { name: "OUTPUT2" data_type: TYPE_BOOL dims: [ 3 ] }
]
"""

#: A model whose only step is another one.
PIPELINE = """\
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
response_cache { enable: true }
ensemble_scheduling { step {
  model_name: "other" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""

#: A cache with one entry, in parts that a test may replace.
PARTS = {
    "start": """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "triton/core/tritoncache.h"
#define UNUSED(x) (void)(x)
#define SAY(...) (printf("cache: " __VA_ARGS__), printf("\\n"), fflush(stdout))
static char bytes[100000];
static size_t byte_size;
static TRITONSERVER_Error* no(TRITONSERVER_Error_Code code, const char* why) {
  return TRITONSERVER_ErrorNew(code, why);
}
static TRITONSERVER_Error* give(TRITONCACHE_CacheEntry* entry, size_t size) {
  TRITONSERVER_BufferAttributes* attributes;
  TRITONSERVER_BufferAttributesNew(&attributes);
  TRITONSERVER_BufferAttributesSetByteSize(attributes, size);
  TRITONSERVER_Error* failed = TRITONCACHE_CacheEntryAddBuffer(entry, bytes, attributes);
  TRITONSERVER_BufferAttributesDelete(attributes);
  return failed;
}
""",
    "initialize": """
TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  SAY("begins with %s", config);
  *cache = (TRITONCACHE_Cache*)bytes;
  return NULL;
}
""",
    "finalize": """
TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache) {
  UNUSED(cache);
  SAY("ends");
  return NULL;
}
""",
    "insert": """
TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  UNUSED(cache);
  SAY("insert %s", key);
  TRITONSERVER_BufferAttributes* attributes;
  void* base;
  TRITONSERVER_BufferAttributesNew(&attributes);
  TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes);
  TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size);
  TRITONSERVER_BufferAttributesDelete(attributes);
  TRITONCACHE_CacheEntrySetBuffer(entry, 0, bytes, NULL);
  return TRITONCACHE_Copy(allocator, entry);
}
""",
    "lookup": """
TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  UNUSED(cache); UNUSED(key);
  if (byte_size == 0) {
    return no(TRITONSERVER_ERROR_NOT_FOUND, "nothing there");
  }
  give(entry, byte_size);
  return TRITONCACHE_Copy(allocator, entry);
}
""",
}
#: The body of a faulty lookup, which runs once something was inserted.
BAD_LOOKUPS = {
    "fails": 'return no(TRITONSERVER_ERROR_UNAVAILABLE, "no connection");',
    "copies_nothing": "give(entry, byte_size); return NULL;",
    "gives_nothing": "return TRITONCACHE_Copy(allocator, entry);",
    "cuts_short": "give(entry, byte_size - 1); return TRITONCACHE_Copy(allocator, entry);",
    "gives_noise": """memset(bytes, 7, sizeof bytes);
      give(entry, sizeof bytes); return TRITONCACHE_Copy(allocator, entry);""",
    "damages_the_data": """bytes[byte_size - 1] ^= 1;
      give(entry, byte_size); return TRITONCACHE_Copy(allocator, entry);""",
    "swallows_errors": """give(entry, 3);
      TRITONSERVER_ErrorDelete(TRITONCACHE_Copy(allocator, entry)); return NULL;""",
}
#: A cache that outlives the server: it keeps a file for each key in the directory
#: that its only setting names.
ON_DISK = {
    "initialize": """
TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  *cache = (TRITONCACHE_Cache*)strdup(config + strlen("{'in':'"));
  *strchr((char*)*cache, '"') = 0;
  return NULL;
}
static FILE* file_of(TRITONCACHE_Cache* cache, const char* key, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", (const char*)cache, key);
  return fopen(path, mode);
}
""",
    "insert": PARTS["insert"].replace(
        "return TRITONCACHE_Copy(allocator, entry);",
        """TRITONSERVER_Error* failed = TRITONCACHE_Copy(allocator, entry);
  FILE* file = file_of(cache, key, "w");
  fwrite(bytes, 1, byte_size, file);
  fclose(file);
  return failed;""",
    ),
    "lookup": """
TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  FILE* file = file_of(cache, key, "r");
  if (file == NULL) {
    return no(TRITONSERVER_ERROR_NOT_FOUND, "no such file");
  }
  size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  TRITONSERVER_Error* failed = give(entry, size);
  return failed == NULL ? TRITONCACHE_Copy(allocator, entry) : failed;
}
""",
}
LOOKUP = """
TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  UNUSED(cache); UNUSED(key); UNUSED(entry); UNUSED(allocator);
  if (byte_size == 0) {
    return no(TRITONSERVER_ERROR_NOT_FOUND, "nothing there");
  }
  %s
}
"""


def build(directory: pathlib.Path, name: str, **parts: str) -> pathlib.Path:
    """Compiles a cache from these parts; the other parts are those of the valid cache."""
    library = directory / name / f"libtritoncache_{name}.so"
    library.parent.mkdir(parents=True)
    source = library.with_suffix(".c")
    source.write_text("".join({**PARTS, **parts}.values()))
    return compile_library(source, library, "-Wno-unused-function")


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of caches: the example, built with CMake, and broken ones."""
    folder = tmp_path_factory.mktemp("caches")
    build_examples(EXAMPLES, folder)
    build(folder, "one")
    build(folder, "disk", **ON_DISK)
    for name, body in BAD_LOOKUPS.items():
        build(folder, name, lookup=LOOKUP % body)
    return folder


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    """Models that use the cache, one with every kind of tensor, and one that doesn't."""
    repository = tmp_path / "models"
    configs = {"cached": CACHED, "other": CACHED, "kinds": KINDS, "plain": IDENTITY}
    for name, config in configs.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    return repository


@contextlib.contextmanager
def serving(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path, config: str
) -> Iterator[Server]:
    """A server with a cache; its exit code must be 0."""
    flags = [f"--cache-directory={caches}", f"--cache-config={config}"]
    with start_server(models, *flags) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def counts(server: Server, model: str = "cached") -> tuple[int, int, int]:
    """Hits, misses and executions."""
    statistics = server.statistics(model)
    stages = statistics["inference_stats"]
    hits, misses = (stages[name]["count"] for name in ("cache_hit", "cache_miss"))
    return hits, misses, statistics["execution_count"]


def infer(server: Server, *values: float, model: str = "cached") -> list[float]:
    """Sends one request over HTTP; returns the numbers of the response."""
    data = list(values)
    tensor = {"name": "INPUT0", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    reply = server.infer(model, {"inputs": [tensor]})
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"]


def full(rows: int, columns: int) -> Tensors:
    """An input of each kind."""
    texts = numpy.array([["ä", "\0b" * columns]] * rows, object)
    return {
        "INPUT0": numpy.random.default_rng(rows).random((rows, columns), numpy.float32),
        "INPUT1": texts,
        "INPUT2": numpy.array([[True, False, True]] * rows),
    }


@pytest.mark.parametrize(
    "transport",
    # On a stream, Triton responds to hits with "response output count mismatch".
    [
        pytest.param(name, marks=[pytest.mark.galatea_only] if "stream" in name else [])
        for name in TRANSPORTS
    ],
)
# row: XAPI-01
def test_hits_equal_the_responses_of_the_model(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path, transport: str
) -> None:
    """Hits have one row or several, are small or large, and use each protocol."""
    with serving(start_server, models, caches, "example_fifo,entries=100") as server:
        sent = [full(1, 1), full(3, 5), full(8, 50_000), full(2, 2)]
        with contextlib.closing(TRANSPORTS[transport](server)) as connection:
            for tensors in sent:
                first = connection.infer("kinds", tensors)
                again = connection.infer("kinds", tensors)
                assert set(first) == set(again) == {"OUTPUT0", "OUTPUT1", "OUTPUT2"}
                for name, array in first.items():
                    assert array.dtype == again[name].dtype
                    numpy.testing.assert_array_equal(array, again[name])
        assert counts(server, "kinds") == (4, 4, 4)


@pytest.mark.galatea_only
def test_an_empty_response_is_cached(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """Tensors without elements. Triton keeps no such response."""
    with serving(start_server, models, caches, "example_fifo,entries=100") as server:
        with contextlib.closing(Grpc(server)) as connection:
            for _ in range(2):
                response = connection.infer(
                    "cached", {"INPUT0": numpy.zeros((2, 0), numpy.float32)}
                )
                assert response["OUTPUT0"].shape == (2, 0)
        assert counts(server) == (1, 1, 1)


def test_a_model_has_its_own_cached_responses(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """A model that doesn't use the cache has none."""
    with serving(start_server, models, caches, "example_fifo,entries=100") as server:
        for model in ("cached", "other", "plain"):
            for _ in range(2):
                assert infer(server, 1, 2, model=model) == [1, 2]
        found = [counts(server, model) for model in ("cached", "other", "plain")]
        assert found == [(1, 1, 1), (1, 1, 1), (0, 0, 2)]


def test_the_oldest_entry_is_evicted(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """The example evicts in this order, and logs a line when the server ends."""
    with serving(start_server, models, caches, "example_fifo,entries=2") as server:
        for value, hits in ((1, 0), (2, 0), (1, 1), (3, 1), (2, 2), (1, 2), (3, 3)):
            infer(server, value)
            assert counts(server)[0] == hits, value
    assert "example_fifo evicted 2 responses" in server.log()


def test_many_clients_at_a_time(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """Each client gets its own responses while entries are inserted and evicted."""
    with serving(start_server, models, caches, "example_fifo,entries=20") as server:

        def client(number: int) -> int:
            random = numpy.random.default_rng(number)
            with contextlib.closing((Http, Grpc)[number % 2](server)) as connection:
                for _ in range(100):
                    value = int(random.integers(30))
                    columns = 1 + 97 * value
                    sent = {"INPUT0": numpy.full((1, columns), value, numpy.float32)}
                    found = connection.infer("cached", sent)["OUTPUT0"]
                    numpy.testing.assert_array_equal(found, sent["INPUT0"])
            return 100

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(client, range(8))) == 800
        hits, misses, _ = counts(server)
        # Triton doesn't count a request whose entry another one inserted first.
        assert hits + misses == 800 or server.is_triton
        assert hits > 0 and misses >= 30
    assert "failed" not in server.log()


@pytest.mark.galatea_only
# row: CACHE-07
def test_the_cache_gets_its_settings(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """Settings are JSON with strings as values, or passed as given; keys have 64 digits."""
    flags = [f"--cache-directory={caches}", "--cache-config=one,b=2", "--cache-config=one,a=x=y"]
    with start_server(models, *flags) as server:
        server.wait_until_ready()
        infer(server, 1)
    assert 'cache: begins with {"b":"2","a":"x=y"}\n' in server.log()
    assert re.search(r"^cache: insert [0-9a-f]{64}$", server.log(), re.MULTILINE)
    assert server.log().rstrip().endswith("cache: ends")
    with serving(start_server, models, caches, 'one,{"size": 7, "of": [1]}') as server:
        pass
    assert 'cache: begins with {"size": 7, "of": [1]}\n' in server.log()


@pytest.mark.galatea_only
def test_a_cache_that_outlives_the_server(
    start_server: StartServer,
    models: pathlib.Path,
    caches: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """The next server finds the entries until the model, or one that it needs, changes."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (models / "pipeline" / "1").mkdir(parents=True)
    (models / "pipeline" / "config.pbtxt").write_text(PIPELINE)
    file = models / "other" / "1" / "data"
    file.write_text("some")

    def hits() -> list[int]:
        with serving(start_server, models, caches, f"disk,in={kept}") as server:
            for model in ("cached", "other", "pipeline"):
                assert infer(server, 1, 2, model=model) == [1, 2]
            return [counts(server, model)[0] for model in ("cached", "other", "pipeline")]

    # The step of an uncached pipeline repeats the request that was just sent.
    assert hits() == [0, 1, 0]
    assert hits() == [1, 1, 1]
    file.write_text("other")
    assert hits() == [1, 1, 0]
    assert hits() == [1, 1, 1]
    config = models / "cached" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    assert hits() == [0, 1, 1]
    for entry in kept.iterdir():
        entry.write_bytes(entry.read_bytes()[:-1])
    assert hits() == [0, 1, 0]


@pytest.mark.galatea_only
def test_a_cache_that_outlives_the_server_and_a_backend_that_changes(
    start_server: StartServer, caches: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A change of a backend's settings or library invalidates its entries."""
    kept, backends, models = (tmp_path / name for name in ("kept", "backends", "models"))
    for directory in (kept, backends, models / "cached" / "1"):
        directory.mkdir(parents=True)
    config = CACHED.replace('"identity"', '"example_identity"')
    (models / "cached" / "config.pbtxt").write_text(config)
    build_examples(ROOT / "examples" / "backends", backends)
    (library,) = backends.rglob("libtriton_example_identity.so")

    def hits(*settings: str) -> int:
        flags = [f"--cache-directory={caches}", f"--cache-config=disk,in={kept}"]
        flags += [f"--backend-directory={backends}", *settings]
        with start_server(models, *flags) as server:
            server.wait_until_ready()
            assert infer(server, 1, 2) == [1, 2]
            return counts(server)[0]

    assert [hits(), hits()] == [0, 1]
    setting = "--backend-config=example_identity,colour=blue"
    assert [hits(setting), hits(setting), hits()] == [0, 1, 1]
    os.utime(library, (1_000_000_000, 1_000_000_000))
    assert [hits(), hits()] == [0, 1]
    # All files of a reproducibly built image have this time.
    os.utime(library, (1, 1))
    assert [hits(), hits()] == [0, 0]


@pytest.mark.galatea_only
def test_libraries_are_not_torn_down_while_in_use(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """An orderly shutdown runs their exit handlers, but reaching the exit timeout doesn't."""
    destructor = 'static __attribute__((destructor)) void gone(void) { SAY("is torn down"); }\n'
    folder = tmp_path / "caches"
    build(folder, "torn", start=PARTS["start"] + destructor)
    with serving(start_server, models, folder, "torn,x=y") as server:
        assert infer(server, 1) == [1]
    assert server.log().rstrip().endswith("cache: is torn down")

    delay = 'parameters { key: "execute_delay_ms" value { string_value: "600000" } }\n'
    for name in ("cached", "other", "kinds"):
        shutil.rmtree(models / name)
    (models / "plain" / "config.pbtxt").write_text(IDENTITY + delay)
    flags = [f"--cache-directory={folder}", "--cache-config=torn,x=y", "--exit-timeout-secs=1"]
    with start_server(models, *flags) as server:
        server.wait_until_ready()
        with contextlib.ExitStack() as connections:
            tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}
            for _ in range(2):
                one = http.client.HTTPConnection("127.0.0.1", server.http_port)
                connections.callback(one.close)
                one.request("POST", "/v2/models/plain/infer", json.dumps({"inputs": [tensor]}))
            line = 'nv_inference_pending_request_count{model="plain",version="1"} 1'
            wait_until(lambda: line in server.metrics(), 30, "one runs and one waits")
            server.terminate()
            assert server.wait_for_exit() == 1
    assert "Exit timeout expired" in server.log()
    assert "torn down" not in server.log()


@pytest.mark.galatea_only
def test_the_entry_of_another_key_is_not_used(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """A cache that returns one entry for all keys doesn't mix up responses."""
    with serving(start_server, models, caches, "one,x=y") as server:
        for value in (1, 1, 2, 2):
            assert infer(server, value) == [value]
        assert counts(server) == (2, 2, 2)
    assert "it is damaged, or another key's" in server.log()


@pytest.mark.galatea_only
@pytest.mark.parametrize("name", list(BAD_LOOKUPS))
def test_a_bad_lookup_is_a_miss(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path, name: str
) -> None:
    """The model executes, and the log has a warning the 1st, 2nd, 4th and 8th time."""
    with serving(start_server, models, caches, f"{name},x=y") as server:
        for _ in range(10):
            assert infer(server, 1, 2, 3) == [1, 2, 3]
        assert counts(server) == (0, 10, 10)
    lines = [line for line in server.log().splitlines() if "a lookup failed" in line]
    assert [re.findall(r"for the (\d+)\. time", line) for line in lines] == [
        ["1"],
        ["2"],
        ["4"],
        ["8"],
    ]
    assert f"response cache '{name}'" in lines[0]


@pytest.mark.galatea_only
def test_a_bad_insertion_stores_nothing(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The client still gets its response."""
    copy = "return TRITONCACHE_Copy(allocator, entry);"
    fails = 'UNUSED(allocator); return no(TRITONSERVER_ERROR_INTERNAL, "disk full");'
    lookup = LOOKUP % fails.replace("INTERNAL", "NOT_FOUND")
    build(tmp_path, "fails", insert=PARTS["insert"].replace(copy, fails), lookup=lookup)
    with serving(start_server, models, tmp_path, "fails,x=y") as server:
        for _ in range(3):
            assert infer(server, 1) == [1]
        assert counts(server) == (0, 3, 3)
    assert "an insertion failed, for the 2. time: disk full" in server.log()


def test_an_existing_key_is_not_a_failure(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """This happens if two equal requests miss at the same time."""
    copy = "return TRITONCACHE_Copy(allocator, entry);"
    there = 'UNUSED(allocator); return no(TRITONSERVER_ERROR_%s, "no");'
    insert = PARTS["insert"].replace(copy, there % "ALREADY_EXISTS")
    build(tmp_path, "late", insert=insert, lookup=LOOKUP % (there % "NOT_FOUND"))
    with serving(start_server, models, tmp_path, "late,x=y") as server:
        for _ in range(2):
            assert infer(server, 1) == [1]
        assert counts(server)[::2] == (0, 2)
    assert server.log().count("cache: insert") == 2
    assert "failed" not in server.log()


@pytest.mark.galatea_only
# row: CACHE-07
def test_a_server_without_its_cache_does_not_start(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The error names the file and quotes the loader or the cache."""
    expected = {"missing": "there is no"}
    for part in ("initialize", "finalize", "insert", "lookup"):
        build(tmp_path, f"no_{part}", **{part: ""})
        expected[f"no_{part}"] = f"required entrypoint 'TRITONCACHE_Cache{part.capitalize()}'"
    for name, body, reason in (
        ("fails", 'return no(TRITONSERVER_ERROR_INVALID_ARG, "no luck");', "no luck"),
        ("nothing", "*cache = NULL; return NULL;", "made no cache"),
        ("symbol", "void gone(void); gone(); return NULL;", "undefined symbol: gone"),
    ):
        build(tmp_path, name, initialize=PARTS["initialize"].replace("return NULL;", body))
        expected[name] = reason
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "libtritoncache_garbage.so").write_bytes(b"nothing to load")
    expected["garbage"] = "unable to load shared library"
    half = build(tmp_path, "half")
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    expected["half"] = "libtritoncache_half.so' is cut short"
    expected["../x"] = "must not lead to another directory"
    for name, reason in expected.items():
        flags = [f"--cache-directory={tmp_path}", f"--cache-config={name},x=y"]
        with start_server(models, *flags) as server:
            assert server.wait_for_exit() == 1
        assert reason in server.log(), name
        path = tmp_path / name / f"libtritoncache_{name}.so"
        assert "/" in name or str(path) in server.log(), name


@pytest.mark.galatea_only
def test_the_version_of_the_interface_is_checked_by_the_cache(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The example, built for a future interface, refuses this server."""
    include = tmp_path / "include" / "triton" / "core"
    shutil.copytree(ROOT / "include" / "triton" / "core", include)
    header = include / "tritoncache.h"
    text = header.read_text()
    newer = re.sub(r"(#define TRITONCACHE_API_VERSION_MINOR) \d+", r"\1 99", text)
    assert newer != text
    header.write_text(newer)
    library = tmp_path / "caches" / "fifo" / "libtritoncache_fifo.so"
    compile_library(EXAMPLES / "fifo.c", library, include=tmp_path / "include")
    flags = [f"--cache-directory={tmp_path / 'caches'}", "--cache-config=fifo,entries=3"]
    with start_server(models, *flags) as server:
        assert server.wait_for_exit() == 1
    assert f"'{library}': the server has another version of the cache API" in server.log()


@pytest.mark.galatea_only
# row: CLI-18
def test_two_caches_are_refused(
    start_server: StartServer, models: pathlib.Path, caches: pathlib.Path
) -> None:
    """A server has one cache."""
    flags = [f"--cache-directory={caches}", "--cache-config=one,a=b"]
    with start_server(models, *flags, "--cache-config=example_fifo,entries=2") as server:
        assert server.wait_for_exit() == 1
    assert "only a single cache" in server.log()


@pytest.mark.galatea_only
def test_a_library_wins_over_the_built_in_cache(
    start_server: StartServer, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A library in the cache directory is used."""
    library = build(tmp_path, "local")
    with serving(start_server, models, tmp_path, "local,size=7") as server:
        for _ in range(2):
            infer(server, 1)
        assert counts(server)[0] == 1
    assert f"response cache 'local' is the library '{library}'" in server.log()
    assert 'cache: begins with {"size":"7"}' in server.log()
    with serving(start_server, models, tmp_path / "elsewhere", "local,size=10000") as server:
        assert "nv_cache_util 0\n" in server.metrics()
    assert "cache: begins" not in server.log()


@pytest.mark.galatea_only
@pytest.mark.skipif(not PACKAGES, reason="needs Triton's packages in GALATEA_TRITON_PACKAGES")
# row: XAPI-01
def test_tritons_local_cache(start_server: StartServer, models: pathlib.Path) -> None:
    """The unmodified library works: hits, evictions, and its gauges among our metrics."""
    directory = pathlib.Path(PACKAGES or "") / "pytriton" / "tritonserver" / "caches"
    assert (directory / "local" / "libtritoncache_local.so").is_file()
    with serving(start_server, models, directory, "local,size=10000") as server:

        def gauge(name: str) -> float:
            found = re.search(rf"^nv_cache_{name} (\S+)$", server.metrics(), re.MULTILINE)
            return float(found[1]) if found else -1

        # There is room for two of three responses, and the last one is larger than the cache.
        for value, hits in ((1, 0), (2, 0), (1, 1), (3, 1), (1, 2), (2, 2)):
            assert infer(server, *[value] * 1000) == [value] * 1000
            assert counts(server)[0] == hits, value
        large = [9.0] * 10_000
        assert infer(server, *large) == infer(server, *large) == large
        assert counts(server)[:2] == (2, 6)
        # It updates them once a second.
        wait_until(lambda: gauge("num_lookups") == 8, 60, "its lookups are counted")
        assert (gauge("num_hits"), gauge("num_misses"), gauge("num_entries")) == (2, 6, 2)
        assert gauge("num_evictions") == 2 and 0.5 < gauge("util") <= 1
        with contextlib.closing(Grpc(server)) as connection:
            for tensors in (full(1, 1), full(3, 5)):
                first, again = (connection.infer("kinds", tensors) for _ in range(2))
                for name, array in first.items():
                    numpy.testing.assert_array_equal(array, again[name])
        assert counts(server, "kinds") == (2, 2, 2)
    assert "greater than total cache size" in server.log()
