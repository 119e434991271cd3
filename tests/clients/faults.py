"""Failures of a machine: full disks, no free descriptors, and a clock that is set."""

from __future__ import annotations

import os
import pathlib
import resource
import struct
import subprocess
import sys
from collections.abc import Sequence

import pytest

from compiling import compile_library
from server import Server

#: Becomes the command of its arguments, with a file system of a few bytes on a folder. It is seen
#: by this process alone, and needs no root where the system allows namespaces to users.
SMALL_DISK = """
import ctypes, os, sys
folder, size, *command = sys.argv[1:]
NEW_MOUNTS, NEW_USERS, PRIVATE = 0x20000, 0x10000000, 0x44000
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()
if libc.unshare(NEW_MOUNTS) != 0:
    if libc.unshare(NEW_MOUNTS | NEW_USERS) != 0:
        sys.exit(f"no namespaces: {os.strerror(ctypes.get_errno())}")
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
if libc.mount(b"none", b"/", None, PRIVATE, None) != 0:
    sys.exit("no private mounts")
if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
    sys.exit(f"no tmpfs: {os.strerror(ctypes.get_errno())}")
os.execvp(command[0], command)
"""

#: Adds what a file holds, in nanoseconds, to the time of day.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec*);
static volatile int64_t* offset;
__attribute__((constructor)) static void begin(void) {
  real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  int file = open(getenv("CLOCK_OFFSET"), O_RDONLY | O_CLOEXEC);
  offset = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec* time) {
  int result = real(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && offset) {
    int64_t all = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + *offset;
    time->tv_sec = all / 1000000000;
    time->tv_nsec = all % 1000000000;
  }
  return result;
}
"""


def small_disk(folder: pathlib.Path, size: str) -> Sequence[str]:
    """A launcher for a server that sees this directory as a disk of this size.

    The test is skipped if the system doesn't allow such a disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-c", SMALL_DISK, str(folder), size]
    tried = subprocess.run([*launcher, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"needs root, or namespaces for users: {tried.stderr.strip()}")
    return launcher


def seen_by(server: Server, path: pathlib.Path) -> pathlib.Path:
    """The path as seen by the server's process, with its disks."""
    return pathlib.Path(f"/proc/{server.process.pid}/root{path}")


class Clock:
    """The time of day for a server that is started with this environment."""

    def __init__(self, folder: pathlib.Path) -> None:
        """The machine's clock, until it is set."""
        self._file = folder / "offset"
        self._file.write_bytes(bytes(8))
        source = folder / "clock.c"
        source.write_text(CLOCK)
        library = compile_library(source, folder / "libclock.so", "-ldl")
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._file)}

    def step(self, seconds: int) -> None:
        """Sets the clock this many seconds ahead of the machine's."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", seconds * 10**9))


class Descriptors:
    """The number of descriptors that a server may have, which can be changed while it runs."""

    def __init__(self, server: Server) -> None:
        """The limits that it was started with."""
        self._pid = server.process.pid
        self._before = resource.prlimit(self._pid, resource.RLIMIT_NOFILE)

    def open(self) -> list[int]:
        """The numbers that are in use."""
        return sorted(map(int, os.listdir(f"/proc/{self._pid}/fd")))

    def exhaust(self) -> None:
        """Allows only those that are in use, and the gaps between them."""
        limit = (self.open()[-1] + 1, self._before[1])
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, limit)

    def restore(self) -> None:
        """Restores the previous limit."""
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._before)
