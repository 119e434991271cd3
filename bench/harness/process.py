"""The kernel's accounting of a process: CPU time, context switches and memory."""

from __future__ import annotations

import dataclasses
import os
import pathlib

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LISTENING = "0A"
PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True)
class Usage:
    """The accounting of one process at one moment, with times in seconds and sizes in
    KiB."""

    user: float
    kernel: float
    children: float
    voluntary_switches: int
    involuntary_switches: int
    resident: int
    resident_peak: int
    threads: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of several processes in KiB, with shared pages counted in full, in
    proportion, and not at all.
    """

    resident: int
    proportional: int
    unique: int


def _stat_fields(pid: int) -> list[str]:
    # The name before the last parenthesis may contain spaces and parentheses.
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> tuple[float, float]:
    fields = _stat_fields(pid)
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


def parse_status(text: str) -> dict[str, int]:
    """Reads the numeric lines of a `status` file, without units."""
    values = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            values[key] = int(words[0])
    return values


def descendants(root: int) -> list[int]:
    """Returns the processes below `root`, but not `root` itself."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat_fields(int(entry.name))[1])
            except OSError:
                continue  # It ended meanwhile.
    found, wave = [], [root]
    while wave:
        wave = [pid for pid, parent in parents.items() if parent in wave]
        found += wave
    return found


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        path = PROC / "net" / table
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def listener(root: int, port: int) -> int:
    """Returns the process among `root` and its descendants that listens on the port.

    A server may be started by a wrapper, and the wrapper's accounting wouldn't show
    anything about the server.
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for pid in [root, *descendants(root)]:
        try:
            for descriptor in (PROC / str(pid) / "fd").iterdir():
                if os.readlink(descriptor) in wanted:
                    return pid
        except OSError:
            continue
    raise RuntimeError(f"no process below {root} listens on port {port}")


def memory(pids: list[int]) -> Memory:
    """Adds up the memory of these processes."""
    found = [parse_status((PROC / str(pid) / "smaps_rollup").read_text()) for pid in pids]
    private = ("Private_Clean", "Private_Dirty", "Private_Hugetlb")
    return Memory(
        resident=sum(each["Rss"] for each in found),
        proportional=sum(each["Pss"] for each in found),
        unique=sum(each.get(key, 0) for each in found for key in private),
    )


def usage(pid: int) -> Usage:
    """Reads the accounting of a process, which lists its children's CPU time separately."""
    user, kernel = _cpu_seconds(pid)
    voluntary = involuntary = 0
    for task in (PROC / str(pid) / "task").iterdir():
        try:
            values = parse_status((task / "status").read_text())
        except OSError:
            continue
        voluntary += values["voluntary_ctxt_switches"]
        involuntary += values["nonvoluntary_ctxt_switches"]
    own = parse_status((PROC / str(pid) / "status").read_text())
    return Usage(
        user=user,
        kernel=kernel,
        children=sum(sum(_cpu_seconds(child)) for child in descendants(pid)),
        voluntary_switches=voluntary,
        involuntary_switches=involuntary,
        resident=own["VmRSS"],
        resident_peak=own["VmHWM"],
        threads=own["Threads"],
    )
