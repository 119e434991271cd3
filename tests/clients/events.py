"""A model that records what happens to it, and can be held at each step.

Its backend is compiled for the model, both for Galatea and for Triton.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from compiling import compile_library
from server import wait_until

WAIT_SECONDS_MAX = 60.0

SOURCE = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "triton/core/tritonbackend.h"
#define TRITONBACKEND_ModelInstanceExecute answer
#define GALATEA_ModelInstancePredictable is_predictable
#include "identity.c"
#undef TRITONBACKEND_ModelInstanceExecute
#undef GALATEA_ModelInstancePredictable

/* Appends a line to the file of events; waits while the step is held. */
static void
step(const char* name, const char* instance)
{
  char line[256];
  int size = snprintf(
      line, sizeof line, "%llu %s %s\\n", (unsigned long long)now_ns(), name, instance);
  int file = open(FOLDER "/events", O_CREAT | O_APPEND | O_WRONLY, 0600);
  if (write(file, line, (size_t)size) != size) abort();
  close(file);
  snprintf(line, sizeof line, FOLDER "/hold_%s", name);
  while (access(line, F_OK) == 0) usleep(1000); /* sleep: polls until released */
}

static const char*
instance_name(TRITONBACKEND_ModelInstance* instance)
{
  const char* name = "";
  log_error(TRITONBACKEND_ModelInstanceName(instance, &name));
  return name;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  (void)model;
  step("initialize", "");
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
  (void)model;
  step("finalize", "");
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  step("initialize_instance", instance_name(instance));
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  step("finalize_instance", instance_name(instance));
  step("finalized_instance", instance_name(instance));
  return NULL;
}

@SOURCE@
#ifndef EXECUTE
#define EXECUTE answer(instance, requests, count)
#endif

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  step("execute", instance_name(instance));
  return EXECUTE;
}
"""

CONFIG = """\
backend: "{name}"
max_batch_size: {max_batch_size}
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
{more}
"""


class EventModel:
    """Writes such a model with its backend, which returns its inputs.

    `source` is additional C code for the backend. It can define EXECUTE: an expression that
    executes `requests`, whose number is `count`.
    """

    def __init__(
        self,
        repository: pathlib.Path,
        name: str,
        more: str = "",
        source: str = "",
        max_batch_size: int = 0,
        backend: str = "",
    ) -> None:
        self._max_batch_size = max_batch_size
        self._backend = backend or name
        self.folder = repository / name
        (self.folder / "1").mkdir(parents=True)
        self.configure(more)
        # The source is elsewhere, because additional files in the model's directory would make it
        # a different model.
        self._notes = repository.with_name(f"{repository.name}_events_of_{name}")
        self._notes.mkdir()
        program = self._notes / "backend.c"
        text = SOURCE.replace("@SOURCE@", source)
        program.write_text(f'#define FOLDER "{self._notes}"\n{text}')
        compile_library(program, self.folder / f"libtriton_{name}.so")

    def configure(self, more: str) -> None:
        """Replaces the last part of the configuration."""
        config = CONFIG.format(
            name=self._backend, max_batch_size=self._max_batch_size, more=more
        )
        (self.folder / "config.pbtxt").write_text(config)

    def timed(self, name: str) -> list[tuple[int, str]]:
        """The times at which this happened, by the clock that all processes share, and the
        instances to which it happened."""
        file = self._notes / "events"
        lines = file.read_text(errors="surrogateescape").split("\n")[:-1] if file.exists() else []
        parts = [line.split(" ", 2) for line in lines]
        return [(int(time), what) for time, one, what in parts if one == name]

    def events(self, name: str) -> list[str]:
        """The instances to which this happened, in order."""
        return [what for _, what in self.timed(name)]

    def wait_for(self, name: str, count: int = 1) -> None:
        """Waits until this has happened this number of times."""
        wait_until(lambda: len(self.events(name)) >= count, WAIT_SECONDS_MAX, name)

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Holds this step until the end of the block."""
        file = self._notes / f"hold_{name}"
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def request(self, value: int = 1) -> dict[str, Any]:
        """A request to the model, which returns the same value."""
        shape = [1, 1] if self._max_batch_size else [1]
        tensor = {"name": "INPUT0", "shape": shape, "datatype": "INT32", "data": [value]}
        return {"inputs": [tensor]}
