"""Tests of the setup of the server's memory allocator."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from conftest import StartServer
from server import Server

#: glibc's heaps beside the first begin at multiples of this, and reserve as much.
HEAP_BYTES = 64 << 20


def heaps_beside_the_first(server: Server) -> int:
    """Counts reservations in glibc's form: a used part, and the rest without access."""
    count = 0
    heap_end = None
    for line in pathlib.Path(f"/proc/{server.process.pid}/maps").read_text().splitlines():
        addresses, access, _offset, _device, inode, *_path = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        if inode == "0" and access == "rw-p" and start % HEAP_BYTES == 0:
            heap_end = end
        else:
            is_rest = access == "---p" and start == heap_end
            count += is_rest and end % HEAP_BYTES == 0
            heap_end = None
    return count


@pytest.mark.galatea_only
def test_there_are_no_more_heaps_than_processors(
    start_server: StartServer, models: pathlib.Path
) -> None:
    """Threads share heaps, so that one thread can reuse what another has freed."""
    processor = min(os.sched_getaffinity(0))
    bind = (
        f"import os, sys; os.sched_setaffinity(0, {{{processor}}}); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with start_server(models, launcher=[sys.executable, "-c", bind]) as server:
        server.wait_until_ready()
        assert heaps_beside_the_first(server) == 0
