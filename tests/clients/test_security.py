"""Published vulnerabilities of servers like this one, as requests over real connections.

Each test bears the identifier of what it repeats, and ends with a server that serves. The doors'
own tests have more of them (crates/http/tests/door/hostile.rs).
"""

from __future__ import annotations

import gzip
import pathlib
import zlib
from collections.abc import Iterator

import pytest
from conftest import StartServer
from server import Server, resident_kilobytes

MEBIBYTE = 1 << 20

#: The limit of bodies in these tests.
INPUT_BYTES_MAX = 16 * MEBIBYTE

TOO_LONG = (
    f"Decompressed data size exceeds the maximum allowed value of {INPUT_BYTES_MAX} bytes. Use "
    "--http-max-input-size to increase the limit."
)


@pytest.fixture(scope="module")
def limited(start_server: StartServer, models: pathlib.Path) -> Iterator[Server]:
    """A server with a limit that shows in its memory."""
    with start_server(models, f"--http-max-input-size={INPUT_BYTES_MAX}") as server:
        yield server.wait_until_ready()
    assert server.process.returncode == 0 or server.is_triton


def check_serves(server: Server) -> None:
    """The server still works."""
    request = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    assert server.infer("identity_fp32", request).json()["outputs"][0]["data"] == [1]


def peak_kilobytes(server: Server) -> int:
    """The most memory that was resident since the start."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


def bomb(mebibytes: int, coding: str) -> bytes:
    """Zeros, compressed a thousandfold. Blocks that end in a flush can be repeated."""
    deflater = zlib.compressobj(9, wbits={"gzip": 31, "deflate": 15}[coding])
    zeros = bytes(MEBIBYTE)
    first = deflater.compress(zeros) + deflater.flush(zlib.Z_FULL_FLUSH)
    block = deflater.compress(zeros) + deflater.flush(zlib.Z_FULL_FLUSH)
    return first + block * (mebibytes - 1)


@pytest.mark.galatea_only
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("mebibytes", [64, 10 * 1024])
def test_cve_2026_24158_bodies_that_inflate(limited: Server, mebibytes: int, coding: str) -> None:
    """64 kB that become 64 MiB, and 10 MB that become 10 GiB, end at the limit."""
    body = bomb(mebibytes, coding)
    before = peak_kilobytes(limited)
    for _ in range(10):
        reply = limited.infer("identity_fp32", body, headers={"Content-Encoding": coding})
        assert (reply.status, reply.error()) == (400, TOO_LONG)
    # What arrived, what was inflated of it up to the limit, and some of it twice when a
    # buffer grows.
    most = len(body) + 2 * INPUT_BYTES_MAX
    assert (peak_kilobytes(limited) - before) * 1024 < most + 32 * MEBIBYTE
    check_serves(limited)


@pytest.mark.galatea_only
def test_cve_2026_24264_compressed_more_than_once(limited: Server) -> None:
    """Only the outermost layer is inflated, and only the first of several members."""
    header = {"Content-Encoding": "gzip"}
    sound = gzip.compress(b'{"inputs": []}')
    nested = gzip.compress(gzip.compress(bomb(64, "gzip")))
    assert limited.infer("identity_fp32", nested, headers=header).status in (400, 500)
    twice = limited.infer(
        "identity_fp32", nested, headers={"Content-Encoding": "gzip, gzip"}
    )
    assert twice.status == 501
    members = sound + bomb(1024, "gzip")
    before = peak_kilobytes(limited)
    reply = limited.infer("identity_fp32", members, headers=header)
    # What the first member alone leads to.
    alone = limited.infer("identity_fp32", sound, headers=header)
    assert (reply.status, reply.error()) == (alone.status, alone.error())
    assert peak_kilobytes(limited) - before < 16 * 1024
    check_serves(limited)


@pytest.mark.galatea_only
def test_cve_2026_24264_json_that_inflates(limited: Server) -> None:
    """Short bodies that become the most nested, or the longest, JSON."""
    header = {"Content-Encoding": "gzip"}
    for text in (b"[" * (8 * MEBIBYTE), b'{"inputs":' * MEBIBYTE, b'"' + b"x" * (8 * MEBIBYTE)):
        reply = limited.infer("identity_fp32", gzip.compress(text), headers=header)
        assert reply.status in (400, 500), reply
        assert reply.error()
    check_serves(limited)


def test_cve_2026_47482_bodies_that_do_not_inflate(limited: Server) -> None:
    """What was inflated of refused bodies is not kept."""
    rounds = 100
    sound = gzip.compress(b" " * (256 << 10))
    bodies = [sound[:-9], sound[:100], sound[:10], b"\x1f\x8b" + b"\xff" * 1000, b"nonsense"]

    def send_all() -> None:
        for body in bodies:
            for coding in ("gzip", "deflate"):
                header = {"Content-Encoding": coding}
                reply = limited.infer("simple", body, headers=header)
                assert reply.status in (400, 500)

    for _ in range(rounds):
        send_all()
    before = resident_kilobytes(limited)
    for _ in range(rounds):
        send_all()
    # A hundredth of what these bodies inflate to.
    assert resident_kilobytes(limited) - before < 2 * 1024
    check_serves(limited)
