"""Ends the process when the server is gone, whatever the model is doing."""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = getattr(fcntl, "F_SETSIG", 10)


def arm(fd: int) -> bool:
    """Asks the kernel for SIGKILL when the pipe's other end closes.

    Returns False if the kernel can't; the end of socket B is then the signal.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, _F_SETSIG, int(signal.SIGKILL))
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        return False
    # The server may have ended before the signal was armed.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(1)
    return True
