"""A model that is busy until a test opens its latch.

A test can observe executing requests for as long as it needs, however slow the
machine is. A model that is merely slow would sometimes finish too early.
"""

from __future__ import annotations

import pathlib
from typing import Any

from compiling import compile_library

#: The example that returns its inputs, modified to wait for a file.
SOURCE = """
#include <unistd.h>
#include "triton/core/tritonbackend.h"
#define TRITONBACKEND_ModelInstanceExecute answer
#define GALATEA_ModelInstancePredictable is_predictable
#include "identity.c"
#undef TRITONBACKEND_ModelInstanceExecute
TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  while (access("%s", F_OK) != 0) usleep(1000); /* sleep: polls until opened */
  return answer(instance, requests, count);
}
"""
CONFIG = """\
backend: "latch"
max_batch_size: {max_batch_size}
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
{more}
"""


class Latch:
    """Writes such a model with its backend, and opens the latch at the end."""

    def __init__(
        self, repository: pathlib.Path, name: str, more: str = "", max_batch_size: int = 0
    ) -> None:
        self._has_batches = max_batch_size > 0
        model = self.directory = repository / name
        (model / "1").mkdir(parents=True)
        config = CONFIG.format(max_batch_size=max_batch_size, more=more)
        (model / "config.pbtxt").write_text(config)
        self._file = model / "open"
        source = model / "latch.c"
        source.write_text(SOURCE % self._file)
        compile_library(source, model / "libtriton_latch.so")

    def request(self, value: int) -> dict[str, Any]:
        """A request to the model, which returns the same value."""
        shape = [1, 1] if self._has_batches else [1]
        tensor = {"name": "INPUT0", "shape": shape, "datatype": "INT32", "data": [value]}
        return {"inputs": [tensor]}

    def open(self) -> None:
        """Lets the model execute from now on."""
        self._file.touch()

    def close(self) -> None:
        """Makes later executions wait again."""
        self._file.unlink(missing_ok=True)

    def __enter__(self) -> Latch:
        """The latch, closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Opens the latch, so that the server of a failed test can end."""
        self.open()
