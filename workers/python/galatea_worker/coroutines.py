"""`async def execute`: one event loop in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Coroutine as AnyCoroutine
from typing import Any, Coroutine, Optional, Set

from .logger import ERROR, log_internal

#: The code flag of `async def` functions, as in `inspect`.
_CO_COROUTINE = 0x80

_loop: Any = None
#: Executions and readiness checks may need the loop at the same time.
_starting = threading.Lock()
_running: Set[Any] = set()


def is_coroutine(value: Any) -> bool:
    """True if a value is what an `async def` function returns."""
    return isinstance(value, AnyCoroutine)


def is_coroutine_function(value: Any) -> bool:
    """True if a value is an `async def` function."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return bool(code is not None and code.co_flags & _CO_COROUTINE)


def _get_loop() -> Any:
    """Returns the loop, which is started when it is first needed."""
    global _loop
    with _starting:
        if _loop is None:
            import asyncio
            _loop = asyncio.new_event_loop()
            asyncio.set_event_loop(_loop)
            threading.Thread(
                target=_loop.run_forever, name="galatea event loop", daemon=True).start()
    return _loop


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine on the loop and returns its result."""
    import asyncio
    return asyncio.run_coroutine_threadsafe(coroutine, _get_loop()).result()


def run_in_background(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine on the loop; logs its exception."""
    import asyncio
    future = asyncio.run_coroutine_threadsafe(coroutine, _get_loop())
    _running.add(future)
    future.add_done_callback(_done)


def _done(future: Any) -> None:
    """Logs the exception of a coroutine that has ended."""
    _running.discard(future)
    try:
        error: Optional[BaseException] = future.exception()
    except BaseException as cancelled:
        error = cancelled
    if error is not None:
        import traceback
        log_internal(ERROR, "".join(traceback.TracebackException.from_exception(
            error).format()))


def stop() -> None:
    """Stops the loop."""
    if _loop is not None:
        _loop.call_soon_threadsafe(_loop.stop)
