"""Triton's private module for the servers and their options."""

from galatea import (
    InstanceGroupKind,
    LogFormat,
    LogLevel,
    Metric,
    MetricFamily,
    MetricFormat,
    MetricKind,
    ModelControlMode,
    ModelDictionary,
    ModelLoadDeviceLimit,
    Options,
    RateLimitMode,
    RateLimiterResource,
    Server,
)

__all__ = [
    "InstanceGroupKind",
    "LogFormat",
    "LogLevel",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "Server",
]
