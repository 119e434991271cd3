"""Server options, each of which is a command-line flag."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field, fields
from typing import Any, Optional, Union

from . import _galatea
from ._enums import InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode
from ._errors import InvalidArgumentError, UnsupportedError

_MODES = {
    ModelControlMode.NONE: "none",
    ModelControlMode.POLL: "poll",
    ModelControlMode.EXPLICIT: "explicit",
}
_RATE_LIMITS = {RateLimitMode.OFF: "off", RateLimitMode.EXEC_COUNT: "execution_count"}

#: The flags of options with one value, and the value's type.
_FLAGS: dict[str, tuple[str, type]] = {
    "server_id": ("id", str),
    "pinned_memory_pool_size": ("pinned-memory-pool-byte-size", int),
    "cache_directory": ("cache-directory", str),
    "min_supported_compute_capability": ("min-supported-compute-capability", float),
    "exit_on_error": ("exit-on-error", bool),
    "strict_readiness": ("strict-readiness", bool),
    "exit_timeout": ("exit-timeout-secs", int),
    "buffer_manager_thread_count": ("buffer-manager-thread-count", int),
    "model_load_thread_count": ("model-load-thread-count", int),
    "model_load_retry_count": ("model-load-retry-count", int),
    "model_namespacing": ("model-namespacing", bool),
    "enable_peer_access": ("enable-peer-access", bool),
    "metrics": ("allow-metrics", bool),
    "gpu_metrics": ("allow-gpu-metrics", bool),
    "cpu_metrics": ("allow-cpu-metrics", bool),
    "metrics_interval": ("metrics-interval-ms", int),
    "backend_directory": ("backend-directory", str),
    "repo_agent_directory": ("repoagent-directory", str),
}


def flag(name: str, value: object) -> str:
    """Formats a command-line flag."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name}={text}"


def check_type(name: str, value: object, expected: type) -> None:
    """Refuses a value of another type. Where a float is expected, an integer will do."""
    fits = isinstance(value, (int, float) if expected is float else expected)
    if not fits or (isinstance(value, bool) and expected is not bool):
        raise TypeError(f"{name} must be {expected.__name__}, not {type(value).__name__}")


@dataclass
class RateLimiterResource:
    """The amount of a rate limiter resource, on one device or on each."""

    name: str
    count: int
    device: int


@dataclass
class ModelLoadDeviceLimit:
    """The share of a device's memory that models may use."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass
class Options:
    """The options of a server, with the names and defaults of Triton's package.

    docs/flags.md describes each, under the flag's name. `flags` are further command-line flags,
    such as ``"--memory-limit=2GiB"``; they take effect after all others.
    """

    model_repository: Union[str, list[str]] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False

    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)

    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)

    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"

    min_supported_compute_capability: float = 6.0

    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True

    log_file: Optional[str] = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0

    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000

    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)

    flags: list[str] = field(default_factory=list)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an option; a misspelled name is an error."""
        if name not in Options.__dataclass_fields__:
            raise AttributeError(f"'Options' object has no attribute '{name}'")
        object.__setattr__(self, name, value)

    def _make(self) -> _galatea.Server:
        """Creates a server with these options. Blocks until its models are loaded."""
        flags = self._flags()
        cache = self._cache()
        policies = self._policies()
        self._set_log()
        return _galatea.Server(flags, cache, policies)

    def _flags(self) -> list[str]:
        if self.model_repository is None:
            raise InvalidArgumentError("Model repository must be specified.")
        repositories = self.model_repository
        if not isinstance(repositories, list):
            repositories = [repositories]
        flags = [flag("model-control-mode", _MODES[ModelControlMode(self.model_control_mode)])]
        if self.strict_model_config:
            flags.append("--disable-auto-complete-config")
        for repository in repositories:
            # A pathlib path is what people are likely to try.
            if not isinstance(repository, os.PathLike):
                check_type("model_repository", repository, str)
            flags.append(flag("model-repository", os.fspath(repository)))
        for model in self.startup_models:
            check_type("startup_models", model, str)
            flags.append(flag("load-model", model))
        for name, (text, expected) in _FLAGS.items():
            value = getattr(self, name)
            check_type(name, value, expected)
            # The defaults are those of the command line, which warns about flags without effect.
            if value != getattr(Options, name):
                flags.append(flag(text, value))
        flags += self._resources()
        for prefix, table in (
            ("backend-config", self._backends()),
            ("metrics-config", self.metrics_configuration),
        ):
            for group, settings in table.items():
                start = f"{group}," if group else ""
                flags += [flag(prefix, f"{start}{name}={settings[name]}") for name in settings]
        for text in self.flags:
            check_type("flags", text, str)
        return flags + _runtimes() + self.flags

    def _resources(self) -> list[str]:
        flags = [flag("rate-limit", _RATE_LIMITS[RateLimitMode(self.rate_limiter_mode)])]
        for resource in self.rate_limiter_resources:
            device = f":{resource.device}" if resource.device >= 0 else ""
            flags.append(flag("rate-limit-resource", f"{resource.name}:{resource.count}{device}"))
        for number, size in self.cuda_memory_pool_sizes.items():
            flags.append(flag("cuda-memory-pool-byte-size", f"{number}:{size}"))
        for limit in self.model_load_device_limits:
            kind = InstanceGroupKind(limit.kind)
            if kind != InstanceGroupKind.GPU:
                raise InvalidArgumentError(
                    f"given device kind is not supported, got: {kind.name}"
                )
            if limit.device < 0:
                raise InvalidArgumentError(f"expects device ID >= 0, got {limit.device}")
            if not 0 <= limit.fraction <= 1:
                raise InvalidArgumentError(
                    "expects limit fraction to be in range [0.0, 1.0], got "
                    f"{limit.fraction:.6f}"
                )
            flags.append(flag("model-load-gpu-limit", f"{limit.device}:{limit.fraction}"))
        return flags

    def _backends(self) -> dict[str, dict[str, str]]:
        """The settings of backends. Python models get this interpreter unless one is set."""
        python = dict(self.backend_configuration.get("python", {}))
        if sys.executable:
            python.setdefault("interpreter", sys.executable)
        return {**self.backend_configuration, "python": python}

    def _cache(self) -> Optional[tuple[str, str]]:
        if len(self.cache_config) > 1:
            raise InvalidArgumentError(
                "found multiple cache configurations, but only a single cache is currently "
                "supported"
            )
        for name, settings in self.cache_config.items():
            return name, json.dumps(settings)
        return None

    def _policies(self) -> list[list[str]]:
        policies = []
        for policy, settings in self.host_policies.items():
            for setting, value in settings.items():
                if setting not in ("numa-node", "cpu-cores"):
                    raise UnsupportedError(
                        f"Unsupported host policy setting '{setting}' is specified, supported "
                        "settings are 'numa-node', 'cpu-cores'"
                    )
                policies.append([policy, setting, str(value)])
        return policies

    def _set_log(self) -> None:
        """Changes the log of the process, which all its servers share."""
        for name, expected in (("log_info", bool), ("log_warn", bool), ("log_error", bool)):
            check_type(name, getattr(self, name), expected)
        check_type("log_verbose", self.log_verbose, int)
        # As in Triton, each level enables the more important ones, in the options as well.
        self.log_info = self.log_info or self.log_verbose > 0
        self.log_warn = self.log_warn or self.log_info
        self.log_error = self.log_error or self.log_warn
        if self.log_file:
            check_type("log_file", self.log_file, str)
        _galatea.set_log(
            file=self.log_file or None,
            info=self.log_info,
            warn=self.log_warn,
            error=self.log_error,
            iso8601=LogFormat(self.log_format) == LogFormat.ISO8601,
            verbose=self.log_verbose,
        )


OPTION_NAMES = frozenset(one.name for one in fields(Options))


#: The flag of each runtime's library, its package, and the library's place in the package.
_RUNTIMES = (
    ("onnxruntime-library", "onnxruntime", "capi/libonnxruntime.so*"),
    ("openvino-library", "openvino", "libs/libopenvino_c.so*"),
    ("tensorflow-library", "tensorflow", "libtensorflow_cc.so*"),
)


def runtime_library(package: str, place: str) -> Optional[str]:
    """The library of this environment's package, which is not imported."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (found.submodule_search_locations if found else None) or []:
        libraries = sorted(glob.glob(os.path.join(folder, *place.split("/"))))
        if libraries:
            return libraries[-1]
    return None


def _runtimes() -> list[str]:
    """The flags for runtimes, unless the environment names their libraries."""
    flags = []
    for name, package, place in _RUNTIMES:
        library = runtime_library(package, place)
        if library is not None and not os.environ.get(f"GALATEA_{name.replace('-', '_').upper()}"):
            flags.append(flag(name, library))
    return flags
