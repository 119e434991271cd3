"""Network doors of a server in the program's process."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, ClassVar, Optional, Union

from . import _galatea
from ._errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from ._options import flag
from ._server import Server

_PORT_MAX = 65535


class OptionsError(InvalidArgumentError, ValueError):
    """An option of a door has a wrong type or value."""


class _Options:
    """Base of all doors' options."""

    #: The flags of the options, by the options' names.
    _flags: ClassVar[dict[str, str]] = {}
    flags: list[str]
    #: The minimum and maximum values, by option name.
    _ranges: ClassVar[dict[str, tuple[int, Optional[int]]]] = {}

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            kind: Any = {"str": str, "int": int, "bool": bool}.get(str(one.type))
            if kind is not None and type(value) is not kind and not _is_level(one.name, value):
                raise OptionsError(
                    f"{one.name} must be {kind.__name__}, not {type(value).__name__}"
                )
            least, greatest = self._ranges.get(one.name, (0, None))
            if kind is int and (value < least or greatest is not None and value > greatest):
                most = "" if greatest is None else f" and at most {greatest}"
                raise OptionsError(f"{one.name} must be at least {least}{most}, not {value}")

    def _arguments(self) -> list[str]:
        """The options as flags."""
        return [flag(name, getattr(self, option)) for option, name in self._flags.items()]


def _is_level(name: str, value: object) -> bool:
    return name == "infer_compression_level" and isinstance(value, int)


class _Frontend:
    """A door that starts and stops."""

    Options: ClassVar[Any]
    #: The name of the door in messages.
    _name: ClassVar[str]
    #: The flag that enables the door.
    _kind: ClassVar[str]

    def __init__(self, server: Server, options: Any = None) -> None:
        """Prepares a door of a running server. It listens once :meth:`start` is called."""
        if options is None:
            options = self.Options()
        if not isinstance(options, self.Options):
            raise InvalidArgumentError(
                "Incorrect type for options. options argument must be of type "
                f"{type(self).__name__}.Options"
            )
        self.options = options
        self._server = server._started()
        self._open: Optional[_galatea.Frontend] = None

    def start(self) -> None:
        """Begins to listen."""
        if self._open is not None:
            raise AlreadyExistsError(f"{self._name} server is already running.")
        kinds = ("http", "grpc", "metrics")
        allowed = [flag(f"allow-{kind}", kind == self._kind) for kind in kinds]
        arguments = [*allowed, *self.options._arguments(), *self.options.flags]
        self._open = self._server.open(arguments)

    def stop(self) -> None:
        """Closes the port and all connections. In-flight requests are cancelled."""
        if self._open is None:
            raise UnavailableError(f"{self._name} server is not running.")
        door, self._open = self._open, None
        door.stop()

    @property
    def port(self) -> Optional[int]:
        """The port, which the system chose if the option is 0; ``None`` while it is closed."""
        return self._open.port if self._open is not None else None

    def __enter__(self) -> Any:
        """Begins to listen."""
        self.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        """Closes the door."""
        if self._open is not None:
            self.stop()


class KServeHttp(_Frontend):
    """The protocols over HTTP."""

    _name = "HTTP"
    _kind = "http"

    @dataclass
    class Options(_Options):
        """Address and threads. `flags` are further flags of the command line."""

        _flags = {
            "address": "http-address",
            "port": "http-port",
            "reuse_port": "reuse-http-port",
            "thread_count": "http-thread-count",
            "header_forward_pattern": "http-header-forward-pattern",
        }
        _ranges = {"port": (0, _PORT_MAX), "thread_count": (1, None)}

        address: str = "0.0.0.0"
        port: int = 8000
        reuse_port: bool = False
        thread_count: int = 8
        header_forward_pattern: str = ""
        flags: list[str] = field(default_factory=list)


class Grpc_compression_level(enum.IntEnum):
    """The level at which responses are compressed."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


#: The levels in the flag's form. The last of Triton's is no level.
_LEVELS = ("none", "low", "medium", "high")


class KServeGrpc(_Frontend):
    """The protocol over gRPC."""

    _name = "GRPC"
    _kind = "grpc"
    Grpc_compression_level = Grpc_compression_level

    @dataclass
    class Options(_Options):
        """Address, TLS, keepalive and more. `flags` are further flags of the command line."""

        _flags = {
            "address": "grpc-address",
            "port": "grpc-port",
            "reuse_port": "reuse-grpc-port",
            "use_ssl": "grpc-use-ssl",
            "server_cert": "grpc-server-cert",
            "server_key": "grpc-server-key",
            "root_cert": "grpc-root-cert",
            "keepalive_time_ms": "grpc-keepalive-time",
            "keepalive_timeout_ms": "grpc-keepalive-timeout",
            "keepalive_permit_without_calls": "grpc-keepalive-permit-without-calls",
            "http2_max_pings_without_data": "grpc-http2-max-pings-without-data",
            "http2_min_recv_ping_interval_without_data_ms": (
                "grpc-http2-min-recv-ping-interval-without-data"
            ),
            "http2_max_ping_strikes": "grpc-http2-max-ping-strikes",
            "max_connection_age_ms": "grpc-max-connection-age",
            "max_connection_age_grace_ms": "grpc-max-connection-age-grace",
            "infer_thread_count": "grpc-infer-thread-count",
            "infer_allocation_pool_size": "grpc-infer-allocation-pool-size",
            "max_response_pool_size": "grpc-max-response-pool-size",
            "forward_header_pattern": "grpc-header-forward-pattern",
        }
        _ranges = {"port": (0, _PORT_MAX)}

        address: str = "0.0.0.0"
        port: int = 8001
        reuse_port: bool = False
        use_ssl: bool = False
        server_cert: str = ""
        server_key: str = ""
        root_cert: str = ""
        use_mutual_auth: bool = False
        keepalive_time_ms: int = 7_200_000
        keepalive_timeout_ms: int = 20_000
        keepalive_permit_without_calls: bool = False
        http2_max_pings_without_data: int = 2
        http2_min_recv_ping_interval_without_data_ms: int = 300_000
        http2_max_ping_strikes: int = 2
        max_connection_age_ms: int = 0
        max_connection_age_grace_ms: int = 0
        infer_compression_level: Union[int, Grpc_compression_level] = 0
        infer_thread_count: int = 2
        infer_allocation_pool_size: int = 8
        max_response_pool_size: int = 2_147_483_647
        forward_header_pattern: str = ""
        flags: list[str] = field(default_factory=list)

        def _arguments(self) -> list[str]:
            arguments = super()._arguments()
            if self.use_mutual_auth:
                arguments.append("--grpc-use-ssl-mutual=true")
            level = self.infer_compression_level
            arguments.append(flag("grpc-infer-response-compression-level", _LEVELS[level]))
            return arguments

        def __post_init__(self) -> None:
            """Checks types and ranges."""
            level: object = self.infer_compression_level
            if not isinstance(level, int) or not 0 <= level < len(_LEVELS):
                raise OptionsError(f"infer_compression_level must be from 0 to 3, not {level}")
            super().__post_init__()


class Metrics(_Frontend):
    """The metrics over HTTP."""

    _name = "HTTP"
    _kind = "metrics"

    @dataclass
    class Options(_Options):
        """Address and threads. `flags` are further flags of the command line."""

        _flags = {
            "address": "metrics-address",
            "port": "metrics-port",
            "thread_count": "http-thread-count",
        }
        _ranges = {"port": (0, _PORT_MAX), "thread_count": (1, None)}

        address: str = "0.0.0.0"
        port: int = 8002
        thread_count: int = 1
        flags: list[str] = field(default_factory=list)
