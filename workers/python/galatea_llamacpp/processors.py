"""The number of threads for a model's computation.

llama.cpp's threads wait for each other by spinning, several hundred times a token. If one of them
has no processor, all others burn theirs meanwhile, so a thread too many costs far more than a
thread too few.
"""

from __future__ import annotations

import math
import os
from typing import Optional, Set

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTAS = ("/sys/fs/cgroup/cpu.max",)


def threads() -> int:
    """Returns the default: the physical cores but one, which is left to the server."""
    return choose(_cores(os.sched_getaffinity(0)), _quota())


def choose(cores: int, quota: Optional[float]) -> int:
    """Returns the number of threads for this many cores and this share of processor time."""
    if quota is not None:
        cores = min(cores, math.floor(quota))
    return max(cores - 1, 1)


def _cores(processors: Set[int]) -> int:
    """Returns the number of physical cores that these processors belong to."""
    cores = set()
    for number in processors:
        try:
            with open(_TOPOLOGY.format(number), encoding="ascii") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


def _quota() -> Optional[float]:
    """Returns the processors whose time the control group may use; None without a limit."""
    for path in _QUOTAS:
        try:
            with open(path, encoding="ascii") as file:
                quota, period = file.read().split()[:2]
            return None if quota == "max" else int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return None
