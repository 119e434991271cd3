"""The options of a server."""

from __future__ import annotations

import sys

from ._calls import BOOL, DOUBLE, INT, SIZE, TEXT, UNSIGNED, UNSIGNED64, Handle, method, one_of
from ._enumerations import (
    TRITONSERVER_InstanceGroupKind,
    TRITONSERVER_LogFormat,
    TRITONSERVER_ModelControlMode,
    TRITONSERVER_RateLimitMode,
)

_PREFIX = "ServerOptionsSet"


class TRITONSERVER_ServerOptions(Handle):
    """The options of a server. Log options take effect at once, on the whole process."""

    _delete = "ServerOptionsDelete"

    def __init__(self) -> None:
        """Creates options with Triton's defaults. Python models get this interpreter."""
        self._make("ServerOptionsNew")
        if sys.executable:
            self.set_backend_config("python", "interpreter", sys.executable)

    set_server_id = method(_PREFIX + "ServerId", TEXT)
    set_model_repository_path = method(_PREFIX + "ModelRepositoryPath", TEXT)
    set_model_control_mode = method(
        _PREFIX + "ModelControlMode", one_of(TRITONSERVER_ModelControlMode)
    )
    set_startup_model = method(_PREFIX + "StartupModel", TEXT)
    set_strict_model_config = method(_PREFIX + "StrictModelConfig", BOOL)
    set_rate_limiter_mode = method(
        _PREFIX + "RateLimiterMode", one_of(TRITONSERVER_RateLimitMode)
    )
    add_rate_limiter_resource = method("ServerOptionsAddRateLimiterResource", TEXT, SIZE, INT)
    set_pinned_memory_pool_byte_size = method(_PREFIX + "PinnedMemoryPoolByteSize", UNSIGNED64)
    set_cuda_memory_pool_byte_size = method(_PREFIX + "CudaMemoryPoolByteSize", INT, UNSIGNED64)
    set_response_cache_byte_size = method(_PREFIX + "ResponseCacheByteSize", UNSIGNED64)
    set_cache_config = method(_PREFIX + "CacheConfig", TEXT, TEXT)
    set_cache_directory = method(_PREFIX + "CacheDirectory", TEXT)
    set_min_supported_compute_capability = method(
        _PREFIX + "MinSupportedComputeCapability", DOUBLE
    )
    set_exit_on_error = method(_PREFIX + "ExitOnError", BOOL)
    set_strict_readiness = method(_PREFIX + "StrictReadiness", BOOL)
    set_exit_timeout = method(_PREFIX + "ExitTimeout", UNSIGNED)
    set_buffer_manager_thread_count = method(_PREFIX + "BufferManagerThreadCount", UNSIGNED)
    set_model_load_thread_count = method(_PREFIX + "ModelLoadThreadCount", UNSIGNED)
    set_model_load_retry_count = method(_PREFIX + "ModelLoadRetryCount", UNSIGNED)
    set_model_namespacing = method(_PREFIX + "ModelNamespacing", BOOL)
    set_enable_peer_access = method(_PREFIX + "EnablePeerAccess", BOOL)
    set_log_file = method(_PREFIX + "LogFile", TEXT)
    set_log_info = method(_PREFIX + "LogInfo", BOOL)
    set_log_warn = method(_PREFIX + "LogWarn", BOOL)
    set_log_error = method(_PREFIX + "LogError", BOOL)
    set_log_format = method(_PREFIX + "LogFormat", one_of(TRITONSERVER_LogFormat))
    set_log_verbose = method(_PREFIX + "LogVerbose", INT)
    set_metrics = method(_PREFIX + "Metrics", BOOL)
    set_gpu_metrics = method(_PREFIX + "GpuMetrics", BOOL)
    set_cpu_metrics = method(_PREFIX + "CpuMetrics", BOOL)
    set_metrics_interval = method(_PREFIX + "MetricsInterval", UNSIGNED64)
    set_backend_directory = method(_PREFIX + "BackendDirectory", TEXT)
    set_repo_agent_directory = method(_PREFIX + "RepoAgentDirectory", TEXT)
    set_model_load_device_limit = method(
        _PREFIX + "ModelLoadDeviceLimit", one_of(TRITONSERVER_InstanceGroupKind), INT, DOUBLE
    )
    set_backend_config = method(_PREFIX + "BackendConfig", TEXT, TEXT, TEXT)
    set_host_policy = method(_PREFIX + "HostPolicy", TEXT, TEXT, TEXT)
    set_metrics_config = method(_PREFIX + "MetricsConfig", TEXT, TEXT, TEXT)
