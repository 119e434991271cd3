"""Tests of the output arena's allocator."""

import mmap
import os
import random
import sys

import pytest
from harness import WORKER

sys.path.insert(0, str(WORKER))

from galatea_worker import arena  # noqa: E402
from galatea_worker.errors import TritonModelException, WireError  # noqa: E402

PAGE = arena.PAGE_BYTES


@pytest.fixture
def memory():
    """An open arena with 1024 pages, and its memory's descriptor."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 1024 * PAGE)
    opened = arena.OutputArena()
    opened.open(fd)
    yield opened, fd
    os.close(fd)


def test_blocks_never_overlap(memory):
    opened, _ = memory
    choice = random.Random(7)
    used = {}
    for _ in range(5000):
        if used and choice.random() < 0.5:
            offset = choice.choice(list(used))
            del used[offset]
            opened.free([offset], strict=True)
            continue
        length = choice.randint(1, 20 * PAGE)
        try:
            offset = opened.take(length)
        except TritonModelException:
            continue
        assert offset % PAGE == 0 and offset + length <= opened.size
        end = offset + -(-length // PAGE) * PAGE
        assert all(end <= other or offset >= last for other, last in used.items())
        used[offset] = end
    opened.free(list(used), strict=True)
    # All of it is a single block again, or lies beyond everything that was ever allocated.
    assert opened.take(opened.size) == 0


def test_freed_blocks_are_used_again(memory):
    opened, _ = memory
    first = opened.take(1)
    second = opened.take(PAGE + 1)
    assert (first, second) == (0, PAGE)
    opened.free([first], strict=True)
    assert opened.take(2 * PAGE) == 3 * PAGE
    assert opened.take(PAGE) == first


def test_a_block_is_freed_once(memory):
    opened, _ = memory
    offset = opened.take(1)
    opened.free([offset], strict=True)
    with pytest.raises(WireError):
        opened.free([offset], strict=True)
    opened.free([offset])


def test_full(memory):
    opened, _ = memory
    opened.take(1000 * PAGE)
    with pytest.raises(TritonModelException, match="no room for a tensor of 102400 bytes"):
        opened.take(25 * PAGE)
    assert opened.take(24 * PAGE) == 1000 * PAGE


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="no MADV_REMOVE")
def test_memory_of_free_blocks_goes_back_to_the_system(memory, monkeypatch):
    opened, fd = memory
    monkeypatch.setattr(arena, "KEPT_BYTES_MAX", 100 * PAGE)
    kept, small, large = (opened.take(count * PAGE) for count in (1, 90, 200))
    for offset, count in ((kept, 1), (small, 90), (large, 200)):
        opened.memory[offset:offset + count * PAGE] = b"\1" * count * PAGE
    opened.free([small], strict=True)
    assert os.fstat(fd).st_blocks * 512 == 291 * PAGE
    opened.free([large], strict=True)
    assert os.fstat(fd).st_blocks * 512 == PAGE
    assert opened.memory[kept] == 1
