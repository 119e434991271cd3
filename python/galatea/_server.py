"""Servers in the program's own process."""

from __future__ import annotations

import atexit
import json
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Optional, Union

from . import _galatea
from ._enums import MetricFormat
from ._errors import InvalidArgumentError, TritonError, UnavailableError
from ._model import Model
from ._options import Options

#: States of models that use no memory.
_UNLOADED = (None, "UNAVAILABLE")


class ModelDictionary(dict[Any, Model]):
    """Models by name and version. A name alone means the newest version."""

    def __init__(self, server: Server, models: Sequence[Model]) -> None:
        """Created by :meth:`Server.models`."""
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: Any) -> Model:
        """Returns the model with a name, or with a name and a version."""
        if isinstance(key, tuple):
            if key not in self:
                raise KeyError(f"Unknown Model: {key}")
            return super().__getitem__(key)
        if not any(name == key for name, _ in self):
            raise KeyError(f"Unknown Model: {key}")
        return Model(self._server, name=key)


class Server:
    """A server in the program's own process.

    It serves the program's own calls; :class:`KServeHttp`, :class:`KServeGrpc` and
    :class:`Metrics` open it to the network. Any thread may call it. A context manager starts and
    stops it: ``with galatea.Server(model_repository="models") as server:``.
    """

    def __init__(self, options: Optional[Options] = None, **kwargs: Any) -> None:
        """Takes options as an object or as keyword arguments. Starting the server checks them."""
        self.options: Options = Options(**kwargs) if options is None else options
        self._server: Optional[_galatea.Server] = None

    def start(
        self,
        wait_until_ready: bool = False,
        polling_interval: float = 0.1,
        timeout: Optional[float] = None,
    ) -> Server:
        """Starts the server and loads models, as the control mode says.

        With `wait_until_ready`, also waits until the server is ready, for at most `timeout`
        seconds.
        """
        if self._server is not None:
            raise InvalidArgumentError("Server already started")
        self._server = self.options._make()
        _running.add(self)
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if end is not None and time.monotonic() >= end:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)
        return self

    def stop(self) -> None:
        """Stops the server: in-flight requests are finished, and models unloaded.

        The option `exit_timeout` limits the time; an :class:`InternalError` means that it was too
        short.
        """
        server = self._started()
        server.stop()
        self._server = None
        _running.discard(self)

    def __enter__(self) -> Server:
        """Starts the server unless it is running."""
        return self if self._server is not None else self.start()

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        """Stops the server unless it is stopped."""
        if self._server is not None:
            self.stop()

    def _started(self) -> _galatea.Server:
        if self._server is None:
            raise InvalidArgumentError("Server not started")
        return self._server

    def _ptr(self) -> int:
        """The address for functions of the C interface."""
        return self._started().address()

    def live(self) -> bool:
        """True if the server runs."""
        return self._started().is_live()

    def ready(self) -> bool:
        """True if the server takes requests."""
        return self._started().is_ready()

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        parsed: dict[str, Any] = json.loads(self._started().metadata())
        return parsed

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """The metrics of the server and of the program, as text."""
        MetricFormat(metric_format)
        return self._started().metrics()

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """Returns a model, which is not looked up until it is used."""
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The models of the repositories, by name and version."""
        found = json.loads(self._started().model_index(exclude_not_ready))
        for model in found:
            if "version" in model:
                model["version"] = int(model["version"])
        return ModelDictionary(self, [Model(self, **model) for model in found])

    def load(
        self,
        model_name: str,
        parameters: Optional[dict[str, Union[str, int, bool, bytes]]] = None,
    ) -> Model:
        """Loads or reloads a model, and waits until it is loaded.

        Requires control mode explicit. `parameters` may hold a configuration as ``config`` and
        files as ``file:PATH``.
        """
        self._started().load_model(model_name, list((parameters or {}).items()))
        return self.model(model_name)

    def unload(
        self,
        model: Union[str, Model],
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: Optional[float] = None,
    ) -> None:
        """Takes a model out of service, and optionally the models that only this one needs.

        With `wait_until_unloaded`, also waits until its memory is free, for at most `timeout`
        seconds.
        """
        name = model.name if isinstance(model, Model) else model
        self._started().unload_model(name, unload_dependents)
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and not self._is_unloaded(name):
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(polling_interval)

    def _is_unloaded(self, name: str) -> bool:
        models = self.models().values()
        return all(model.state in _UNLOADED for model in models if model.name == name)

    def register_model_repository(
        self, repository_path: str, name_mapping: Optional[dict[str, str]] = None
    ) -> None:
        """Adds a repository. `name_mapping` gives models other names than their directories'."""
        names = list((name_mapping or {}).items())
        self._started().register_repository(repository_path, names)

    def unregister_model_repository(self, repository_path: str) -> None:
        """Removes a repository. Models that were loaded from it keep serving."""
        self._started().unregister_repository(repository_path)

    def poll_model_repository(self) -> None:
        """Loads and unloads models that have changed. Requires control mode poll."""
        self._started().poll()


#: Running servers. A program that ends without stopping them leaves them to us.
_running: weakref.WeakSet[Server] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        with suppress(TritonError):
            server.stop()
