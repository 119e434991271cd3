"""Lets processes that the model spawns import the worker's modules.

A model that uses `multiprocessing` with the spawn method has its children import model.py again,
and with it `triton_python_backend_utils`. They get the parent's `sys.path`, which therefore
names an archive of the sources: an unnamed file that is reached through /proc.
"""

from __future__ import annotations

import binascii
import os
import sys
from struct import Struct
from typing import Dict

_pack_local = Struct("<IHHHHHIIIHH").pack
_pack_central = Struct("<IHHHHHHIIIHHHHHII").pack
_pack_end = Struct("<IHHHHIIH").pack
_VERSION, _FIRST_DAY = 20, 0x21


def archive(files: Dict[str, bytes]) -> bytes:
    """Creates an uncompressed ZIP archive of files."""
    body, directory = b"", b""
    for name, content in files.items():
        path = name.encode("utf-8")
        sums = (0, _FIRST_DAY, binascii.crc32(content), len(content), len(content))
        directory += _pack_central(0x02014B50, _VERSION, _VERSION, 0, 0, *sums, len(path),
                                   0, 0, 0, 0, 0, len(body)) + path
        body += _pack_local(0x04034B50, _VERSION, 0, 0, *sums, len(path), 0)
        body += path + content
    return body + directory + _pack_end(
        0x06054B50, 0, 0, len(files), len(files), len(directory), len(body), 0)


def prepare(sources: Dict[str, str]) -> None:
    """Appends the archive to `sys.path`."""
    files = {}
    for name, text in sources.items():
        package = any(other.startswith(name + ".") for other in sources)
        path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
        files[path] = text.encode("utf-8")
    fd = os.memfd_create("worker sources")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(archive(files))
    sys.path.append(f"/proc/{os.getpid()}/fd/{fd}")
