"""A program on a terminal, as a user sees it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

SECONDS_MAX = 20


class Terminal:
    """A process whose standard streams are a terminal."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        cwd: os.PathLike[str] | None = None,
    ) -> None:
        """Starts the process."""
        self._main, side = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=side, stdout=side, stderr=side, env={**os.environ, **environment},
            cwd=cwd, start_new_session=True,
        )
        os.close(side)
        self.text = ""

    def type(self, keys: str) -> None:
        """Sends keys to the program."""
        os.write(self._main, keys.encode())

    def read_until(self, text: str) -> str:
        """All output so far, once it contains this text."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            ready, _, _ = select.select([self._main], [], [], 1)
            if ready:
                try:
                    self.text += os.read(self._main, 1 << 16).decode(errors="replace")
                except OSError as error:
                    raise AssertionError(f"the program ended: {self.text}") from error
        return self.text

    def close(self) -> int:
        """Waits until the process ends, and returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(SECONDS_MAX)
        os.close(self._main)
        return code
