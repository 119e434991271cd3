"""Shared memory: the input arena, which the server fills, and the output arena.

Both are mapped in full. A block of the input arena is in use until the tensor and all arrays
over it are gone. A block of the output arena is in use until the server has copied it.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Callable, Dict, List, Set, Tuple

from .errors import LOST, TritonModelException, WireError

#: The alignment of the beginning and the end of blocks, in bytes.
PAGE_BYTES = 4096
#: The bytes of in-flight sender responses at which senders wait.
SENT_BYTES_MAX = 256 << 20
#: The maximum number of bytes that free, previously written blocks keep.
KEPT_BYTES_MAX = 64 << 20
_MADV_REMOVE = getattr(mmap, "MADV_REMOVE", None)


class InputBlock:
    """A use of a block of the input arena; ends with the object."""

    __slots__ = ("offset", "length", "_followed")

    def __init__(self, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length
        self._followed = False

    def view(self) -> memoryview:
        """Returns the bytes of the block; the tensor must outlive their readers."""
        return memoryview(INPUTS.memory)[self.offset:self.offset + self.length]

    def follow(self, array: object) -> None:
        """Ties the block to an array, whose end then releases the block."""
        if not self._followed:
            self._followed = True
            INPUTS.watch(array, self.offset, self.length)

    def __del__(self) -> None:
        if not self._followed:
            try:
                INPUTS.release(self.offset)
            except (NameError, AttributeError, TypeError):
                pass  # the interpreter is ending


class _ArrayRef(weakref.ref):
    """A weak reference to the first array over a block."""

    __slots__ = ("offset", "length")


class InputArena:
    """The memory in which the server puts long tensors."""

    __slots__ = ("memory", "size", "executing", "notify", "_released", "_refs",
                 "_side", "_held", "_delayed", "_address")

    def __init__(self) -> None:
        self.memory: mmap.mmap = None  # type: ignore[assignment]
        self.size = 0
        #: While the model executes, releases wait for the result.
        self.executing = False
        #: Sends the offsets that are released between executions.
        self.notify: Callable[[List[int]], None] = lambda offsets: None
        self._released: deque = deque()
        self._refs: Dict[int, _ArrayRef] = {}
        # Blocks named in frames on socket B: only B may release them, after those frames.
        self._side: Set[int] = set()
        # Blocks named in the last result: the server reads them until it sends its next frame.
        self._held: Set[int] = set()
        self._delayed: List[int] = []
        self._address = 0

    def open(self, fd: int) -> None:
        """Maps the arena."""
        self.size = os.fstat(fd).st_size
        if self.size:
            self.memory = mmap.mmap(fd, self.size)

    def check(self, offset: int, length: int) -> None:
        """Refuses a block that lies outside the arena."""
        if offset > self.size or length > self.size - offset:
            raise WireError(f"block {offset}+{length} lies outside of the input arena")

    def watch(self, array: object, offset: int, length: int) -> None:
        """Releases a block when `array` and all views of it are gone."""
        ref = _ArrayRef(array, self._array_gone)
        ref.offset = offset
        ref.length = length
        self._refs[id(ref)] = ref

    def _array_gone(self, ref: "_ArrayRef") -> None:
        self._refs.pop(id(ref), None)
        self.release(ref.offset)

    def release(self, offset: int) -> None:
        """Releases a block, now or with the next result."""
        if self._held and offset in self._held:
            self._delayed.append(offset)
        elif self._side and offset in self._side:
            self._side.discard(offset)
            self.notify([offset])
        elif self.executing:
            self._released.append(offset)
        else:
            self.notify([offset])

    def name_on_side(self, offset: int) -> None:
        """Records that a frame on socket B names the block."""
        self._side.add(offset)

    def take_released(self) -> List[int]:
        """Takes the offsets to append to a result."""
        released = self._released
        if not released:
            return []
        taken = []
        while released:
            taken.append(released.popleft())
        return taken

    def hold(self, named: List[int], released: List[int]) -> None:
        """Keeps blocks that a result names until the server's next frame."""
        self._held = set(named).difference(released)

    def next_frame(self) -> None:
        """Records that the server has read the last result."""
        if self._held:
            self._held = set()
            self._released.extend(self._delayed)
            self._delayed = []

    def locate(self, address: int, length: int) -> Tuple[int, int]:
        """Returns the offset of memory in a block, and the block's; (-1, -1) if there is none."""
        if not self._refs:
            return (-1, -1)
        if not self._address:
            from .arrays import address_of
            self._address = address_of(self.memory)
        offset = address - self._address
        if 0 <= offset < self.size:
            for ref in list(self._refs.values()):
                if ref.offset <= offset and offset + length <= ref.offset + ref.length:
                    return (offset, ref.offset)
        return (-1, -1)


class OutputArena:
    """The memory in which the worker puts long tensors."""

    __slots__ = ("memory", "size", "_lock", "_freed", "_free", "_used", "_sent",
                 "_sent_bytes", "_lost", "_top", "_high", "_dirty")

    def __init__(self) -> None:
        self.memory: mmap.mmap = None  # type: ignore[assignment]
        self.size = 0
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        # Free extents (offset, bytes) below _top, sorted, never adjacent.
        self._free: List[Tuple[int, int]] = []
        self._used: Dict[int, int] = {}
        # Blocks of responses that senders have sent.
        self._sent: Set[int] = set()
        self._sent_bytes = 0
        self._lost = False
        self._top = 0
        # The end of the memory that was ever taken since memory was last returned.
        self._high = 0
        # The bytes of free extents that hold memory.
        self._dirty = 0

    def open(self, fd: int) -> None:
        """Maps the arena."""
        self.size = os.fstat(fd).st_size
        if self.size:
            self.memory = mmap.mmap(fd, self.size)

    def take(self, length: int) -> int:
        """Takes a block of at least `length` bytes and returns its offset."""
        need = -(-length // PAGE_BYTES) * PAGE_BYTES
        if self._lost:
            raise TritonModelException(LOST)
        with self._lock:
            for index, (offset, size) in enumerate(self._free):
                if size >= need:
                    if size == need:
                        del self._free[index]
                    else:
                        self._free[index] = (offset + need, size - need)
                    self._dirty = max(0, self._dirty - need)
                    self._used[offset] = need
                    return offset
            offset = self._top
            if need > self.size - offset:
                raise TritonModelException(
                    f"no room for a tensor of {length} bytes: the shared memory of "
                    f"{self.size} bytes is full")
            self._top = offset + need
            self._dirty -= min(self._dirty, max(0, self._high - offset), need)
            self._high = max(self._high, self._top)
            self._used[offset] = need
            return offset

    def lose(self) -> None:
        """Gives up the blocks in a forked process, because its parent frees them."""
        self._lost = True
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)

    def wait_for_server(self) -> None:
        """Waits while the server has much to copy, because a sender must not outrun it."""
        if self._sent_bytes > SENT_BYTES_MAX:
            with self._lock:
                while self._sent_bytes > SENT_BYTES_MAX:
                    self._freed.wait()

    def mark_sent(self, offsets: List[int]) -> None:
        """Counts the blocks that a sender names."""
        with self._lock:
            for offset in offsets:
                self._sent.add(offset)
                self._sent_bytes += self._used[offset]

    def free(self, offsets: List[int], strict: bool = False) -> None:
        """Takes back blocks that the server has copied."""
        if not offsets:
            return
        with self._lock:
            for offset in offsets:
                size = self._used.pop(offset, 0)
                if size:
                    if offset in self._sent:
                        self._sent.discard(offset)
                        self._sent_bytes -= size
                    self._put_back(offset, size)
                elif strict:
                    raise WireError(f"the server frees block {offset}, which isn't used")
            if self._dirty > KEPT_BYTES_MAX:
                self._shrink()
            self._freed.notify_all()

    def _put_back(self, offset: int, size: int) -> None:
        """Adds an extent to the free ones and merges it with its neighbours."""
        self._dirty += size
        free = self._free
        index = bisect.bisect_left(free, (offset, 0))
        if index < len(free) and offset + size == free[index][0]:
            size += free.pop(index)[1]
        if index and sum(free[index - 1]) == offset:
            index -= 1
            before, length = free.pop(index)
            offset, size = before, length + size
        if offset + size == self._top:
            self._top = offset
        else:
            free.insert(index, (offset, size))

    def _shrink(self) -> None:
        """Returns the memory of free blocks to the system."""
        if _MADV_REMOVE is None:
            return
        above = [(self._top, self._high - self._top)] if self._high > self._top else []
        for offset, size in self._free + above:
            try:
                self.memory.madvise(_MADV_REMOVE, offset, size)
            except OSError:
                return
        self._high = self._top
        self._dirty = 0


#: The arenas of this process.
INPUTS = InputArena()
OUTPUTS = OutputArena()
