"""llama.cpp's server in this process, through the package `xllamacpp`."""

from __future__ import annotations

import errno
import faulthandler
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List

from galatea_worker import logger
from galatea_worker.errors import BackendError

from .settings import Settings

_PACKAGE = "xllamacpp"
#: The maximum length of a socket's path.
_SOCKET_PATH_MAX = 100
#: The errors of a process that may not open sockets, as in the sandbox.
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_ANOTHER_FOLDER = "set TMPDIR to another folder"
#: The lines of llama.cpp's output that an error shows.
_LINES_SHOWN = 4
#: The maximum length of a line in the log.
_LINE_LENGTH_MAX = 1024
#: llama.cpp logs errors only.
_VERBOSITY = 1


def check() -> None:
    """Raises an error if the package isn't installed."""
    try:
        is_found = importlib.util.find_spec(_PACKAGE) is not None
    except (ImportError, ValueError):
        is_found = False
    if not is_found:
        raise _missing(f"ModuleNotFoundError: No module named '{_PACKAGE}'")


def _load() -> Any:
    try:
        import xllamacpp
    except Exception as error:  # a missing library is an OSError or an ImportError
        raise _missing(f"{type(error).__name__}: {error}") from None
    return xllamacpp


def _missing(reason: str) -> BackendError:
    python = sys.executable or "python3"
    return BackendError(f"the worker's interpreter can't import {_PACKAGE} ({reason}). Install it: "
                        f"{python} -m pip install {_PACKAGE}")


class Engine:
    """A loaded model. Its methods may be called from any thread, and block it."""

    def __init__(self, path: str, settings: Settings, slots: int) -> None:
        library = _load()
        #: The number of tokens in a prompt and its text.
        self.context = settings.context
        parameters = library.CommonParams()
        _fill_in(library, parameters, settings, slots)
        parameters.model.path = path
        with _private_socket() as address, _own_signals():
            _set(parameters, {"hostnames": [address], "hostname": address})
            output = _Output()
            try:
                self._server = library.Server(parameters)
            except Exception as error:
                reason = _reason(output.lines(), str(error))
                raise BackendError(f"llama.cpp can't load '{path}': {reason}") from None
            finally:
                output.restore()
            output.forward()

    def complete(self, body: Dict[str, Any], take: Callable[[bytes], bool]) -> None:
        """Continues a prompt. `take` gets each event, and ends the text by returning true."""
        self._server.handle_completions(json.dumps(body).encode(), take)

    def embed(self, text: str) -> Dict[str, Any]:
        """Returns the response with the embedding of a text."""
        body = json.dumps({"input": text, "encoding_format": "float"}).encode()
        response: Dict[str, Any] = json.loads(self._server.handle_embeddings(body))
        return response

    def close(self) -> None:
        """Ends llama.cpp's threads."""
        self._server = None


def _fill_in(library: Any, parameters: Any, settings: Settings, slots: int) -> None:
    """Passes the settings on to llama.cpp."""
    parameters.n_parallel = slots
    # Each slot has its own part, so that no request takes another one's.
    parameters.n_ctx = settings.context * slots
    parameters.kv_unified = False
    parameters.n_batch = settings.batch
    parameters.n_ubatch = settings.micro_batch
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams_batch.n_threads = settings.threads_batch
    # A thread without work sleeps instead of spinning.
    parameters.cpuparams.poll = parameters.cpuparams_batch.poll = 0
    parameters.n_predict = settings.tokens_max
    parameters.cache_prompt = settings.cache_prompt
    parameters.cache_ram_mib = settings.cache_ram_mib
    parameters.fit_params = False
    if settings.load_mode != "auto":
        kind = f"LLAMA_LOAD_MODE_{settings.load_mode.upper()}"
        parameters.load_mode = getattr(library.llama_load_mode, kind)
    if settings.gpu_layers is not None:
        parameters.n_gpu_layers = settings.gpu_layers
    if settings.flash_attn != "auto":
        kinds = library.llama_flash_attn_type
        is_on = settings.flash_attn == "on"
        parameters.flash_attn_type = (kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if is_on
                                      else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    if settings.task == "embed":
        parameters.embedding = True
        if settings.pooling is not None:
            kind = f"LLAMA_POOLING_TYPE_{settings.pooling.upper()}"
            parameters.pooling_type = getattr(library.llama_pooling_type, kind)
    # The package always opens an HTTP server. This one has nothing to offer.
    parameters.endpoint_slots = False
    _set(parameters, {"ui": False, "webui": False})
    parameters.n_threads_http = 1
    parameters.verbosity = _VERBOSITY


def _set(parameters: Any, values: Dict[str, Any]) -> None:
    """Sets the first of several parameters that this release has."""
    for name, value in values.items():
        if hasattr(type(parameters), name):
            setattr(parameters, name, value)
            return


@contextmanager
def _private_socket() -> Iterator[str]:
    """Gives llama.cpp's HTTP server a private address, and then removes it."""
    try:
        folder = tempfile.mkdtemp(prefix="galatea-llamacpp-")
    except OSError as error:
        raise BackendError("llama.cpp needs a folder for temporary files, which can't be created "
                           f"({error.strerror or error}): {_ANOTHER_FOLDER}") from None
    try:
        path = os.path.join(folder, "llama.sock")
        if len(path) > _SOCKET_PATH_MAX:
            raise BackendError(f"the path of the folder for temporary files, '{folder}', is too "
                               f"long for a socket: {_ANOTHER_FOLDER}")
        _check_sockets(path)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_sockets(path: str) -> None:
    """Raises an error if this process can't open a socket with this path."""
    try:
        one = socket.socket(socket.AF_UNIX)
    except OSError as error:
        advice = ": the setting 'sandbox' must be false" if error.errno in _FORBIDDEN else ""
        raise BackendError("llama.cpp needs a socket, which this process can't open "
                           f"({error.strerror}){advice}") from None
    try:
        with one:
            one.bind(path)
        os.unlink(path)
    except OSError as error:
        raise BackendError("llama.cpp needs a socket, which can't be created in the folder for "
                           f"temporary files ({error.strerror}): {_ANOTHER_FOLDER}") from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the signal handlers, which llama.cpp replaces by its own."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)


class _Output:
    """The lines that llama.cpp writes to the standard error stream, which may quote clients.

    While a model is loaded, they are kept in a file, because llama.cpp doesn't let Python code run
    meanwhile. After that, a thread writes them to the server's log.
    """

    def __init__(self) -> None:
        self._own = os.dup(2)
        self._file = os.memfd_create("llama.cpp")
        os.dup2(self._file, 2)

    def lines(self) -> List[str]:
        """Returns the lines so far."""
        with open(self._file, encoding="utf-8", errors="replace", closefd=False) as stream:
            stream.seek(0)
            return stream.read().splitlines()

    def restore(self) -> None:
        """Gives the stream back, with the lines."""
        lines = self.lines()
        os.dup2(self._own, 2)
        for line in lines:
            sys.stderr.write(line.encode("unicode_escape").decode() + "\n")

    def forward(self) -> None:
        """Starts the thread."""
        faulthandler.enable(self._own)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        threading.Thread(target=_forward, args=(reading,), name="llama.cpp log", daemon=True).start()


def _forward(reading: int) -> None:
    with open(reading, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            text = line.strip()[:_LINE_LENGTH_MAX].encode("unicode_escape").decode()
            if text:
                logger.log_internal(logger.VERBOSE, f"llama.cpp: {text}")


def _reason(lines: List[str], error: str) -> str:
    """Returns the lines that say why a model can't be loaded."""
    shown = [line.strip() for line in lines if line.strip()][:_LINES_SHOWN]
    return "; ".join(shown) or error
