"""Tests of the number of models that load at the same time, and of retries of a failed load."""

from __future__ import annotations

import pathlib
import re

import pytest

from compiling import compile_library
from conftest import StartServer
from server import Server

CONFIG = """
backend: "%s"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
EXECUTE = """
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  (void)instance; (void)requests; (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not asked for");
}
"""
#: Each load waits until the expected number of loads runs, and then a moment longer for
#: an excess one. The library logs how many there were.
GATHERS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "triton/core/tritonbackend.h"
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside, most;
static struct timespec in_milliseconds(long count) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += count / 1000;
  end.tv_nsec += count % 1000 * 1000000;
  if (end.tv_nsec >= 1000000000) {
    end.tv_nsec -= 1000000000;
    end.tv_sec += 1;
  }
  return end;
}
static int wait_for(int wanted, long milliseconds) {
  struct timespec end = in_milliseconds(milliseconds);
  int late = 0;
  while (most < wanted && !late) late = pthread_cond_timedwait(&changed, &mutex, &end);
  return most >= wanted;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  (void)model;
  int threads = atoi(getenv("LOADS_AT_ONCE"));
  pthread_mutex_lock(&mutex);
  inside += 1;
  if (inside > most) most = inside;
  pthread_cond_broadcast(&changed);
  int together = wait_for(threads, 30000);
  wait_for(threads + 1, 300);
  printf("loads at once: %d\\n", most);
  fflush(stdout);
  inside -= 1;
  pthread_mutex_unlock(&mutex);
  return together ? NULL : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "too few");
}
"""
#: The first loads fail. The size of a file counts the loads, because the library
#: may be opened again for each.
AT_LAST = """
#include <stdio.h>
#include <stdlib.h>
#include "triton/core/tritonbackend.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  (void)model;
  FILE* attempts = fopen(getenv("ATTEMPTS"), "a");
  fputc('x', attempts);
  long count = ftell(attempts);
  fclose(attempts);
  char text[64];
  snprintf(text, sizeof text, "attempt %ld is too early", count);
  return count > 2 ? NULL : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, text);
}
"""


def build(libraries: pathlib.Path, name: str, source: str) -> None:
    """Compiles a backend."""
    library = libraries / name / f"libtriton_{name}.so"
    library.parent.mkdir(parents=True)
    path = library.with_suffix(".c")
    path.write_text(source + EXECUTE)
    compile_library(path, library)


def write_model(repository: pathlib.Path, name: str, backend: str) -> None:
    """A model that consists of only a configuration."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG % backend)


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        (["--model-load-thread-count=1"], 1),
        (["--model-load-thread-count=3"], 3),
        ([], 4),
    ],
)
# row: CLI-11 MR-20
def test_the_number_of_models_that_load_at_once(
    start_server: StartServer, tmp_path: pathlib.Path, flags: list[str], threads: int
) -> None:
    """Exactly this number of loads runs at once, of a larger number of models."""
    models, libraries = tmp_path / "models", tmp_path / "libraries"
    build(libraries, "gathers", GATHERS)
    count = 2 * threads + 1
    for number in range(count):
        write_model(models, f"m{number}", "gathers")
    flags = [f"--backend-directory={libraries}", *flags]
    environment = {"LOADS_AT_ONCE": str(threads)}
    with start_server(models, *flags, environment=environment) as server:
        server.wait_until_ready()
        loads_at_once = [int(most) for most in re.findall(r"loads at once: (\d+)\n", server.log())]
    assert loads_at_once == [threads] * count


def reason(server: Server) -> str:
    """The state and reason of the only model."""
    (entry,) = server.request("POST", "/v2/repository/index", b"{}").json()
    return f"{entry['state']} {entry.get('reason', '')}".strip()


@pytest.mark.parametrize(
    ("flags", "attempts", "expected"),
    [
        ([], 1, "UNAVAILABLE .*attempt 1 is too early"),
        (["--model-load-retry-count=1"], 2, "UNAVAILABLE .*attempt 2 is too early"),
        (["--model-load-retry-count=2"], 3, "READY"),
        (["--model-load-retry-count=7"], 3, "READY"),
    ],
)
# row: CLI-11 MR-20
def test_a_failed_load_is_retried(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    flags: list[str],
    attempts: int,
    expected: str,
) -> None:
    """The number of attempts is exact; the reason is that of the last attempt."""
    models, libraries, file = tmp_path / "models", tmp_path / "libraries", tmp_path / "attempts"
    build(libraries, "at_last", AT_LAST)
    write_model(models, "m", "at_last")
    flags = [f"--backend-directory={libraries}", "--exit-on-error=false", *flags]
    with start_server(models, *flags, environment={"ATTEMPTS": str(file)}) as server:
        server.wait_until_live()
        assert re.fullmatch(expected, reason(server))
        assert file.read_text() == "x" * attempts
        if not server.is_triton:
            assert server.log().count("failed to load and is tried again") == attempts - 1
