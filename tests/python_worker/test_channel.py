"""Tests of frames on the sockets."""

import socket
import struct
import sys

import pytest
from harness import WORKER

sys.path.insert(0, str(WORKER))

from galatea_worker.channel import Closed, FrameReader, SideChannel  # noqa: E402
from galatea_worker.errors import TritonModelException, WireError  # noqa: E402


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def body(data):
    return struct.pack("<I", len(data)) + data


def test_what_the_garbage_collector_says_waits_for_the_sender(pair):
    ours, theirs = pair
    channel = SideChannel(ours)
    channel._lock.acquire()  # a thread is sending
    channel.post(b"posted")
    channel._lock.release()
    channel.send(b"sent")
    channel.post(b"at once")
    assert theirs.recv(1000) == body(b"sent") + body(b"posted") + body(b"at once")
    assert channel.sent == 3


def test_closed_in_a_child(pair):
    ours, theirs = pair
    channel = SideChannel(ours)
    channel.close_in_child()
    channel.post(b"nothing")
    with pytest.raises(TritonModelException, match="only the process of the model"):
        channel.send(b"nothing")
    assert theirs.recv(1) == b""


def test_frames_of_all_sizes(pair):
    ours, theirs = pair
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    reader = FrameReader(ours)
    sizes = [1, 2, 65531, 65532, 65533, 100000]
    theirs.sendall(b"".join(body(bytes([index]) * size)
                            for index, size in enumerate(sizes)))
    for index, size in enumerate(sizes):
        assert bytes(reader.read()) == body(bytes([index]) * size)
    theirs.close()
    with pytest.raises(Closed):
        reader.read()


@pytest.mark.parametrize("size", [0, (64 << 20) + 1, (1 << 32) - 1])
def test_wrong_lengths(pair, size):
    ours, theirs = pair
    theirs.sendall(struct.pack("<IB", size, 1))
    with pytest.raises(WireError):
        FrameReader(ours).read()
